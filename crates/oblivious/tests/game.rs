//! The games of the papers (000, section 2.2), as equality instead of a guess, with the predicate IsExecutable of HIVE-B
//! and of HIVE.
//!
//! - One level: as many public operations, whatever they are, and the same public randomness give the same trace in every
//!   position, length and order; all contents are random to the eye, and so are the cells.
//! - `Hiding::Opportunistic`: the same public operations, with hidden ones or none, give that and agree in everything that
//!   the key of level 0 opens; the rest is random to the eye.
//! - `Hiding::Plausible`: the same, where in the place of each hidden operation level 0 reads a block.
//!
//! `LACUNA_GAMES` sets the games of each kind (default 10).

mod fixture;
mod view;

use fixture::{UUID, counter, create, masters, open_with, options};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Hiding, LevelDisk, Levels, Oblivious, Params, Plan};
use lacuna_sim::{OpKind, Recorder, Rng};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use view::{Bytes, Observer, Seen, Shown, chi_square};

/// A map of several pages, and batches of ten blocks.
fn params(hiding: Hiding) -> Params {
    Params::plan(16 << 20, Plan { hiding, operations: 12, ..Plan::DEFAULT }).unwrap()
}

/// So small, and with so few cells in a batch, that blocks wait for a cell now and then when it is full.
fn small(hiding: Hiding) -> Params {
    Params::plan(8 << 20, Plan { hiding, operations: 4, ..Plan::DEFAULT }).unwrap()
}

fn games() -> u64 {
    std::env::var("LACUNA_GAMES").ok().and_then(|v| v.parse().ok()).unwrap_or(10)
}

/// A disk that is watched.
struct Watched {
    params: Params,
    recorder: Arc<Recorder<MemoryMedium>>,
    medium: Arc<dyn Medium>,
    levels: usize,
    observer: Observer,
}

impl Watched {
    fn new(params: &Params, levels: usize, seed: u64) -> Watched {
        let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.medium_len()))));
        recorder.keep_contents(true);
        let medium: Arc<dyn Medium> = recorder.clone();
        create(&medium, params, levels, seed).unwrap();
        let observer = Observer::new(params, &masters(1)[0], &UUID);
        Watched { params: *params, recorder, medium, levels, observer }
    }

    fn open(&self, public_seed: u64, filler_seed: u64) -> Arc<Oblivious> {
        open_with(&self.medium, &self.params, self.levels, options(public_seed, filler_seed)).unwrap()
    }

    fn watch(&mut self) {
        self.observer.watch(self.recorder.take());
    }
}

/// Where two traces differ for someone with the key of level 0, if they do.
fn difference(one: &[Seen], other: &[Seen]) -> Option<String> {
    if let Some(at) = one.iter().zip(other).position(|(a, b)| a != b) {
        let (a, b) = (one[at].outside(), other[at].outside());
        let level0 = if a == b { ", in what level 0 can read" } else { "" };
        return Some(format!("operation {at}: {a:?} against {b:?}{level0}"));
    }
    (one.len() != other.len()).then(|| format!("{} operations against {}", one.len(), other.len()))
}

fn outside(trace: &[Seen]) -> Vec<(OpKind, u64, u64, bool)> {
    trace.iter().map(Seen::outside).collect()
}

// One level.

/// Which blocks a game of one level writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Traffic {
    Sequential,
    OneBlock,
    Random,
    /// The same, and whenever something is discarded it is what was written.
    Discarded,
    /// First almost every block, then any of them again.
    AlmostFull,
    /// Reads in the place of writes, which are as good on a plausible disk.
    Reads,
}

const WRITES: [Traffic; 5] =
    [Traffic::Sequential, Traffic::OneBlock, Traffic::Random, Traffic::Discarded, Traffic::AlmostFull];

/// Reads that a discard passes for on a plausible disk.
fn discard_reads(params: &Params) -> usize {
    params.batch_blocks().div_ceil(4)
}

/// The trace of three sessions, whose calls are the same but for the blocks.
fn play_one(params: &Params, seed: u64, traffic: Traffic) -> Observer {
    let mut watched = Watched::new(params, 1, seed);
    let (mut calls, mut rng) = (Rng::new(seed), Rng::new(!seed));
    let full = params.blocks * 9 / 10;
    let mut written = 0;
    for session in 0..3 {
        let disk = watched.open(seed + session, (seed + session) << 3 | traffic as u64);
        let level = &disk.levels()[0];
        let end = [full, full + 60, full + 150][session as usize];
        while written < end {
            let count = (1 + calls.below(20)).min(end - written);
            for n in written..written + count {
                let addr = match traffic {
                    Traffic::Sequential => n % 200,
                    Traffic::OneBlock => 5,
                    Traffic::AlmostFull if n < full => n,
                    _ => rng.below(full),
                };
                if traffic == Traffic::Reads {
                    level.read(BlockAddr(addr), &mut [0; BLOCK_SIZE]).unwrap();
                } else {
                    level.write(BlockAddr(addr), &rng.bytes(BLOCK_SIZE)).unwrap();
                }
            }
            written += count;
            match calls.below(8) {
                0 => level.flush().unwrap(),
                1 => disk.refresh().unwrap(),
                2 if traffic == Traffic::Reads => {
                    level.read(BlockAddr(0), &mut vec![0; discard_reads(params) * BLOCK_SIZE]).unwrap();
                }
                // Whether there is anything to discard does not matter.
                2 if traffic == Traffic::Discarded => level.discard(BlockAddr(rng.below(full)), 3).unwrap(),
                2 => level.discard(BlockAddr(params.blocks - 4), 3).unwrap(),
                _ => {}
            }
            watched.watch();
        }
        disk.close().unwrap();
        watched.watch();
    }
    watched.observer
}

#[test]
fn whatever_is_written_the_trace_is_the_same() {
    let params = params(Hiding::Opportunistic);
    let mut cells = vec![0; params.cells as usize];
    let mut bytes = WRITES.map(|_| Bytes::default());
    for seed in (1..=games()).map(|seed| seed * 1000) {
        let mut first = Vec::new();
        for (traffic, bytes) in WRITES.into_iter().zip(&mut bytes) {
            let observer = play_one(&params, seed, traffic);
            bytes.add(&observer.all);
            let trace = outside(&observer.trace);
            if first.is_empty() {
                let in_place = trace.iter().filter(|(_, offset, ..)| *offset >= observer.cells_start());
                in_place.for_each(|(_, at, ..)| {
                    cells[((at - observer.cells_start()) / view::CELL as u64) as usize] += 1;
                });
                first = trace;
            } else {
                assert!(first == trace, "seed {seed}, {traffic:?}");
            }
        }
    }
    WRITES.iter().zip(&bytes).for_each(|(traffic, bytes)| bytes.assert_uniform(&format!("{traffic:?}")));
    let (statistic, freedom) = (chi_square(&cells), params.cells as f64 - 1.0);
    println!("cells: chi-square {statistic:.0}, {freedom} degrees of freedom");
    assert!((statistic - freedom).abs() < 6.0 * (2.0 * freedom).sqrt(), "chi-square {statistic} over cells");
}

/// The trace of a disk that leaves cells alone whose block stays, as level 0 sees it.
fn without_what_stays(trace: &[Seen]) -> Vec<(OpKind, u64, u64, bool)> {
    let mut held = HashMap::new();
    let mut changes = |seen: &&Seen| match &seen.shown {
        Shown::Cell(cell, block) => held.insert(*cell, *block).flatten() != *block || block.is_none(),
        _ => true,
    };
    trace.iter().filter(|seen| changes(seen)).map(Seen::outside).collect()
}

#[test]
fn a_disk_that_leaves_blocks_alone_that_stay_is_caught() {
    let params = params(Hiding::Opportunistic);
    for seed in 1..=10 {
        let traces = [Traffic::Sequential, Traffic::OneBlock].map(|traffic| {
            let trace = play_one(&params, seed * 1000, traffic).trace;
            (outside(&trace), without_what_stays(&trace))
        });
        assert!(traces[0].0 == traces[1].0 && traces[0].1 != traces[1].1, "seed {seed}");
    }
}

#[test]
fn on_a_plausible_disk_a_read_is_as_good_as_a_write() {
    let params = params(Hiding::Plausible);
    for seed in (1..=games()).map(|seed| seed * 1000) {
        let traces = [Traffic::Random, Traffic::Reads].map(|t| outside(&play_one(&params, seed, t).trace));
        assert!(traces[0] == traces[1], "seed {seed}");
    }
    // And on the other it is nothing.
    let params = self::params(Hiding::Opportunistic);
    let records = |traffic| {
        let records = |seen: &&Seen| matches!(seen.shown, Shown::Record(_));
        play_one(&params, 1000, traffic).trace.iter().filter(records).count()
    };
    assert!(records(Traffic::Random) > 60 && records(Traffic::Reads) < 30);
}

#[test]
fn reads_of_any_level_are_counted_by_the_block() {
    let params = params(Hiding::Plausible);
    let mut watched = Watched::new(&params, 2, 1);
    let disk = watched.open(2, 3);
    let batches = || counter(&disk.levels()[0], "batches_written");
    let mut asked = 0;
    for level in disk.levels() {
        for count in [1, 2, 30, 7] {
            level.read(BlockAddr(5), &mut vec![0; count * BLOCK_SIZE]).unwrap();
            asked += count;
            assert_eq!(batches(), (asked / params.batch_blocks()) as u64);
        }
    }
    watched.watch();
    let heads = watched.observer.trace.iter().filter(|seen| matches!(seen.shown, Shown::Head(..)));
    // Each in two copies, and those of creation before them.
    assert_eq!(heads.count() as u64, 2 * (batches() + 2));
}

// Two levels.

/// What the hidden side does in a game.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hidden {
    /// There is no hidden level.
    Absent,
    /// There is one, and nothing is asked of it.
    Idle,
    Busy,
    /// As busy, on a disk that writes a batch of its own when much waits.
    Leaky,
}

fn public_step(level: &LevelDisk, disk: &Oblivious, rng: &mut Rng, full: bool) {
    let (blocks, most) = (level.blocks(), if full { 2 } else { 8 });
    match rng.below(10) {
        6 if !full => level.discard(BlockAddr(rng.below(blocks - most)), 1 + rng.below(most)).unwrap(),
        0..7 => {
            let count = 1 + rng.below(most);
            let data = rng.bytes(count as usize * BLOCK_SIZE);
            level.write(BlockAddr(rng.below(blocks - count)), &data).unwrap();
        }
        7 => level.flush().unwrap(),
        8 => disk.refresh().unwrap(),
        _ => level.read(BlockAddr(rng.below(blocks)), &mut [0; BLOCK_SIZE]).unwrap(),
    }
}

/// A turn of the hidden side: what is asked of it, and of how many blocks.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    /// From this block on.
    Fill(u64, u64),
    Write(u64),
    Read(u64),
    Discard,
    Flush,
}

impl Turn {
    /// Nothing is discarded of a level that is to stay full.
    fn draw(rng: &mut Rng, full: bool) -> Turn {
        let count = 1 + rng.below(6);
        match rng.below(8) {
            6 if !full => Turn::Discard,
            0..4 => Turn::Write(count),
            4..7 => Turn::Read(count),
            _ => Turn::Flush,
        }
    }

    fn take(self, level: &LevelDisk, rng: &mut Rng, hiding: Hiding) {
        let blocks = level.blocks();
        let write = |rng: &mut Rng, first: u64, count: u64| {
            level.write(BlockAddr(first), &rng.bytes(count as usize * BLOCK_SIZE)).unwrap();
        };
        match self {
            Turn::Fill(first, count) => write(rng, first, count),
            Turn::Write(count) => {
                let first = rng.below(blocks - count);
                write(rng, first, count);
            }
            Turn::Read(count) => {
                let mut buf = vec![0; count as usize * BLOCK_SIZE];
                level.read(BlockAddr(rng.below(blocks - count)), &mut buf).unwrap();
            }
            Turn::Discard => level.discard(BlockAddr(rng.below(blocks - 4)), 1 + rng.below(4)).unwrap(),
            // Without public operations to cover it, HIVE-B refuses.
            Turn::Flush => assert!(level.flush().is_ok() || hiding == Hiding::Opportunistic),
        }
    }

    /// What a public user does who explains the trace of the turn. A hidden flush goes on until nothing of the level
    /// waits: it passes for so many reads, each flushed, as it wrote batches. How many these are depends on the hidden
    /// level, which is no more than what it may do anyway: as many operations as it likes.
    fn explain(self, level: &LevelDisk, rng: &mut Rng, discard_reads: usize, batches: u64) {
        let mut read = |count: u64| {
            let mut buf = vec![0; count as usize * BLOCK_SIZE];
            level.read(BlockAddr(rng.below(level.blocks() - count)), &mut buf).unwrap();
        };
        match self {
            Turn::Fill(_, count) | Turn::Write(count) | Turn::Read(count) => read(count),
            Turn::Discard => read(discard_reads as u64),
            Turn::Flush => {
                for _ in 0..batches {
                    read(1);
                    level.flush().unwrap();
                }
                level.flush().unwrap();
            }
        }
    }
}

/// A game of two levels.
struct Game {
    hiding: Hiding,
    hidden: Hidden,
    /// What the hidden level writes and where; or what explains it.
    rng: Rng,
    /// The batches that each hidden flush wrote: noted by a game with hidden operations, to be explained by one without.
    flushes: VecDeque<u64>,
    /// Looks that found blocks of the hidden level displaced.
    displaced: u64,
    watched: Watched,
}

impl Game {
    fn new(params: &Params, seed: u64, hidden: Hidden, flushes: VecDeque<u64>) -> Game {
        let watched = Watched::new(params, if hidden == Hidden::Absent { 1 } else { 2 }, seed);
        let rng = Rng::new(seed ^ 0xdead);
        Game { hiding: params.plan.hiding, hidden, rng, flushes, displaced: 0, watched }
    }

    fn turn(&mut self, disk: &Arc<Oblivious>, turn: Turn) {
        let levels = disk.levels();
        let batches = || counter(&levels[0], "batches_written");
        let before = batches();
        match self.hidden {
            Hidden::Busy | Hidden::Leaky => turn.take(&levels[1], &mut self.rng, self.hiding),
            _ if self.hiding == Hiding::Opportunistic => {}
            _ => {
                let flushed = if turn == Turn::Flush { self.flushes.pop_front() } else { None };
                turn.explain(&levels[0], &mut self.rng, discard_reads(disk.params()), flushed.unwrap_or(0));
            }
        }
        if self.hidden == Hidden::Busy {
            self.displaced += u64::from(counter(&levels[1], "waiting_for_cells") > 0);
            if turn == Turn::Flush {
                self.flushes.push_back(batches() - before);
            }
        }
        if self.hidden == Hidden::Leaky && counter(&levels[1], "waiting_for_cover") > 4 * BLOCK_SIZE as u64 {
            disk.refresh().unwrap();
        }
        self.watched.watch();
    }

    /// Three sessions with turns of the hidden side between public steps; if `full`, after both levels were written, so that
    /// blocks wait which level 0 displaced.
    fn play(mut self, seed: u64, full: bool) -> Game {
        let (mut public, mut turns) = (Rng::new(seed), Rng::new(!seed));
        for session in 0..3 {
            let disk = self.watched.open(seed + session, (seed + session) << 3 | self.hidden as u64);
            let level = &disk.levels()[0];
            for first in (0..level.blocks() - 8).step_by(8).filter(|_| full && session == 0) {
                level.write(BlockAddr(first), &public.bytes(8 * BLOCK_SIZE)).unwrap();
                self.turn(&disk, Turn::Fill(first, 8));
            }
            let steps = if full { 150 } else { 60 };
            for left in (0..steps - public.below(20)).rev() {
                public_step(level, &disk, &mut public, full);
                // The last turn before closing is a flush: what closing flushes is nothing then.
                let turn = if left == 0 { Turn::Flush } else { Turn::draw(&mut turns, full) };
                self.turn(&disk, turn);
            }
            // Closing fails where something hidden still waits for cover, and leaves the same trace.
            let _no_cover = disk.close();
            self.watched.watch();
        }
        self
    }

    fn trace(&self) -> &[Seen] {
        &self.watched.observer.trace
    }
}

fn play_hidden(params: &Params, full: bool) {
    let mut rest = [Bytes::default(), Bytes::default(), Bytes::default()];
    let (mut displaced, mut flushed) = (0, 0);
    for seed in (1..=games()).map(|seed| seed * 1000) {
        let busy = Game::new(params, seed, Hidden::Busy, VecDeque::new()).play(seed, full);
        rest[0].add(&busy.watched.observer.rest);
        displaced += busy.displaced;
        flushed += busy.flushes.iter().sum::<u64>();
        for (hidden, rest) in [Hidden::Absent, Hidden::Idle].into_iter().zip(&mut rest[1..]) {
            let other = Game::new(params, seed, hidden, busy.flushes.clone()).play(seed, full);
            assert_eq!(difference(busy.trace(), other.trace()), None, "seed {seed}, {hidden:?}");
            rest.add(&other.watched.observer.rest);
        }
    }
    println!("displaced blocks waited {displaced} times, hidden flushes wrote {flushed} batches");
    assert_eq!(flushed > 0, params.plan.hiding == Hiding::Plausible);
    rest.iter().for_each(|bytes| bytes.assert_uniform("what level 0 cannot read"));
}

#[test]
fn hidden_operations_that_wait_for_public_ones_leave_no_trace() {
    play_hidden(&params(Hiding::Opportunistic), false);
    play_hidden(&small(Hiding::Opportunistic), true);
}

#[test]
fn hidden_operations_pass_for_public_reads() {
    play_hidden(&params(Hiding::Plausible), false);
    play_hidden(&small(Hiding::Plausible), true);
}

#[test]
fn a_disk_that_writes_for_its_hidden_level_is_caught() {
    let params = params(Hiding::Opportunistic);
    let caught = (1..=10).filter(|seed| {
        let [idle, leaky] = [Hidden::Idle, Hidden::Leaky]
            .map(|hidden| Game::new(&params, seed * 1000, hidden, VecDeque::new()).play(seed * 1000, false));
        difference(idle.trace(), leaky.trace()).is_some()
    });
    assert!(caught.count() > 8);
}
