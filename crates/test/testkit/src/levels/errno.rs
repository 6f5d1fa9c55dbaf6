//! A sweep over disks with levels: each errno at each call of the medium, between opening and
//! close.

use super::disks::{create, flush_hidden, models, open};
use lacuna_contracts::{BlockAddr, Disk, Error, Kind, Result};
use lacuna_levels::{LevelDisk, LevelFormat, Levels, Pace, level_disks};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use lacuna_sim::versions::{Model, run};
use lacuna_sim::{CrashMedium, Digest, Image, NthCall, OpKind, Rng, SWEPT, pass_on, refuses, swept, tells};
use parking_lot::Mutex;
use std::sync::Arc;

/// The number of levels that are created and opened.
const LEVELS: usize = 3;
/// The script ends after this many calls.
const ENOUGH: u64 = 240;
/// One in this many pairs of a call and an errno is tried, unless all are requested.
const SHARE: u64 = 53;

/// An operation of a level, given by its number, or of the disk.
#[derive(Clone, Copy)]
enum Op {
    /// The level, the first block and the number of blocks.
    Write(usize, u64, u64),
    Discard(usize, u64, u64),
    Flush(usize),
    /// A beat of the paced clock.
    Beat,
}

/// The script, which is repeated.
const WORK: [Op; 20] = [
    Op::Write(0, 3, 2),
    Op::Write(1, 3, 2),
    Op::Beat,
    Op::Write(0, 10, 9),
    Op::Flush(0),
    Op::Write(2, 1, 1),
    Op::Write(1, 20, 5),
    Op::Discard(0, 4, 3),
    Op::Write(0, 0, 12),
    Op::Flush(1),
    Op::Discard(1, 20, 2),
    Op::Write(0, 5, 6),
    Op::Beat,
    Op::Write(0, 30, 20),
    Op::Write(1, 0, 4),
    Op::Discard(0, 30, 10),
    Op::Flush(0),
    Op::Flush(2),
    Op::Write(2, 2, 1),
    Op::Write(0, 2, 3),
];
/// The end of the script.
const ENDING: [Op; 3] = [Op::Flush(1), Op::Flush(2), Op::Flush(0)];

/// A sweep over disks of one format.
pub struct Sweep<F> {
    /// The name of the format.
    pub name: &'static str,
    /// The parameters of the disk. Only the script beats its paced clock.
    pub params: F,
    /// The most beats that a flush of a hidden level takes.
    pub beats: u64,
}

/// A disk that was used and not closed, with models of its levels.
struct Start {
    image: Image,
    models: Vec<Model>,
}

/// The effect of an error on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// No request failed.
    Unnoticed,
    /// One request failed.
    Failed,
    /// The disk took no more writes.
    Stopped,
}

/// An open disk, its levels, and a model of each.
struct Played<D> {
    disk: Arc<D>,
    levels: Vec<Arc<LevelDisk>>,
    models: Vec<Model>,
    beats: u64,
}

impl<D: Levels + 'static> Played<D> {
    fn new(disk: Arc<D>, models: Vec<Model>, beats: u64) -> Self {
        Played { levels: level_disks(&disk), disk, models, beats }
    }

    fn perform(&mut self, op: Op, stamp: u64) -> Result<()> {
        match op {
            Op::Write(level, first, count) => {
                let (first, count) = self.within(level, first, count);
                self.models[level].set(first, count, stamp);
                self.levels[level].write(BlockAddr(first), &run(first, count, stamp))
            }
            Op::Discard(level, first, count) => {
                let (first, count) = self.within(level, first, count);
                self.models[level].set(first, count, 0);
                self.levels[level].discard(BlockAddr(first), count)
            }
            Op::Flush(0) => self.levels[0].flush().map(|()| self.models[0].flushed()),
            Op::Flush(level) => {
                flush_hidden(&*self.disk, &self.levels[level], self.beats)?;
                // Making hidden data durable makes the public data before it durable as well.
                self.models[0].flushed();
                self.models[level].flushed();
                Ok(())
            }
            Op::Beat => self.disk.refresh().map(|()| self.models[0].flushed()),
        }
    }

    /// Clips a range to a level.
    fn within(&self, level: usize, first: u64, count: u64) -> (u64, u64) {
        let blocks = self.models[level].blocks();
        let first = first.min(blocks - 1);
        (first, count.min(blocks - first))
    }

    fn assert_allowed(&self, what: &str) {
        for (level, model) in self.levels.iter().zip(&self.models) {
            model.allows(&**level, 0..model.blocks()).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
}

impl<F: LevelFormat> Sweep<F> {
    /// Checks the effect of each error. A refused call, or a failed read, fails at most one
    /// request, and the disk goes on. After another error of the medium, or of a sync, the disk
    /// takes no more writes. Flushed data is there afterwards, also if the power is cut after the
    /// failed request or at the end. The caller gets the error of the call. `LACUNA_SWEEP` requests
    /// every error at every call.
    ///
    /// # Panics
    ///
    /// If any of this does not hold.
    pub fn nothing_stops_or_is_lost_that_must_not(&self) {
        let all = std::env::var_os("LACUNA_SWEEP").is_some();
        let start = self.start();
        let (end, calls, hit) = self.run(&start, 0, 0);
        assert_eq!((end, hit), (End::Unnoticed, None), "{}: nothing was to fail", self.name);
        assert!(calls >= 40, "{}: {calls} calls", self.name);
        let (mut ends, mut runs, mut digest) = ([0u64; 3], 0, Digest::new());
        for (nth, errno) in swept(calls, (!all).then_some(SHARE)) {
            let (end, _, hit) = self.run(&start, nth, errno);
            assert!(hit.is_some(), "{}: call {nth} never came", self.name);
            ends[end as usize] += 1;
            runs += 1;
            digest.word(nth << 16 | (errno as u64) << 8 | end as u64);
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
    pub fn what_an_error_leaves_is_public(&self) {
        let start = self.start();
        let (changes, _) = self.changes(&start, 1, 0, 0);
        let mut differ = false;
        for nth in (0..=changes.len() as u64).step_by(5) {
            // EIO and ENOSPC.
            for errno in [SWEPT[0], SWEPT[1]] {
                let (alone, hit) = self.changes(&start, 1, nth, errno);
                let (busy, _) = self.changes(&start, LEVELS, nth, errno);
                assert!(alone == busy, "{}: call {nth} fails with {errno}: hidden levels show", self.name);
                assert_eq!(hit.is_some(), nth > 0, "{}: call {nth}", self.name);
                differ |= alone != changes;
            }
        }
        assert!(differ, "{}: no error left anything", self.name);
    }

    /// Checks that a close with a refused call leaves the same medium operations and the same
    /// outcome, whether or not hidden data is pending.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn a_refused_closing_shows_nothing_pending(&self) {
        let start = self.start();
        let undisturbed = self.closing(&start, false, 0);
        assert_eq!(undisturbed.1, None, "{}: nothing was to fail", self.name);
        let mut differ = false;
        for nth in (1..=undisturbed.0.len() as u64).step_by(7) {
            let [idle, pending] = [false, true].map(|pending| self.closing(&start, pending, nth));
            assert!(idle == pending, "{}: call {nth} of a closing: what is pending shows", self.name);
            differ |= idle.0 != undisturbed.0;
        }
        assert!(differ, "{}: no refusal left anything", self.name);
    }

    /// The calls of a close that change the medium, with the `nth` refused, and the outcome of the
    /// close.
    fn closing(&self, start: &Start, pending: bool, nth: u64) -> (Vec<Change>, Option<Kind>) {
        let failing = Arc::new(Failing::new(Arc::new(CrashMedium::from_image(start.image.clone())), true));
        let medium: Arc<dyn Medium> = failing.clone();
        let disk = open(&medium, &self.params, LEVELS, 5).unwrap();
        let mut played = Played::new(disk, start.models.clone(), self.beats);
        played.perform(Op::Write(0, 3, 2), 1000).unwrap();
        if pending {
            played.perform(Op::Write(1, 3, 2), 1001).unwrap();
        }
        failing.watch.lock().changes.clear();
        // ENOSPC.
        failing.watch.lock().calls.fail(nth, SWEPT[1]);
        let ended = played.disk.close().err().map(|e| e.kind());
        let changes = std::mem::take(&mut failing.watch.lock().changes);
        (changes, ended)
    }

    /// A disk with all levels written and flushed, after one session that was closed and one that
    /// was not.
    fn start(&self) -> Start {
        let medium = Arc::new(CrashMedium::new(self.params.end()));
        let shared: Arc<dyn Medium> = medium.clone();
        create(&shared, &self.params, LEVELS, 1).unwrap();
        let mut models = models(&*open(&shared, &self.params, LEVELS, 1).unwrap());
        for session in 0..2 {
            let disk = open(&shared, &self.params, LEVELS, 2 + session).unwrap();
            let mut played = Played::new(disk, models, self.beats);
            for (op, stamp) in WORK.into_iter().chain(ENDING).zip(1 + 50 * session..) {
                played.perform(op, stamp).unwrap();
            }
            if session == 0 {
                played.disk.close().unwrap();
            }
            models = played.models;
        }
        Start { image: medium.image(), models }
    }

    /// Runs the script with an error at call `nth`. Returns its effect, the number of calls, and
    /// the call that failed.
    fn run(&self, start: &Start, nth: u64, errno: i32) -> (End, u64, Option<OpKind>) {
        let crashing = Arc::new(CrashMedium::from_image(start.image.clone()));
        let failing = Arc::new(Failing::new(crashing.clone(), false));
        failing.watch.lock().calls.fail(nth, errno);
        let said = std::io::Error::from_raw_os_error(errno);
        let what = || format!("{}, call {nth}, {:?}: {said}", self.name, failing.hit());
        let may_stop = || may_stop(failing.hit(), errno);
        let medium: Arc<dyn Medium> = failing.clone();
        let mut failed: Vec<Error> = Vec::new();
        let opened = open(&medium, &self.params, LEVELS, 5).or_else(|e| {
            failed.push(e);
            open(&medium, &self.params, LEVELS, 6)
        });
        let disk = opened.unwrap_or_else(|e| panic!("{}, opened again: {e}", what()));
        let mut played = Played::new(disk, start.models.clone(), self.beats);
        let goes_on = |op: Op| (failing.watch.lock().calls.calls() <= ENOUGH).then_some(op);
        let script = WORK.into_iter().cycle().map_while(goes_on).chain(ENDING);
        let (mut stopped, mut left) = (false, vec![]);
        for (op, stamp) in script.zip(1000..) {
            let Err(e) = played.perform(op, stamp) else { continue };
            failed.push(e);
            left.push((crashing.after_cut(&mut Rng::new(nth)), played.models.clone()));
            // The failed operation is repeated once.
            if let Err(e) = played.perform(op, stamp) {
                assert!(may_stop(), "{}: one call failed, and then everything: {e}", what());
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
                assert!(!stopped, "{}: closed as if nothing had been", what());
                played.models.iter_mut().for_each(Model::flushed);
            }
            Err(e) => {
                failed.push(e);
                stopped |= may_stop();
            }
        }
        assert!(stopped || failed.len() <= 1, "{}: more than one request failed: {failed:?}", what());
        let (hit, calls) = (failing.hit(), failing.watch.lock().calls.calls());
        if let Some(e) = failed.first() {
            // A disk that stopped without a waiting caller fails the next request.
            let told = tells(e, errno, hit == Some(OpKind::Sync)) || (stopped && e.kind() == Kind::FailStop);
            assert!(told, "{}: the caller learns {:?}: {e}", what(), e.kind());
        }
        let Played { disk, levels, models, .. } = played;
        drop((disk, levels));
        left.push((crashing.after_cut(&mut Rng::new(nth)), models.clone()));
        left.push((crashing.image(), models));
        left.into_iter().for_each(|(image, models)| self.reopen(image, models, &what()));
        let end = match (stopped, failed.is_empty()) {
            (true, _) => End::Stopped,
            (false, true) => End::Unnoticed,
            (false, false) => End::Failed,
        };
        (end, calls, hit)
    }

    /// Opens an image of the medium, which may be that after a power cut, and checks all blocks.
    fn reopen(&self, image: Image, models: Vec<Model>, what: &str) {
        let medium: Arc<dyn Medium> = Arc::new(CrashMedium::from_image(image));
        let disk = open(&medium, &self.params, LEVELS, 7);
        let disk = disk.unwrap_or_else(|e| panic!("{what}, afterwards: {e}"));
        Played::new(disk, models, self.beats).assert_allowed(what);
    }

    /// The calls that change the medium during a script of public operations, and of hidden
    /// operations on the open levels, with an error at the `nth` of these calls; and the call that
    /// failed. No operation is repeated.
    fn changes(
        &self,
        start: &Start,
        open_levels: usize,
        nth: u64,
        errno: i32,
    ) -> (Vec<Change>, Option<OpKind>) {
        let failing = Arc::new(Failing::new(Arc::new(CrashMedium::from_image(start.image.clone())), true));
        failing.watch.lock().calls.fail(nth, errno);
        let medium: Arc<dyn Medium> = failing.clone();
        let (params, beats) = (&self.params, self.beats);
        if let Some(disk) = (5..7).find_map(|seed| open(&medium, params, open_levels, seed).ok()) {
            let mut played = Played::new(disk, start.models[..open_levels].to_vec(), beats);
            for (op, stamp) in WORK.into_iter().zip(1000..) {
                let is_played = match op {
                    Op::Write(level, ..) | Op::Discard(level, ..) => level < open_levels,
                    // A flush of a hidden level needs beats, which are public.
                    Op::Flush(level) => level == 0,
                    Op::Beat => true,
                };
                if is_played {
                    let _refused = played.perform(op, stamp);
                }
            }
            // A hidden level with more pending data than closing covers ends the log earlier.
            let _refused = played.disk.cover_closing(Pace::AtOnce);
        }
        let hit = failing.hit();
        let changes = std::mem::take(&mut failing.watch.lock().changes);
        (changes, hit)
    }
}

/// Whether the disk may stop taking writes after this call: not after a refused call, and not after
/// a read.
fn may_stop(hit: Option<OpKind>, errno: i32) -> bool {
    hit.is_some_and(|hit| hit == OpKind::Sync || !(hit == OpKind::Read || refuses(errno)))
}

/// A call that changes the medium, or failed to: its kind, offset and length.
type Change = (OpKind, u64, u64);

/// A medium with one failing call. A failed write has written the first half of its batch.
struct Failing {
    inner: Arc<CrashMedium>,
    /// Whether reads are not counted.
    changes_alone: bool,
    watch: Mutex<Watch>,
}

#[derive(Default)]
struct Watch {
    calls: NthCall<OpKind>,
    paused: bool,
    changes: Vec<Change>,
}

impl Failing {
    fn new(inner: Arc<CrashMedium>, changes_alone: bool) -> Failing {
        Failing { inner, changes_alone, watch: Mutex::default() }
    }

    /// Sets whether calls are neither counted nor fail.
    fn pause(&self, paused: bool) {
        self.watch.lock().paused = paused;
    }

    fn hit(&self) -> Option<OpKind> {
        self.watch.lock().calls.hit()
    }

    fn begin(&self, call: OpKind, offset: u64, len: u64) -> Result<()> {
        let mut watch = self.watch.lock();
        let reads = call == OpKind::Read;
        if !reads {
            watch.changes.push((call, offset, len));
        }
        if watch.paused || (reads && self.changes_alone) {
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

impl Medium for Failing {
    pass_on!(inner);

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
