//! A sweep over disks with levels: each errno at each call of the medium, between opening and
//! close.

use super::disks::{create, flush_hidden, models, open};
use lacuna_contracts::{BlockAddr, Disk, Error, Kind, Result};
use lacuna_levels::{LevelDisk, LevelFormat, Levels, Pace, level_disks};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use lacuna_sim::versions::{DiskModel, run_content};
use lacuna_sim::{
    CrashMedium, MediumImage, NthCall, OpKind, Rng, RunDigest, SWEPT_ERRNOS, delegate_rest, is_refusal_errno,
    reports_failure, sweep_cases,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// The number of levels that are created and opened.
const LEVELS: usize = 3;
/// The script ends after this many calls.
const MAX_CALLS: u64 = 240;
/// One in this many pairs of a call and an errno is tried, unless all are requested.
const SHARE: u64 = 53;

/// An operation of a level, given by its number, or of the disk.
#[derive(Clone, Copy)]
enum SweepOp {
    /// The level, the first block and the number of blocks.
    Write(usize, u64, u64),
    Discard(usize, u64, u64),
    Flush(usize),
    /// A beat of the paced clock.
    Beat,
}

/// The script, which is repeated.
const SCRIPT: [SweepOp; 20] = [
    SweepOp::Write(0, 3, 2),
    SweepOp::Write(1, 3, 2),
    SweepOp::Beat,
    SweepOp::Write(0, 10, 9),
    SweepOp::Flush(0),
    SweepOp::Write(2, 1, 1),
    SweepOp::Write(1, 20, 5),
    SweepOp::Discard(0, 4, 3),
    SweepOp::Write(0, 0, 12),
    SweepOp::Flush(1),
    SweepOp::Discard(1, 20, 2),
    SweepOp::Write(0, 5, 6),
    SweepOp::Beat,
    SweepOp::Write(0, 30, 20),
    SweepOp::Write(1, 0, 4),
    SweepOp::Discard(0, 30, 10),
    SweepOp::Flush(0),
    SweepOp::Flush(2),
    SweepOp::Write(2, 2, 1),
    SweepOp::Write(0, 2, 3),
];
/// The end of the script.
const FINAL_OPS: [SweepOp; 3] = [SweepOp::Flush(1), SweepOp::Flush(2), SweepOp::Flush(0)];

/// A sweep over disks of one format.
pub struct ErrnoSweep<F> {
    /// The name of the format.
    pub name: &'static str,
    /// The parameters of the disk. Only the script beats its paced clock.
    pub params: F,
    /// The most beats that a flush of a hidden level takes.
    pub beats: u64,
}

/// A disk that was used and not closed, with models of its levels.
struct UsedDisk {
    image: MediumImage,
    models: Vec<DiskModel>,
}

/// The effect of an error on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorEffect {
    /// No request failed.
    Unnoticed,
    /// One request failed.
    Failed,
    /// The disk took no more writes.
    Stopped,
}

/// An open disk, its levels, and a model of each.
struct CheckedDisk<D> {
    disk: Arc<D>,
    levels: Vec<Arc<LevelDisk>>,
    models: Vec<DiskModel>,
    beats: u64,
}

impl<D: Levels + 'static> CheckedDisk<D> {
    fn new(disk: Arc<D>, models: Vec<DiskModel>, beats: u64) -> Self {
        CheckedDisk { levels: level_disks(&disk), disk, models, beats }
    }

    fn perform(&mut self, op: SweepOp, stamp: u64) -> Result<()> {
        match op {
            SweepOp::Write(level, first, count) => {
                let (first, count) = self.clip(level, first, count);
                self.models[level].add_version(first, count, stamp);
                self.levels[level].write(BlockAddr(first), &run_content(first, count, stamp))
            }
            SweepOp::Discard(level, first, count) => {
                let (first, count) = self.clip(level, first, count);
                self.models[level].add_version(first, count, 0);
                self.levels[level].discard(BlockAddr(first), count)
            }
            SweepOp::Flush(0) => self.levels[0].flush().map(|()| self.models[0].record_flush()),
            SweepOp::Flush(level) => {
                flush_hidden(&*self.disk, &self.levels[level], self.beats)?;
                // Making hidden data durable makes the public data before it durable as well.
                self.models[0].record_flush();
                self.models[level].record_flush();
                Ok(())
            }
            SweepOp::Beat => self.disk.refresh().map(|()| self.models[0].record_flush()),
        }
    }

    /// Clips a range to a level.
    fn clip(&self, level: usize, first: u64, count: u64) -> (u64, u64) {
        let blocks = self.models[level].blocks();
        let first = first.min(blocks - 1);
        (first, count.min(blocks - first))
    }

    fn assert_allowed(&self, what: &str) {
        for (level, model) in self.levels.iter().zip(&self.models) {
            model.check_allowed(&**level, 0..model.blocks()).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
}

impl<F: LevelFormat> ErrnoSweep<F> {
    /// Checks the effect of each error. A refused call, or a failed read, fails at most one
    /// request, and the disk goes on. After another error of the medium, or of a sync, the disk
    /// takes no more writes. Flushed data is there afterwards, also if the power is cut after the
    /// failed request or at the end. The caller gets the error of the call. `LACUNA_SWEEP` requests
    /// every error at every call.
    ///
    /// # Panics
    ///
    /// If any of this does not hold.
    pub fn assert_errors_lose_no_flushed_data(&self) {
        let all = std::env::var_os("LACUNA_SWEEP").is_some();
        let start = self.make_used_disk();
        let (end, calls, hit) = self.run(&start, 0, 0);
        assert_eq!((end, hit), (ErrorEffect::Unnoticed, None), "{}: nothing was to fail", self.name);
        assert!(calls >= 40, "{}: {calls} calls", self.name);
        let (mut ends, mut runs, mut digest) = ([0u64; 3], 0, RunDigest::new());
        for (nth, errno) in sweep_cases(calls, (!all).then_some(SHARE)) {
            let (end, _, hit) = self.run(&start, nth, errno);
            assert!(hit.is_some(), "{}: call {nth} was never made", self.name);
            ends[end as usize] += 1;
            runs += 1;
            digest.add_word(nth << 16 | (errno as u64) << 8 | end as u64);
        }
        let [unnoticed, failed, stopped] = ends;
        println!(
            "{}: {calls} calls, {runs} runs: {unnoticed} unnoticed, {failed} failed, {stopped} stopped, digest {:016x}",
            self.name, digest.0
        );
        assert!(unnoticed > 0 && stopped > 0, "{}: {ends:?}", self.name);
    }

    /// Checks that the effect of an error on the medium does not depend on the levels that are open
    /// and busy: the calls that change the medium, their offsets and lengths, and the calls after a
    /// failed one.
    ///
    /// # Panics
    ///
    /// If it does.
    pub fn assert_effects_hide_levels(&self) {
        let start = self.make_used_disk();
        let (changes, _) = self.run_changes(&start, 1, 0, 0);
        let mut differ = false;
        for nth in (0..=changes.len() as u64).step_by(5) {
            // EIO and ENOSPC.
            for errno in [SWEPT_ERRNOS[0], SWEPT_ERRNOS[1]] {
                let (alone, hit) = self.run_changes(&start, 1, nth, errno);
                let (busy, _) = self.run_changes(&start, LEVELS, nth, errno);
                assert!(
                    alone == busy,
                    "{}: call {nth} fails with {errno}: the effect reveals hidden levels",
                    self.name
                );
                assert_eq!(hit.is_some(), nth > 0, "{}: call {nth}", self.name);
                differ |= alone != changes;
            }
        }
        assert!(differ, "{}: no error had an effect on the medium", self.name);
    }

    /// Checks that a close with a refused call leaves the same medium operations and the same
    /// outcome, whether or not hidden data is pending.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn assert_refused_close_hides_pending(&self) {
        let start = self.make_used_disk();
        let undisturbed = self.close_with_refusal(&start, false, 0);
        assert_eq!(undisturbed.1, None, "{}: nothing was to fail", self.name);
        let mut differ = false;
        for nth in (1..=undisturbed.0.len() as u64).step_by(7) {
            let [idle, pending] = [false, true].map(|pending| self.close_with_refusal(&start, pending, nth));
            assert!(idle == pending, "{}: call {nth} of a close: the effect reveals pending data", self.name);
            differ |= idle.0 != undisturbed.0;
        }
        assert!(differ, "{}: no refusal had an effect on the medium", self.name);
    }

    /// The calls of a close that change the medium, with the `nth` refused, and the outcome of the
    /// close.
    fn close_with_refusal(
        &self,
        start: &UsedDisk,
        pending: bool,
        nth: u64,
    ) -> (Vec<MediumChange>, Option<Kind>) {
        let failing =
            Arc::new(FailNthMedium::new(Arc::new(CrashMedium::from_image(start.image.clone())), true));
        let medium: Arc<dyn Medium> = failing.clone();
        let disk = open(&medium, &self.params, LEVELS, 5).unwrap();
        let mut played = CheckedDisk::new(disk, start.models.clone(), self.beats);
        played.perform(SweepOp::Write(0, 3, 2), 1000).unwrap();
        if pending {
            played.perform(SweepOp::Write(1, 3, 2), 1001).unwrap();
        }
        failing.state.lock().changes.clear();
        // ENOSPC.
        failing.state.lock().calls.fail(nth, SWEPT_ERRNOS[1]);
        let ended = played.disk.close().err().map(|e| e.kind());
        let changes = std::mem::take(&mut failing.state.lock().changes);
        (changes, ended)
    }

    /// A disk with all levels written and flushed, after one session that was closed and one that
    /// was not.
    fn make_used_disk(&self) -> UsedDisk {
        let medium = Arc::new(CrashMedium::new(self.params.end()));
        let shared: Arc<dyn Medium> = medium.clone();
        create(&shared, &self.params, LEVELS, 1).unwrap();
        let mut models = models(&*open(&shared, &self.params, LEVELS, 1).unwrap());
        for session in 0..2 {
            let disk = open(&shared, &self.params, LEVELS, 2 + session).unwrap();
            let mut played = CheckedDisk::new(disk, models, self.beats);
            for (op, stamp) in SCRIPT.into_iter().chain(FINAL_OPS).zip(1 + 50 * session..) {
                played.perform(op, stamp).unwrap();
            }
            if session == 0 {
                played.disk.close().unwrap();
            }
            models = played.models;
        }
        UsedDisk { image: medium.image(), models }
    }

    /// Runs the script with an error at call `nth`. Returns its effect, the number of calls, and
    /// the call that failed.
    fn run(&self, start: &UsedDisk, nth: u64, errno: i32) -> (ErrorEffect, u64, Option<OpKind>) {
        let crashing = Arc::new(CrashMedium::from_image(start.image.clone()));
        let failing = Arc::new(FailNthMedium::new(crashing.clone(), false));
        failing.state.lock().calls.fail(nth, errno);
        let errno_text = std::io::Error::from_raw_os_error(errno);
        let what = || format!("{}, call {nth}, {:?}: {errno_text}", self.name, failing.failed_call());
        let may_stop = || may_stop(failing.failed_call(), errno);
        let medium: Arc<dyn Medium> = failing.clone();
        let mut failed: Vec<Error> = Vec::new();
        let opened = open(&medium, &self.params, LEVELS, 5).or_else(|e| {
            failed.push(e);
            open(&medium, &self.params, LEVELS, 6)
        });
        let disk = opened.unwrap_or_else(|e| panic!("{}, opened again: {e}", what()));
        let mut played = CheckedDisk::new(disk, start.models.clone(), self.beats);
        let until_max_calls = |op: SweepOp| (failing.state.lock().calls.calls() <= MAX_CALLS).then_some(op);
        let script = SCRIPT.into_iter().cycle().map_while(until_max_calls).chain(FINAL_OPS);
        let (mut stopped, mut images) = (false, vec![]);
        for (op, stamp) in script.zip(1000..) {
            let Err(e) = played.perform(op, stamp) else { continue };
            failed.push(e);
            images.push((crashing.after_cut(&mut Rng::new(nth)), played.models.clone()));
            // The failed operation is repeated once.
            if let Err(e) = played.perform(op, stamp) {
                assert!(may_stop(), "{}: after one failed call every request fails: {e}", what());
                stopped = true;
                break;
            }
        }
        if !stopped {
            failing.pause(true);
            played.assert_allowed(&what());
            failing.pause(false);
        }
        match played.disk.close() {
            Ok(()) => {
                assert!(!stopped, "{}: the close succeeded although the disk had stopped", what());
                played.models.iter_mut().for_each(DiskModel::record_flush);
            }
            Err(e) => {
                failed.push(e);
                stopped |= may_stop();
            }
        }
        assert!(stopped || failed.len() <= 1, "{}: more than one request failed: {failed:?}", what());
        let (hit, calls) = (failing.failed_call(), failing.state.lock().calls.calls());
        if let Some(e) = failed.first() {
            // A disk that stopped without a waiting caller fails the next request.
            let is_reported = reports_failure(e, errno, hit == Some(OpKind::Sync))
                || (stopped && e.kind() == Kind::FailStop);
            assert!(is_reported, "{}: the caller gets {:?}: {e}", what(), e.kind());
        }
        let CheckedDisk { disk, levels, models, .. } = played;
        drop((disk, levels));
        images.push((crashing.after_cut(&mut Rng::new(nth)), models.clone()));
        images.push((crashing.image(), models));
        images.into_iter().for_each(|(image, models)| self.reopen(image, models, &what()));
        let end = match (stopped, failed.is_empty()) {
            (true, _) => ErrorEffect::Stopped,
            (false, true) => ErrorEffect::Unnoticed,
            (false, false) => ErrorEffect::Failed,
        };
        (end, calls, hit)
    }

    /// Opens an image of the medium, which may be that after a power cut, and checks all blocks.
    fn reopen(&self, image: MediumImage, models: Vec<DiskModel>, what: &str) {
        let medium: Arc<dyn Medium> = Arc::new(CrashMedium::from_image(image));
        let disk = open(&medium, &self.params, LEVELS, 7);
        let disk = disk.unwrap_or_else(|e| panic!("{what}, afterwards: {e}"));
        CheckedDisk::new(disk, models, self.beats).assert_allowed(what);
    }

    /// The calls that change the medium during a script of public operations, and of hidden
    /// operations on the open levels, with an error at the `nth` of these calls; and the call that
    /// failed. No operation is repeated.
    fn run_changes(
        &self,
        start: &UsedDisk,
        open_levels: usize,
        nth: u64,
        errno: i32,
    ) -> (Vec<MediumChange>, Option<OpKind>) {
        let failing =
            Arc::new(FailNthMedium::new(Arc::new(CrashMedium::from_image(start.image.clone())), true));
        failing.state.lock().calls.fail(nth, errno);
        let medium: Arc<dyn Medium> = failing.clone();
        let (params, beats) = (&self.params, self.beats);
        if let Some(disk) = (5..7).find_map(|seed| open(&medium, params, open_levels, seed).ok()) {
            let mut played = CheckedDisk::new(disk, start.models[..open_levels].to_vec(), beats);
            for (op, stamp) in SCRIPT.into_iter().zip(1000..) {
                let is_played = match op {
                    SweepOp::Write(level, ..) | SweepOp::Discard(level, ..) => level < open_levels,
                    // A flush of a hidden level needs beats, which are public.
                    SweepOp::Flush(level) => level == 0,
                    SweepOp::Beat => true,
                };
                if is_played {
                    let _refused = played.perform(op, stamp);
                }
            }
            // A hidden level with more pending data than closing covers ends the log earlier.
            let _refused = played.disk.cover_closing(Pace::Immediate);
        }
        let hit = failing.failed_call();
        let changes = std::mem::take(&mut failing.state.lock().changes);
        (changes, hit)
    }
}

/// Whether the disk may stop taking writes after this call: not after a refused call, and not after
/// a read.
fn may_stop(hit: Option<OpKind>, errno: i32) -> bool {
    hit.is_some_and(|hit| hit == OpKind::Sync || !(hit == OpKind::Read || is_refusal_errno(errno)))
}

/// A call that changes the medium, or failed to: its kind, offset and length.
type MediumChange = (OpKind, u64, u64);

/// A medium with one failing call. A failed write has written the first half of its batch.
struct FailNthMedium {
    inner: Arc<CrashMedium>,
    /// Whether reads are not counted.
    counts_changes_only: bool,
    state: Mutex<FailNthState>,
}

#[derive(Default)]
struct FailNthState {
    calls: NthCall<OpKind>,
    paused: bool,
    changes: Vec<MediumChange>,
}

impl FailNthMedium {
    fn new(inner: Arc<CrashMedium>, changes_alone: bool) -> FailNthMedium {
        FailNthMedium { inner, counts_changes_only: changes_alone, state: Mutex::default() }
    }

    /// Sets whether calls are neither counted nor fail.
    fn pause(&self, paused: bool) {
        self.state.lock().paused = paused;
    }

    fn failed_call(&self) -> Option<OpKind> {
        self.state.lock().calls.failed_call()
    }

    fn begin(&self, call: OpKind, offset: u64, len: u64) -> Result<()> {
        let mut watch = self.state.lock();
        let reads = call == OpKind::Read;
        if !reads {
            watch.changes.push((call, offset, len));
        }
        if watch.paused || (reads && self.counts_changes_only) {
            return Ok(());
        }
        watch.calls.begin(call, call == OpKind::Sync)
    }
}

/// The first half of a batch.
fn half<'a>(batch: &[WriteExtent<'a>]) -> Vec<WriteExtent<'a>> {
    if let [one] = batch {
        return vec![WriteExtent { offset: one.offset, data: &one.data[..one.data.len() / 1024 * 512] }];
    }
    let first = batch[..batch.len() / 2].iter();
    first.map(|extent| WriteExtent { offset: extent.offset, data: extent.data }).collect()
}

impl Medium for FailNthMedium {
    delegate_rest!(inner);

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.begin(OpKind::Read, 0, 0)?;
        self.inner.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let first = batch.first().map_or(0, |extent| extent.offset);
        let len = batch.iter().map(|extent| extent.data.len() as u64).sum();
        match self.begin(OpKind::Write, first, len) {
            Ok(()) => self.inner.write(batch),
            Err(e) => self.inner.write(&half(batch)).and(Err(e)),
        }
    }

    fn sync(&self) -> Result<()> {
        self.begin(OpKind::Sync, 0, 0)?;
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.begin(OpKind::Discard, offset, len)?;
        self.inner.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.begin(OpKind::SetLen, 0, len)?;
        self.inner.set_len(len)
    }
}
