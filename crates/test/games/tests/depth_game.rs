//! The games of the papers (PD-DM, section 2.2) against `oblivious` at every depth *d*. (For
//! `deniable` see `deniable_game.rs`.) The adversary has the keys of levels 0 to *d*. Neither the
//! existence nor the activity of a level *d* + 1 may show: not in the place, length or order of any
//! write, and not in any data that the keys decrypt. If that level had more pending data than
//! closing covers, its game ends like a game without it on a medium that fails at that moment.
//! Without threads everything is compared. With threads, on a slow medium, only the data that the
//! keys decrypt is compared, batch by batch, because the order of writes in place depends on speed.
//!
//! `LACUNA_GAMES` sets the games of each kind (default 4), `LACUNA_SEED` the first seed (default
//! 1). With threads there is no digest.

#[path = "../../../formats/oblivious/tests/fixture/mod.rs"]
mod fixture;
#[path = "oblivious_view/mod.rs"]
mod view;

use fixture::{UUID, counter, create, master_keys, open_with, options};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_games::{SeedReporter, game_seeds};
use lacuna_levels::Pace;
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{HidingMode, LevelDisk, Levels, ObliviousDisk, OpenOptions, Params, Plan};
use lacuna_sim::{Fault, FaultMedium, OpKind, Recorder, Rng, SlowMedium};
use lacuna_testkit::StopAtEnd;
use lacuna_testkit::levels::UpperLevels;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use view::{ByteHistogram, DecryptedWrite, ObservedOp, TraceObserver};

fn params(hiding: HidingMode) -> Params {
    Params::plan(12 << 20, Plan { hiding, operations: 8, ..Plan::DEFAULT }).unwrap()
}

const SESSIONS: usize = 3;

struct DepthGame {
    params: Params,
    depth: usize,
    above: UpperLevels,
    threads: bool,
    recorder: Arc<Recorder<MemoryMedium>>,
    /// Lies above the recorder, so failed writes are not recorded.
    faulty: Arc<FaultMedium<Recorder<MemoryMedium>>>,
    /// For each session, whether closing failed.
    failed_closes: [bool; SESSIONS],
    observer: TraceObserver,
}

impl DepthGame {
    fn new(params: &Params, depth: usize, above: UpperLevels, threads: bool, seed: u64) -> DepthGame {
        // The game compares data from public randomness byte for byte, and hedging would change it.
        lacuna_crypto::nonce_log::disable_hedging();
        let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.end()))));
        recorder.keep_contents(true);
        let observer = TraceObserver::new(params, &master_keys(depth + 1), &UUID);
        let faulty = Arc::new(FaultMedium::new(recorder.clone()));
        let failed = [false; SESSIONS];
        let game = DepthGame {
            params: *params,
            depth,
            above,
            threads,
            recorder,
            faulty,
            failed_closes: failed,
            observer,
        };
        let medium: Arc<dyn Medium> = game.recorder.clone();
        create(&medium, params, game.levels(), seed).unwrap();
        game
    }

    fn levels(&self) -> usize {
        self.depth + if self.above == UpperLevels::Absent { 1 } else { 2 }
    }

    fn open(&self, seed: u64) -> Arc<ObliviousDisk> {
        let filler = seed << 4 | self.above as u64;
        let options = OpenOptions { background: self.threads, ..options(seed, filler) };
        let mut medium: Arc<dyn Medium> = self.faulty.clone();
        if self.threads {
            medium = SlowMedium::wrap(medium, filler);
        }
        open_with(&medium, &self.params, self.levels(), options).unwrap()
    }

    /// Plays three sessions. The medium fails at the end of `failing` sessions.
    fn play(mut self, seed: u64, failing: [bool; SESSIONS]) -> DepthGame {
        let mut lower = Rng::new(seed);
        for session in 0..3 {
            let disk = self.open(seed + session);
            let mut upper = Rng::new(!(seed + session));
            if session == 0 && self.above == UpperLevels::Full {
                let level = &disk.levels()[self.depth + 1];
                // After the queue is full, writes are refused.
                let _no_cover = (0..level.blocks()).try_for_each(|at| write(level, at, 1, &mut upper));
            }
            // On a plausible disk every operation of every level counts, so their order is part of
            // the play, and they cannot run concurrently.
            if self.threads && self.params.plan.hiding == HidingMode::Opportunistic {
                self.run_in_threads(&disk, &mut lower, upper);
            } else {
                self.run_in_turns(&disk, &mut lower, upper);
            }
            self.failed_closes[session as usize] = self.close(&disk, session, failing[session as usize]);
            drop(disk);
            self.observer.observe(self.recorder.take());
        }
        self
    }

    /// Closes the disk. If it `fails`, the medium refuses the end of the journal. Returns whether
    /// the close failed.
    fn close(&self, disk: &Arc<ObliviousDisk>, session: u64, fails: bool) -> bool {
        disk.cover_closing(Pace::Immediate).unwrap();
        let busy = matches!(self.above, UpperLevels::Busy | UpperLevels::Full);
        if busy && session == 1 && self.params.plan.hiding == HidingMode::Opportunistic {
            // A write after the cover of the close: no batch takes it.
            let _full = write(&disk.levels()[self.depth + 1], 0, 1, &mut Rng::new(session));
        }
        if fails {
            self.faulty.add(Fault::FailFrom { op: OpKind::Write, nth: 1, error: Kind::Io });
        }
        let closed = disk.close();
        self.faulty.heal();
        closed.is_err()
    }

    fn run_in_turns(&mut self, disk: &Arc<ObliviousDisk>, lower: &mut Rng, mut upper: Rng) {
        // The turns are the same in every game, so that the public reads that explain them are too.
        let mut turns = Rng::new(upper.next_u64());
        for _ in 0..70 {
            step(disk, self.depth, lower);
            let turn = UpperOp::draw(&mut turns);
            match self.above {
                UpperLevels::Busy | UpperLevels::Full | UpperLevels::Leaky => {
                    turn.perform(&disk.levels()[self.depth + 1], &mut upper);
                }
                _ if self.params.plan.hiding == HidingMode::Plausible => turn.read_as_cover(disk, &mut upper),
                _ => {}
            }
            if self.above == UpperLevels::Leaky
                && counter(&disk.levels()[self.depth + 1], "waiting_for_cover") > 0
            {
                disk.refresh().unwrap();
            }
            self.observer.observe(self.recorder.take());
        }
    }

    fn run_in_threads(&mut self, disk: &Arc<ObliviousDisk>, lower: &mut Rng, mut upper: Rng) {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if matches!(self.above, UpperLevels::Busy | UpperLevels::Full | UpperLevels::Leaky) {
                scope.spawn(|| {
                    let level = &disk.levels()[self.depth + 1];
                    while !done.load(Ordering::Relaxed) {
                        UpperOp::draw(&mut upper).perform(level, &mut upper);
                        if self.above == UpperLevels::Leaky && upper.chance(1, 50) {
                            disk.refresh().unwrap();
                        }
                    }
                });
            }
            let _stop = StopAtEnd(&done);
            (0..100).for_each(|_| step(disk, self.depth, lower));
        });
    }

    /// The part of the trace that is compared: without threads everything; with threads the
    /// decrypted content of ring and journal.
    fn compared_trace(&self) -> Vec<&ObservedOp> {
        let opened = |seen: &&ObservedOp| {
            matches!(seen.decrypted, DecryptedWrite::Head(..) | DecryptedWrite::Record(_))
        };
        self.observer.trace.iter().filter(|seen| !self.threads || opened(seen)).collect()
    }
}

fn write(level: &LevelDisk, first: u64, count: u64, rng: &mut Rng) -> Result<()> {
    level.write(BlockAddr(first), &rng.bytes(count as usize * BLOCK_SIZE))
}

fn allow_no_cover(done: &Result<()>) {
    assert!(done.as_ref().is_ok() || done.as_ref().is_err_and(|e| e.kind() == Kind::NoCover), "{done:?}");
}

/// An operation on one of the levels up to the depth.
fn step(disk: &Arc<ObliviousDisk>, depth: usize, rng: &mut Rng) {
    let levels = disk.levels();
    let at = if rng.chance(2, 3) { 0 } else { rng.below(depth as u64 + 1) as usize };
    let level = &levels[at];
    let count = 1 + rng.below(6.min(level.blocks() - 1));
    let first = rng.below(level.blocks() - count);
    match rng.below(10) {
        0..6 => allow_no_cover(&write(level, first, count, rng)),
        6 => allow_no_cover(&level.discard(BlockAddr(first), count)),
        7 => allow_no_cover(&level.flush()),
        8 => disk.refresh().unwrap(),
        _ => level.read(BlockAddr(first), &mut vec![0; count as usize * BLOCK_SIZE]).unwrap(),
    }
}

/// An operation on the level above the depth.
#[derive(Clone, Copy, PartialEq)]
enum UpperOp {
    Write(u64),
    Read(u64),
    Discard,
    Flush,
}

impl UpperOp {
    fn draw(rng: &mut Rng) -> UpperOp {
        let count = 1 + rng.below(4);
        match rng.below(8) {
            0..4 => UpperOp::Write(count),
            4..6 => UpperOp::Read(count),
            6 => UpperOp::Discard,
            _ => UpperOp::Flush,
        }
    }

    fn perform(self, level: &LevelDisk, rng: &mut Rng) {
        let first = rng.below(level.blocks() - 4);
        match self {
            UpperOp::Write(count) => allow_no_cover(&write(level, first, count, rng)),
            UpperOp::Read(count) => {
                level.read(BlockAddr(first), &mut vec![0; count as usize * BLOCK_SIZE]).unwrap();
            }
            UpperOp::Discard => allow_no_cover(&level.discard(BlockAddr(first), 3)),
            UpperOp::Flush => allow_no_cover(&level.flush()),
        }
    }

    /// Makes the reads of level 0 that explain this operation on a plausible disk. A flush has no
    /// effect.
    fn read_as_cover(self, disk: &Arc<ObliviousDisk>, rng: &mut Rng) {
        let level = &disk.levels()[0];
        let count = match self {
            UpperOp::Write(count) | UpperOp::Read(count) => count,
            UpperOp::Discard => disk.params().batch_blocks().div_ceil(4) as u64,
            UpperOp::Flush => return,
        };
        let first = rng.below(level.blocks() - count);
        level.read(BlockAddr(first), &mut vec![0; count as usize * BLOCK_SIZE]).unwrap();
    }
}

fn difference(one: &[&ObservedOp], other: &[&ObservedOp]) -> Option<String> {
    if let Some(at) = one.iter().zip(other).position(|(a, b)| a != b) {
        let (a, b) = (one[at].visible_part(), other[at].visible_part());
        let opened = if a == b { ", in the blocks that the keys open" } else { "" };
        return Some(format!("operation {at}: {a:?} against {b:?}{opened}"));
    }
    (one.len() != other.len()).then(|| format!("{} operations against {}", one.len(), other.len()))
}

fn play(hiding: HidingMode, threads: bool) {
    let (params, seeds) = (params(hiding), game_seeds(1, 4));
    for depth in 0..3 {
        let (mut rest, mut endings) = (ByteHistogram::default(), [0u64; 2]);
        let mut digest = DefaultHasher::new();
        for seed in seeds.clone() {
            let _seed = SeedReporter(seed);
            let of = |above, failing| {
                DepthGame::new(&params, depth, above, threads, seed * 1000).play(seed * 1000, failing)
            };
            for above in [UpperLevels::Idle, UpperLevels::Busy, UpperLevels::Full] {
                // A full level is filled before level 0 is used. On a plausible disk the fill would
                // count as operations, which the game without it does not make.
                if hiding == HidingMode::Plausible && above == UpperLevels::Full {
                    continue;
                }
                let game = of(above, [false; SESSIONS]);
                let absent = of(UpperLevels::Absent, game.failed_closes);
                assert_eq!(game.failed_closes, absent.failed_closes, "the caller hears of both alike");
                game.failed_closes.iter().for_each(|failed| endings[usize::from(*failed)] += 1);
                let found = difference(&absent.compared_trace(), &game.compared_trace());
                assert_eq!(found, None, "depth {depth}, seed {seed}, {above:?}");
                rest.add(&game.observer.undecrypted);
                game.compared_trace().iter().for_each(|seen| seen.visible_part().hash(&mut digest));
            }
        }
        rest.assert_uniform("the blocks that the keys do not open");
        let digest = if threads { "none".to_owned() } else { format!("{:016x}", digest.finish()) };
        println!(
            "{hiding:?}, depth {depth}, seed {}: {} endings, {} of them with a loss, digest {digest}",
            seeds.start,
            endings[0] + endings[1],
            endings[1]
        );
        // On a plausible disk every operation counts, so batches come often enough to lose nothing.
        let lossless = hiding == HidingMode::Plausible;
        assert!(endings[0] > 0 && (lossless || endings[1] > 0), "depth {depth}: {endings:?}");
    }
}

#[test]
fn operations_above_a_depth_leave_no_trace() {
    play(HidingMode::Opportunistic, false);
}

#[test]
fn operations_above_a_depth_look_like_public_reads() {
    play(HidingMode::Plausible, false);
}

#[test]
fn with_threads_decrypted_content_hides_operations_above_a_depth() {
    play(HidingMode::Opportunistic, true);
}

#[test]
fn with_threads_operations_above_a_depth_look_like_public_reads() {
    play(HidingMode::Plausible, true);
}

#[test]
fn a_disk_that_writes_for_a_level_above_is_caught() {
    let params = params(HidingMode::Opportunistic);
    for threads in [false, true] {
        for depth in 0..3 {
            let caught = (1..=3).filter(|seed| {
                let [absent, leaky] = [UpperLevels::Absent, UpperLevels::Leaky].map(|above| {
                    let game = DepthGame::new(&params, depth, above, threads, seed * 1000);
                    game.play(seed * 1000, [false; SESSIONS])
                });
                difference(&absent.compared_trace(), &leaky.compared_trace()).is_some()
            });
            assert!(caught.count() > 1, "depth {depth}, threads {threads}");
        }
    }
}
