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

use fixture::{UUID, counter, create, masters, open_with, options};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_games::{Seed, seeds};
use lacuna_levels::Pace;
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Hiding, LevelDisk, Levels, Oblivious, OpenOptions, Params, Plan};
use lacuna_sim::{Fault, FaultMedium, OpKind, Recorder, Rng, Slow};
use lacuna_testkit::StopAtEnd;
use lacuna_testkit::levels::Above;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use view::{Bytes, Observer, Seen, Shown};

fn params(hiding: Hiding) -> Params {
    Params::plan(12 << 20, Plan { hiding, operations: 8, ..Plan::DEFAULT }).unwrap()
}

const SESSIONS: usize = 3;

struct Game {
    params: Params,
    depth: usize,
    above: Above,
    threads: bool,
    recorder: Arc<Recorder<MemoryMedium>>,
    /// Lies above the recorder, so failed writes are not recorded.
    faulty: Arc<FaultMedium<Recorder<MemoryMedium>>>,
    /// For each session, whether closing failed.
    failed: [bool; SESSIONS],
    observer: Observer,
}

impl Game {
    fn new(params: &Params, depth: usize, above: Above, threads: bool, seed: u64) -> Game {
        // The game compares data from public randomness byte for byte, and hedging would change it.
        lacuna_crypto::witness::never_hedge();
        let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.end()))));
        recorder.keep_contents(true);
        let observer = Observer::new(params, &masters(depth + 1), &UUID);
        let faulty = Arc::new(FaultMedium::new(recorder.clone()));
        let failed = [false; SESSIONS];
        let game = Game { params: *params, depth, above, threads, recorder, faulty, failed, observer };
        let medium: Arc<dyn Medium> = game.recorder.clone();
        create(&medium, params, game.levels(), seed).unwrap();
        game
    }

    fn levels(&self) -> usize {
        self.depth + if self.above == Above::Absent { 1 } else { 2 }
    }

    fn open(&self, seed: u64) -> Arc<Oblivious> {
        let filler = seed << 4 | self.above as u64;
        let options = OpenOptions { background: self.threads, ..options(seed, filler) };
        let mut medium: Arc<dyn Medium> = self.faulty.clone();
        if self.threads {
            medium = Slow::over(medium, filler);
        }
        open_with(&medium, &self.params, self.levels(), options).unwrap()
    }

    /// Plays three sessions. The medium fails at the end of `failing` sessions.
    fn play(mut self, seed: u64, failing: [bool; SESSIONS]) -> Game {
        let mut lower = Rng::new(seed);
        for session in 0..3 {
            let disk = self.open(seed + session);
            let mut upper = Rng::new(!(seed + session));
            if session == 0 && self.above == Above::Full {
                let level = &disk.levels()[self.depth + 1];
                // After the queue is full, writes are refused.
                let _no_cover = (0..level.blocks()).try_for_each(|at| write(level, at, 1, &mut upper));
            }
            // On a plausible disk every operation of every level counts, so their order is part of
            // the play, and they cannot run concurrently.
            if self.threads && self.params.plan.hiding == Hiding::Opportunistic {
                self.beside(&disk, &mut lower, upper);
            } else {
                self.in_turns(&disk, &mut lower, upper);
            }
            self.failed[session as usize] = self.close(&disk, session, failing[session as usize]);
            drop(disk);
            self.observer.watch(self.recorder.take());
        }
        self
    }

    /// Closes the disk. If it `fails`, the medium refuses the end of the journal. Returns whether
    /// the close failed.
    fn close(&self, disk: &Arc<Oblivious>, session: u64, fails: bool) -> bool {
        disk.cover_closing(Pace::AtOnce).unwrap();
        let busy = matches!(self.above, Above::Busy | Above::Full);
        if busy && session == 1 && self.params.plan.hiding == Hiding::Opportunistic {
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

    fn in_turns(&mut self, disk: &Arc<Oblivious>, lower: &mut Rng, mut upper: Rng) {
        // The turns are the same in every game, so that the public reads that explain them are too.
        let mut turns = Rng::new(upper.next_u64());
        for _ in 0..70 {
            step(disk, self.depth, lower);
            let turn = Turn::draw(&mut turns);
            match self.above {
                Above::Busy | Above::Full | Above::Leaky => {
                    turn.take(&disk.levels()[self.depth + 1], &mut upper);
                }
                _ if self.params.plan.hiding == Hiding::Plausible => turn.explain(disk, &mut upper),
                _ => {}
            }
            if self.above == Above::Leaky && counter(&disk.levels()[self.depth + 1], "waiting_for_cover") > 0
            {
                disk.refresh().unwrap();
            }
            self.observer.watch(self.recorder.take());
        }
    }

    fn beside(&mut self, disk: &Arc<Oblivious>, lower: &mut Rng, mut upper: Rng) {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if matches!(self.above, Above::Busy | Above::Full | Above::Leaky) {
                scope.spawn(|| {
                    let level = &disk.levels()[self.depth + 1];
                    while !done.load(Ordering::Relaxed) {
                        Turn::draw(&mut upper).take(level, &mut upper);
                        if self.above == Above::Leaky && upper.chance(1, 50) {
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
    fn trace(&self) -> Vec<&Seen> {
        let opened = |seen: &&Seen| matches!(seen.shown, Shown::Head(..) | Shown::Record(_));
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
fn step(disk: &Arc<Oblivious>, depth: usize, rng: &mut Rng) {
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
enum Turn {
    Write(u64),
    Read(u64),
    Discard,
    Flush,
}

impl Turn {
    fn draw(rng: &mut Rng) -> Turn {
        let count = 1 + rng.below(4);
        match rng.below(8) {
            0..4 => Turn::Write(count),
            4..6 => Turn::Read(count),
            6 => Turn::Discard,
            _ => Turn::Flush,
        }
    }

    fn take(self, level: &LevelDisk, rng: &mut Rng) {
        let first = rng.below(level.blocks() - 4);
        match self {
            Turn::Write(count) => allow_no_cover(&write(level, first, count, rng)),
            Turn::Read(count) => {
                level.read(BlockAddr(first), &mut vec![0; count as usize * BLOCK_SIZE]).unwrap();
            }
            Turn::Discard => allow_no_cover(&level.discard(BlockAddr(first), 3)),
            Turn::Flush => allow_no_cover(&level.flush()),
        }
    }

    /// Makes the reads of level 0 that explain this operation on a plausible disk. A flush has no
    /// effect.
    fn explain(self, disk: &Arc<Oblivious>, rng: &mut Rng) {
        let level = &disk.levels()[0];
        let count = match self {
            Turn::Write(count) | Turn::Read(count) => count,
            Turn::Discard => disk.params().batch_blocks().div_ceil(4) as u64,
            Turn::Flush => return,
        };
        let first = rng.below(level.blocks() - count);
        level.read(BlockAddr(first), &mut vec![0; count as usize * BLOCK_SIZE]).unwrap();
    }
}

fn difference(one: &[&Seen], other: &[&Seen]) -> Option<String> {
    if let Some(at) = one.iter().zip(other).position(|(a, b)| a != b) {
        let (a, b) = (one[at].outside(), other[at].outside());
        let opened = if a == b { ", in what the keys open" } else { "" };
        return Some(format!("operation {at}: {a:?} against {b:?}{opened}"));
    }
    (one.len() != other.len()).then(|| format!("{} operations against {}", one.len(), other.len()))
}

fn play(hiding: Hiding, threads: bool) {
    let (params, seeds) = (params(hiding), seeds(1, 4));
    for depth in 0..3 {
        let (mut rest, mut endings) = (Bytes::default(), [0u64; 2]);
        let mut digest = DefaultHasher::new();
        for seed in seeds.clone() {
            let _seed = Seed(seed);
            let of = |above, failing| {
                Game::new(&params, depth, above, threads, seed * 1000).play(seed * 1000, failing)
            };
            for above in [Above::Idle, Above::Busy, Above::Full] {
                // A full level is filled before level 0 is used. On a plausible disk the fill would
                // count as operations, which the game without it does not make.
                if hiding == Hiding::Plausible && above == Above::Full {
                    continue;
                }
                let game = of(above, [false; SESSIONS]);
                let absent = of(Above::Absent, game.failed);
                assert_eq!(game.failed, absent.failed, "the caller hears of both alike");
                game.failed.iter().for_each(|failed| endings[usize::from(*failed)] += 1);
                let found = difference(&absent.trace(), &game.trace());
                assert_eq!(found, None, "depth {depth}, seed {seed}, {above:?}");
                rest.add(&game.observer.rest);
                game.trace().iter().for_each(|seen| seen.outside().hash(&mut digest));
            }
        }
        rest.assert_uniform("what the keys do not open");
        let digest = if threads { "none".to_owned() } else { format!("{:016x}", digest.finish()) };
        println!(
            "{hiding:?}, depth {depth}, seed {}: {} endings, {} of them with a loss, digest {digest}",
            seeds.start,
            endings[0] + endings[1],
            endings[1]
        );
        // On a plausible disk every operation counts, so batches come often enough to lose nothing.
        let lossless = hiding == Hiding::Plausible;
        assert!(endings[0] > 0 && (lossless || endings[1] > 0), "depth {depth}: {endings:?}");
    }
}

#[test]
fn what_is_done_above_a_depth_leaves_no_trace() {
    play(Hiding::Opportunistic, false);
}

#[test]
fn what_is_done_above_a_depth_passes_for_public_reads() {
    play(Hiding::Plausible, false);
}

#[test]
fn nor_does_it_show_in_what_the_keys_open_on_a_slow_medium_with_threads() {
    play(Hiding::Opportunistic, true);
}

#[test]
fn nor_with_threads_where_it_passes_for_public_reads() {
    play(Hiding::Plausible, true);
}

#[test]
fn a_disk_that_writes_for_a_level_above_is_caught() {
    let params = params(Hiding::Opportunistic);
    for threads in [false, true] {
        for depth in 0..3 {
            let caught = (1..=3).filter(|seed| {
                let [absent, leaky] = [Above::Absent, Above::Leaky].map(|above| {
                    let game = Game::new(&params, depth, above, threads, seed * 1000);
                    game.play(seed * 1000, [false; SESSIONS])
                });
                difference(&absent.trace(), &leaky.trace()).is_some()
            });
            assert!(caught.count() > 1, "depth {depth}, threads {threads}");
        }
    }
}
