//! The games of the papers (PD-DM, section 2.2), as equality instead of a guess, with the predicate
//! IsExecutable of HIVE-B and of HIVE.
//!
//! - One level: the same number of public operations, of any kind, and the same public randomness
//!   give the same trace in every position, length and order. All contents pass tests of
//!   randomness, and so does the choice of cells.
//! - `depth_game.rs` plays it with deeper levels.
//!
//! `LACUNA_GAMES` sets the games of each kind (default 10), `LACUNA_SEED` the first seed (default
//! 1).

#[path = "../../../formats/oblivious/tests/fixture/mod.rs"]
mod fixture;
#[path = "oblivious_view/mod.rs"]
mod view;

use fixture::regions::{GROUP, GROUP_LEN};
use fixture::{UUID, counter, create, masters, open_with, options};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_games::{Seed, seeds};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Hiding, Levels, Oblivious, Params, Plan};
use lacuna_sim::{OpKind, Recorder, Rng};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use view::{Bytes, Observer, Seen, Shown, chi_square};

/// A disk with a map of several pages, and batches of ten blocks.
fn params(hiding: Hiding) -> Params {
    Params::plan(16 << 20, Plan { hiding, operations: 12, ..Plan::DEFAULT }).unwrap()
}

/// A disk with an observer.
struct Watched {
    params: Params,
    recorder: Arc<Recorder<MemoryMedium>>,
    medium: Arc<dyn Medium>,
    levels: usize,
    observer: Observer,
}

impl Watched {
    fn new(params: &Params, levels: usize, known: usize, seed: u64) -> Watched {
        let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.end()))));
        recorder.keep_contents(true);
        let medium: Arc<dyn Medium> = recorder.clone();
        create(&medium, params, levels, seed).unwrap();
        let observer = Observer::new(params, &masters(known), &UUID);
        Watched { params: *params, recorder, medium, levels, observer }
    }

    fn open(&self, public_seed: u64, filler_seed: u64) -> Arc<Oblivious> {
        open_with(&self.medium, &self.params, self.levels, options(public_seed, filler_seed)).unwrap()
    }

    fn watch(&mut self) {
        self.observer.watch(self.recorder.take());
    }
}

fn outside(trace: &[Seen]) -> Vec<(OpKind, u64, u64, bool)> {
    trace.iter().map(Seen::outside).collect()
}

// Games with one level.

/// The blocks that a game with one level writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Traffic {
    Sequential,
    OneBlock,
    Random,
    /// Like `Random`, but discards go to written blocks.
    Discarded,
    /// First almost every block, then random ones again.
    AlmostFull,
    /// Reads instead of writes, which are indistinguishable on a plausible disk.
    Reads,
}

const WRITES: [Traffic; 5] =
    [Traffic::Sequential, Traffic::OneBlock, Traffic::Random, Traffic::Discarded, Traffic::AlmostFull];

/// The number of reads that a discard passes for on a plausible disk.
fn discard_reads(params: &Params) -> usize {
    params.batch_blocks().div_ceil(4)
}

/// The trace of three sessions. The calls depend only on the seed, the blocks also on `traffic`.
fn play_one(params: &Params, seed: u64, traffic: Traffic) -> Observer {
    let mut watched = Watched::new(params, 1, 1, seed);
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
                // It does not matter whether the discarded blocks were written.
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
    let mut groups = vec![0; params.cells as usize / GROUP];
    let mut bytes = WRITES.map(|_| Bytes::default());
    let (seeds, mut digest) = (seeds(1, 10), DefaultHasher::new());
    for seed in seeds.clone() {
        let _seed = Seed(seed);
        let mut first = Vec::new();
        for (traffic, bytes) in WRITES.into_iter().zip(&mut bytes) {
            let observer = play_one(&params, seed * 1000, traffic);
            bytes.add(&observer.all);
            let trace = outside(&observer.trace);
            if first.is_empty() {
                let in_place = trace.iter().filter_map(|(_, at, ..)| at.checked_sub(observer.cells_start()));
                // The first block of each group is enough.
                let firsts = in_place.filter(|at| at.is_multiple_of(GROUP_LEN as u64));
                firsts.for_each(|at| groups[at as usize / GROUP_LEN] += 1);
                first = trace;
            } else {
                assert!(first == trace, "seed {seed}, {traffic:?}");
            }
        }
        first.hash(&mut digest);
    }
    println!("writes, seed {}: digest {:016x}", seeds.start, digest.finish());
    WRITES.iter().zip(&bytes).for_each(|(traffic, bytes)| bytes.assert_uniform(&format!("{traffic:?}")));
    // The groups of level 0, which are equally likely.
    let region = &groups[..params.cells as usize / 5 * 3 / GROUP];
    let (statistic, freedom) = (chi_square(region), region.len() as f64 - 1.0);
    println!("groups: chi-square {statistic:.0}, {freedom} degrees of freedom");
    assert!((statistic - freedom).abs() < 6.0 * (2.0 * freedom).sqrt(), "chi-square {statistic} over groups");
}

/// The trace of a defective disk that does not rewrite a cell with an unchanged block, as seen with
/// the keys of level 0.
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
    let (seeds, mut digest) = (seeds(1, 10), DefaultHasher::new());
    for seed in seeds.clone() {
        let _seed = Seed(seed);
        let traces =
            [Traffic::Random, Traffic::Reads].map(|t| outside(&play_one(&params, seed * 1000, t).trace));
        assert!(traces[0] == traces[1], "seed {seed}");
        traces[0].hash(&mut digest);
    }
    println!("reads, seed {}: digest {:016x}", seeds.start, digest.finish());
    // On an opportunistic disk a read writes nothing.
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
    let mut watched = Watched::new(&params, 2, 1, 1);
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
    // Each head has two copies, and creation wrote heads before them.
    assert_eq!(heads.count() as u64, 2 * (batches() + 2));
}
