//! A power cut while a disk is closed, after a session with one hidden level mounted alone
//! (`lacuna open --level N`): all levels up to it are open, and only it has requests. The levels
//! are closed as the server closes them after an `umount`: the cover of the closing is written, the
//! level stops waiting for more, and all levels are closed, level 0 last.
//!
//! - After the cut the disk opens, and each open level has its flushed data.
//! - The keys of the levels below do not show whether the level exists or has data. The play is
//!   repeated without the level, with a cut at the same operation. Until the cut, both plays make
//!   the same calls that change the medium. After it, the same pages have changed. The keys of the
//!   levels below open both media with the same calls, and show the same counters and contents.
//! - If the level loses data at the end, the calls are a beginning of the calls without the level,
//!   as if the medium failed at that moment.
//!
//! `LACUNA_GAMES` sets the cuts of each format (default 200), `LACUNA_SEED` the seed of the first
//! disk (default 1).

#[path = "../../../formats/deniable/tests/fixture/mod.rs"]
mod deniable;
#[path = "../../../formats/oblivious/tests/fixture/mod.rs"]
mod oblivious;

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_games::{SeedReporter, game_count};
use lacuna_levels::{LevelDisk, LevelFormat, Levels, Pace, level_disks};
use lacuna_medium::Medium;
use lacuna_sim::versions::{DiskModel, run_content};
use lacuna_sim::{CrashMedium, MediumImage, OpKind, Recorder, Rng, RunDigest, env_number};
use lacuna_testkit::levels::{counter, create, models, open};
use std::sync::Arc;

/// Beats of cover in a session: enough to make the blocks of its hidden levels durable.
const BEATS: u64 = 24;
/// The most cuts of one disk, spread over its close.
const CUTS_PER_DISK: u64 = 12;
/// The number of cuts that must catch a faulty disk.
const CONTROL_CUTS: u64 = 240;

/// A result, or a description of the violation.
type CheckedResult<T> = std::result::Result<T, String>;

/// A call that changes the medium: its kind, offset and length, and whether it succeeded.
type ChangingCall = (OpKind, u64, u64, bool);

/// The use of the level that is mounted alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LevelUse {
    /// The level does not exist.
    Absent,
    /// It gets no requests.
    Idle,
    /// All of its data is durable when the closing begins.
    Flushed,
    /// Some of its blocks are pending then.
    Pending,
    /// The same, and one more block is written after the cover of the closing.
    Overfull,
}

impl LevelUse {
    /// The uses of a level that exists.
    const PRESENT: [LevelUse; 4] = [LevelUse::Idle, LevelUse::Flushed, LevelUse::Pending, LevelUse::Overfull];

    fn has_requests(self) -> bool {
        !matches!(self, LevelUse::Absent | LevelUse::Idle)
    }
}

/// The deliberate fault of the disks in a control game.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClosingFault {
    /// Syncs of the medium do nothing.
    IgnoresSyncs,
    /// The disk writes once more if hidden data is pending when the closing begins.
    WritesForPending,
}

/// The public history of a disk, with or without the level.
struct PublicHistory {
    seed: u64,
    /// The number of the level that is mounted alone. The adversary has the keys of all below it.
    alone: usize,
    /// Blocks that the first session writes to level 0.
    writes: u64,
    /// Whether the first session ends with a close.
    is_closed: bool,
}

impl PublicHistory {
    fn draw(seed: u64) -> (PublicHistory, Rng) {
        let mut rng = Rng::new(seed);
        let alone = 1 + rng.below(2) as usize;
        // Often more than a lap of the log of `deniable`, so that its stripes carry blocks.
        let (writes, is_closed) = (20 + rng.below(700), rng.chance(1, 2));
        (PublicHistory { seed: seed * 1000, alone, writes, is_closed }, rng)
    }
}

/// A disk after its first session, and the contents of its levels, which are all flushed.
struct FirstSession {
    image: MediumImage,
    models: Vec<DiskModel>,
}

/// The second session, after its close or the power cut.
struct ClosedSession {
    medium: Arc<CrashMedium>,
    models: Vec<DiskModel>,
    /// The calls of the close.
    calls: Vec<ChangingCall>,
    /// The number of medium operations of the close.
    operations: u64,
    /// The error of the close, if it failed.
    failure: Option<Kind>,
}

/// A power cut: the use of the level, the operation of the close, and a seed for the lost writes.
struct ClosingCut {
    used: LevelUse,
    at: u64,
    loss: u64,
}

/// Everything that an adversary with the keys of the levels below sees after a cut.
#[derive(PartialEq)]
struct LowerView {
    /// The pages that changed since the first session.
    pages: Vec<u64>,
    /// The calls of the opening with these keys.
    calls: Vec<ChangingCall>,
    counters: Vec<(&'static str, u64)>,
    /// A digest of the contents of the levels below.
    contents: u64,
}

/// The results of a game.
#[derive(Default)]
struct CutResults {
    cuts: u64,
    disks: u64,
    /// Whole closes that lost data of the level.
    losses: u64,
    digest: RunDigest,
    violation: Option<String>,
}

/// The game against one format.
struct ClosingGame<F> {
    name: &'static str,
    params: F,
    fault: Option<ClosingFault>,
}

impl<F: LevelFormat> ClosingGame<F> {
    /// Plays `cuts` power cuts, or fewer if there is a violation. The seeds of the disks count up
    /// from `first`.
    fn play(&self, first: u64, cuts: u64) -> CutResults {
        let mut results = CutResults::default();
        while results.cuts < cuts && results.violation.is_none() {
            let seed = first + results.disks;
            let _seed = SeedReporter(seed);
            results.disks += 1;
            let played = self.play_disk(seed, cuts - results.cuts, &mut results);
            results.violation = played
                .err()
                .map(|wrong| format!("seed {seed}, {wrong}; LACUNA_SEED={seed} plays that disk first"));
        }
        results
    }

    /// Plays the close of one disk, whole and with at most `left` cuts.
    fn play_disk(&self, seed: u64, left: u64, results: &mut CutResults) -> CheckedResult<()> {
        let (history, mut rng) = PublicHistory::draw(seed);
        let disks = [history.alone, history.alone + 1].map(|levels| self.first_session(&history, levels));
        let [without, with] = &disks;
        let absent = self.last_session(without, &history, LevelUse::Absent, None);
        let mut uses = Vec::new();
        for used in LevelUse::PRESENT {
            let present = self.last_session(with, &history, used, None);
            compare_whole(&absent, &present).map_err(|wrong| format!("{used:?}: {wrong}"))?;
            results.losses += u64::from(present.failure.is_some());
            uses.push((used, present.operations));
        }
        let step = absent.operations.div_ceil(CUTS_PER_DISK);
        let spread = (rng.below(step)..absent.operations).step_by(step as usize);
        for at in spread.take(left as usize) {
            // A close that loses data is shorter.
            let (used, operations) = *rng.pick(&uses);
            let cut = ClosingCut { used, at: at % operations, loss: rng.next_u64() };
            let played = self.play_cut(&disks, &history, &cut, &mut results.digest);
            played.map_err(|wrong| format!("{used:?}, cut at operation {}: {wrong}", cut.at))?;
            results.cuts += 1;
        }
        Ok(())
    }

    /// A new disk after a session on all of its levels.
    fn first_session(&self, history: &PublicHistory, levels: usize) -> FirstSession {
        let memory = Arc::new(CrashMedium::new(self.params.end()));
        let medium: Arc<dyn Medium> = memory.clone();
        create(&medium, &self.params, levels, history.seed).unwrap();
        let disk = open(&medium, &self.params, levels, history.seed + 1).unwrap();
        let (levels, mut models) = (level_disks(&disk), models(&*disk));
        let public = models[0].blocks();
        for n in 0..history.writes {
            write(&levels[0], &mut models[0], n % public, 1, 1 + n).unwrap();
        }
        for (level, model) in levels.iter().zip(&mut models).skip(1) {
            write(level, model, 0, 3, 1).unwrap();
        }
        (0..BEATS).for_each(|_| disk.refresh().unwrap());
        levels.iter().for_each(|level| level.flush().unwrap());
        models.iter_mut().for_each(DiskModel::record_flush);
        if history.is_closed {
            disk.close().unwrap();
        }
        FirstSession { image: memory.image(), models }
    }

    /// The session with the level mounted alone, and its close. The power is cut after `cut`
    /// operations of the close.
    fn last_session(
        &self,
        start: &FirstSession,
        history: &PublicHistory,
        used: LevelUse,
        cut: Option<u64>,
    ) -> ClosedSession {
        let crashing = Arc::new(CrashMedium::from_image(start.image.clone()));
        crashing.ignore_syncs(self.fault == Some(ClosingFault::IgnoresSyncs));
        let recorder = Arc::new(Recorder::new(Arc::clone(&crashing)));
        let medium: Arc<dyn Medium> = recorder.clone();
        let disk = open(&medium, &self.params, start.models.len(), history.seed + 2).unwrap();
        let (levels, mut models, alone) = (level_disks(&disk), start.models.clone(), history.alone);
        if used.has_requests() {
            write(&levels[alone], &mut models[alone], 0, 3, 1000).unwrap();
        }
        (0..BEATS).for_each(|_| disk.refresh().unwrap());
        if used.has_requests() {
            levels[alone].flush().unwrap();
            models[alone].record_flush();
        }
        if matches!(used, LevelUse::Pending | LevelUse::Overfull) {
            write(&levels[alone], &mut models[alone], 2, 3, 2000).unwrap();
        }
        recorder.take();
        let before = crashing.ops();
        crashing.cut_after(cut.unwrap_or(u64::MAX));
        let leaks = self.fault == Some(ClosingFault::WritesForPending) && used.has_requests();
        if leaks && counter(&levels[alone], "waiting_for_cover") > 0 {
            let _cut = disk.refresh();
        }
        // Closing level 0 reports a failure.
        let _told = disk.cover_closing(Pace::Immediate);
        if used != LevelUse::Absent {
            disk.set_no_wait(alone as u8, true);
        }
        if used == LevelUse::Overfull {
            // After a cut it is refused.
            let _refused = write(&levels[alone], &mut models[alone], 5, 1, 3000);
        }
        let failure = close_levels(&levels, &mut models, alone);
        let (calls, operations) = (changing_calls(&recorder), crashing.ops() - before);
        ClosedSession { medium: crashing, models, calls, operations, failure }
    }

    /// Cuts the power at one operation of the close, with and without the level, and compares the
    /// calls and the media.
    fn play_cut(
        &self,
        [without, with]: &[FirstSession; 2],
        history: &PublicHistory,
        cut: &ClosingCut,
        digest: &mut RunDigest,
    ) -> CheckedResult<()> {
        let absent = self.last_session(without, history, LevelUse::Absent, Some(cut.at));
        let present = self.last_session(with, history, cut.used, Some(cut.at));
        if !absent.medium.is_cut() || absent.calls != present.calls {
            return Err("the calls before the cut show the level".into());
        }
        let [absent_image, present_image] =
            [&absent, &present].map(|session| session.medium.after_cut(&mut Rng::new(cut.loss)));
        self.check_data(&present_image, &present.models, history)?;
        let view = self.lower_view(without, absent_image, history)?;
        if view != self.lower_view(with, present_image, history)? {
            return Err("the medium shows the level after the cut".into());
        }
        absent.calls.iter().for_each(|(kind, offset, len, _)| {
            [*kind as u64, *offset, *len].into_iter().for_each(|word| digest.add_word(word));
        });
        view.pages.into_iter().chain([view.contents]).for_each(|word| digest.add_word(word));
        Ok(())
    }

    /// Checks that each level has its flushed data after a cut.
    fn check_data(
        &self,
        image: &MediumImage,
        models: &[DiskModel],
        history: &PublicHistory,
    ) -> CheckedResult<()> {
        let medium: Arc<dyn Medium> = Arc::new(CrashMedium::from_image(image.clone()));
        let disk = open(&medium, &self.params, models.len(), history.seed + 3);
        let disk = disk.map_err(|e| format!("it does not open: {e}"))?;
        for (level, model) in level_disks(&disk).iter().zip(models) {
            model.check_allowed(&**level, 0..model.blocks())?;
        }
        Ok(())
    }

    /// The view of an adversary with the keys of the levels below.
    fn lower_view(
        &self,
        start: &FirstSession,
        image: MediumImage,
        history: &PublicHistory,
    ) -> CheckedResult<LowerView> {
        let pages = start.image.changed_pages(&image);
        let recorder = Arc::new(Recorder::new(Arc::new(CrashMedium::from_image(image))));
        let medium: Arc<dyn Medium> = recorder.clone();
        let disk = open(&medium, &self.params, history.alone, history.seed + 4);
        let disk = disk.map_err(|e| format!("it does not open without the level: {e}"))?;
        let (mut counters, mut contents) = (Vec::new(), RunDigest::new());
        for level in level_disks(&disk) {
            counters.extend(level.status().items.iter().map(|item| (item.name, item.value)));
            let mut data = vec![0; level.blocks() as usize * BLOCK_SIZE];
            let read = level.read(BlockAddr(0), &mut data);
            read.map_err(|e| format!("level {} without the level above: {e}", level.level()))?;
            contents.add_bytes(&data);
        }
        Ok(LowerView { pages, calls: changing_calls(&recorder), counters, contents: contents.0 })
    }

    /// Plays the game, and prints its results.
    ///
    /// # Panics
    ///
    /// If there was a violation.
    fn assert_cuts_hide_level(&self) {
        let first = env_number("LACUNA_SEED", 1);
        let CutResults { cuts, disks, losses, digest, violation } = self.play(first, game_count(200));
        println!(
            "{}: {cuts} cuts of {disks} disks, seed {first}, {losses} whole closes with a loss, digest {:016x}",
            self.name, digest.0
        );
        if let Some(wrong) = violation {
            panic!("{}, {wrong}", self.name);
        }
        assert!(losses > 0, "{}: no close lost data", self.name);
    }
}

/// Writes blocks of a level with one stamp, and adds them to its model.
fn write(level: &LevelDisk, model: &mut DiskModel, first: u64, count: u64, stamp: u64) -> Result<()> {
    model.add_version(first, count, stamp);
    level.write(BlockAddr(first), &run_content(first, count, stamp))
}

/// The calls since the last call of this that change the medium.
fn changing_calls(recorder: &Recorder<CrashMedium>) -> Vec<ChangingCall> {
    let changing = recorder.take().into_iter().filter(|record| record.kind != OpKind::Read);
    changing.map(|record| (record.kind, record.offset, record.len, record.ok)).collect()
}

/// Closes the levels in the order of the server: hidden levels that are not mounted, then level
/// `alone` if it exists, then level 0. Returns the last error.
fn close_levels(levels: &[Arc<LevelDisk>], models: &mut [DiskModel], alone: usize) -> Option<Kind> {
    let mut failure = None;
    for number in (1..alone).rev().chain(alone..levels.len()).chain([0]) {
        match levels[number].close() {
            Ok(()) => models[number].record_flush(),
            Err(e) => failure = Some(e.kind()),
        }
    }
    failure
}

/// Compares two closes without a cut. A close that loses data ends earlier.
fn compare_whole(absent: &ClosedSession, present: &ClosedSession) -> CheckedResult<()> {
    let is_shorter = present.calls.len() < absent.calls.len() && absent.calls.starts_with(&present.calls);
    match (absent.failure, present.failure) {
        (None, None) if absent.calls == present.calls => Ok(()),
        (None, Some(Kind::NoCover)) if is_shorter => Ok(()),
        failures => Err(format!("the calls of a whole close show the level, or its errors do: {failures:?}")),
    }
}

fn deniable_game(fault: Option<ClosingFault>) -> ClosingGame<lacuna_deniable::Params> {
    ClosingGame { name: "deniable", params: deniable::params(), fault }
}

fn oblivious_game(fault: Option<ClosingFault>) -> ClosingGame<lacuna_oblivious::Params> {
    ClosingGame { name: "oblivious", params: oblivious::params(), fault }
}

/// Checks that the game catches faulty disks.
fn assert_faults_caught<F: LevelFormat>(game: impl Fn(Option<ClosingFault>) -> ClosingGame<F>) {
    for fault in [ClosingFault::IgnoresSyncs, ClosingFault::WritesForPending] {
        let results = game(Some(fault)).play(1, CONTROL_CUTS);
        let caught = results.violation.unwrap_or_else(|| panic!("{fault:?} was not detected"));
        println!("{fault:?}: caught after {} cuts, {caught}", results.cuts);
    }
}

fn assert_seed_determines_game<F: LevelFormat>(game: &ClosingGame<F>) {
    let digest = |seed| game.play(seed, 3).digest.0;
    assert_eq!(digest(9), digest(9));
    assert_ne!(digest(9), digest(10));
}

#[test]
fn a_cut_close_of_deniable_keeps_data_and_hides_the_level() {
    deniable_game(None).assert_cuts_hide_level();
}

#[test]
fn a_cut_close_of_oblivious_keeps_data_and_hides_the_level() {
    oblivious_game(None).assert_cuts_hide_level();
}

#[test]
fn the_game_catches_faulty_closes_of_deniable() {
    assert_faults_caught(deniable_game);
}

#[test]
fn the_game_catches_faulty_closes_of_oblivious() {
    assert_faults_caught(oblivious_game);
}

#[test]
fn the_same_seed_gives_the_same_cuts() {
    assert_seed_determines_game(&deniable_game(None));
    assert_seed_determines_game(&oblivious_game(None));
}
