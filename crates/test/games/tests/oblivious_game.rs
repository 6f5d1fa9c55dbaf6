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
use fixture::{UUID, counter, create, master_keys, open_with, options};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_games::{SeedReporter, game_seeds};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{HidingMode, Levels, ObliviousDisk, Params, Plan};
use lacuna_sim::{OpKind, Recorder, Rng};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use view::{ByteHistogram, DecryptedWrite, ObservedOp, TraceObserver, chi_square};

/// A disk with a map of several pages, and batches of ten blocks.
fn params(hiding: HidingMode) -> Params {
    Params::plan(16 << 20, Plan { hiding, operations: 12, ..Plan::DEFAULT }).unwrap()
}

/// A disk with an observer.
struct ObservedDisk {
    params: Params,
    recorder: Arc<Recorder<MemoryMedium>>,
    medium: Arc<dyn Medium>,
    levels: usize,
    observer: TraceObserver,
}

impl ObservedDisk {
    fn new(params: &Params, levels: usize, known: usize, seed: u64) -> ObservedDisk {
        let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.end()))));
        recorder.keep_contents(true);
        let medium: Arc<dyn Medium> = recorder.clone();
        create(&medium, params, levels, seed).unwrap();
        let observer = TraceObserver::new(params, &master_keys(known), &UUID);
        ObservedDisk { params: *params, recorder, medium, levels, observer }
    }

    fn open(&self, public_seed: u64, filler_seed: u64) -> Arc<ObliviousDisk> {
        open_with(&self.medium, &self.params, self.levels, options(public_seed, filler_seed)).unwrap()
    }

    fn observe(&mut self) {
        self.observer.observe(self.recorder.take());
    }
}

fn visible_trace(trace: &[ObservedOp]) -> Vec<(OpKind, u64, u64, bool)> {
    trace.iter().map(ObservedOp::visible_part).collect()
}

// Games with one level.

/// The blocks that a game with one level writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TrafficPattern {
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

const WRITES: [TrafficPattern; 5] = [
    TrafficPattern::Sequential,
    TrafficPattern::OneBlock,
    TrafficPattern::Random,
    TrafficPattern::Discarded,
    TrafficPattern::AlmostFull,
];

/// The number of reads that a discard passes for on a plausible disk.
fn discard_reads(params: &Params) -> usize {
    params.batch_blocks().div_ceil(4)
}

/// The trace of three sessions. The calls depend only on the seed, the blocks also on `traffic`.
fn play_one(params: &Params, seed: u64, traffic: TrafficPattern) -> TraceObserver {
    let mut watched = ObservedDisk::new(params, 1, 1, seed);
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
                    TrafficPattern::Sequential => n % 200,
                    TrafficPattern::OneBlock => 5,
                    TrafficPattern::AlmostFull if n < full => n,
                    _ => rng.below(full),
                };
                if traffic == TrafficPattern::Reads {
                    level.read(BlockAddr(addr), &mut [0; BLOCK_SIZE]).unwrap();
                } else {
                    level.write(BlockAddr(addr), &rng.bytes(BLOCK_SIZE)).unwrap();
                }
            }
            written += count;
            match calls.below(8) {
                0 => level.flush().unwrap(),
                1 => disk.refresh().unwrap(),
                2 if traffic == TrafficPattern::Reads => {
                    level.read(BlockAddr(0), &mut vec![0; discard_reads(params) * BLOCK_SIZE]).unwrap();
                }
                // It does not matter whether the discarded blocks were written.
                2 if traffic == TrafficPattern::Discarded => {
                    level.discard(BlockAddr(rng.below(full)), 3).unwrap();
                }
                2 => level.discard(BlockAddr(params.blocks - 4), 3).unwrap(),
                _ => {}
            }
            watched.observe();
        }
        disk.close().unwrap();
        watched.observe();
    }
    watched.observer
}

#[test]
fn the_trace_does_not_depend_on_the_written_blocks() {
    let params = params(HidingMode::Opportunistic);
    let mut groups = vec![0; params.cells as usize / GROUP];
    let mut bytes = WRITES.map(|_| ByteHistogram::default());
    let (seeds, mut digest) = (game_seeds(1, 10), DefaultHasher::new());
    for seed in seeds.clone() {
        let _seed = SeedReporter(seed);
        let mut first = Vec::new();
        for (traffic, bytes) in WRITES.into_iter().zip(&mut bytes) {
            let observer = play_one(&params, seed * 1000, traffic);
            bytes.add(&observer.all_bytes);
            let trace = visible_trace(&observer.trace);
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
fn without_unchanged_cells(trace: &[ObservedOp]) -> Vec<(OpKind, u64, u64, bool)> {
    let mut held = HashMap::new();
    let mut changes = |seen: &&ObservedOp| match &seen.decrypted {
        DecryptedWrite::Cell(cell, block) => {
            held.insert(*cell, *block).flatten() != *block || block.is_none()
        }
        _ => true,
    };
    trace.iter().filter(|seen| changes(seen)).map(ObservedOp::visible_part).collect()
}

#[test]
fn a_disk_that_skips_unchanged_cells_is_caught() {
    let params = params(HidingMode::Opportunistic);
    for seed in 1..=10 {
        let traces = [TrafficPattern::Sequential, TrafficPattern::OneBlock].map(|traffic| {
            let trace = play_one(&params, seed * 1000, traffic).trace;
            (visible_trace(&trace), without_unchanged_cells(&trace))
        });
        assert!(traces[0].0 == traces[1].0 && traces[0].1 != traces[1].1, "seed {seed}");
    }
}

#[test]
fn reads_look_like_writes_on_a_plausible_disk() {
    let params = params(HidingMode::Plausible);
    let (seeds, mut digest) = (game_seeds(1, 10), DefaultHasher::new());
    for seed in seeds.clone() {
        let _seed = SeedReporter(seed);
        let traces = [TrafficPattern::Random, TrafficPattern::Reads]
            .map(|t| visible_trace(&play_one(&params, seed * 1000, t).trace));
        assert!(traces[0] == traces[1], "seed {seed}");
        traces[0].hash(&mut digest);
    }
    println!("reads, seed {}: digest {:016x}", seeds.start, digest.finish());
    // On an opportunistic disk a read writes nothing.
    let params = self::params(HidingMode::Opportunistic);
    let records = |traffic| {
        let records = |seen: &&ObservedOp| matches!(seen.decrypted, DecryptedWrite::Record(_));
        play_one(&params, 1000, traffic).trace.iter().filter(records).count()
    };
    assert!(records(TrafficPattern::Random) > 60 && records(TrafficPattern::Reads) < 30);
}

#[test]
fn reads_of_any_level_are_counted_by_the_block() {
    let params = params(HidingMode::Plausible);
    let mut watched = ObservedDisk::new(&params, 2, 1, 1);
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
    watched.observe();
    let heads =
        watched.observer.trace.iter().filter(|seen| matches!(seen.decrypted, DecryptedWrite::Head(..)));
    // Each head has two copies, and creation wrote heads before them.
    assert_eq!(heads.count() as u64, 2 * (batches() + 2));
}
