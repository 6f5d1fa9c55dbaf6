//! The game of the paper (section 2.2), as equality instead of a guess: the same public operations and the same public
//! randomness, with and without hidden operations, give traces that agree in every position, length and order and in
//! every byte that the key of level 0 decrypts; the rest is random to the eye in both.

mod fixture;

use fixture::{create, open_with, options, params};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_deniable::{Deniable, LevelDisk, Params};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::{OpKind, Record, Recorder, Rng};
use std::sync::Arc;

const SUMMARY_TAGS: std::ops::Range<usize> = 32..64;
const HIDDEN_PART: usize = 64;

/// What the hidden side does in a run.
#[derive(Clone, Copy, PartialEq)]
enum Hidden {
    /// There is no hidden level.
    Absent,
    /// There is one, and nothing is written to it.
    Idle,
    Busy,
    /// As busy, on a disk that writes a stripe of its own when much waits.
    Leaky,
}

fn public_step(level: &LevelDisk, disk: &Deniable, rng: &mut Rng) {
    let blocks = level.blocks();
    match rng.below(10) {
        0..6 => {
            let count = 1 + rng.below(8);
            let data = rng.bytes(count as usize * BLOCK_SIZE);
            level.write(BlockAddr(rng.below(blocks - count)), &data).unwrap();
        }
        6 => level.discard(BlockAddr(rng.below(blocks - 20)), 1 + rng.below(20)).unwrap(),
        7 => level.flush().unwrap(),
        8 => disk.refresh().unwrap(),
        _ => level.read(BlockAddr(rng.below(blocks)), &mut [0; BLOCK_SIZE]).unwrap(),
    }
}

fn hidden_step(level: &LevelDisk, rng: &mut Rng) {
    let blocks = level.blocks();
    match rng.below(8) {
        0..5 => {
            let count = 1 + rng.below(6);
            let data = rng.bytes(count as usize * BLOCK_SIZE);
            let _full = level.write(BlockAddr(rng.below(blocks - count)), &data);
        }
        5 => level.discard(BlockAddr(rng.below(blocks - 20)), 1 + rng.below(20)).unwrap(),
        6 => {
            let _no_cover = level.flush();
        }
        _ => level.read(BlockAddr(rng.below(blocks)), &mut [0; BLOCK_SIZE]).unwrap(),
    }
}

/// The trace of a seeded public workload of several sessions.
fn play(params: &Params, seed: u64, hidden: Hidden) -> Vec<Record> {
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.medium_len()))));
    recorder.keep_contents(true);
    let medium: Arc<dyn Medium> = recorder.clone();
    let levels = if hidden == Hidden::Absent { 1 } else { 2 };
    create(&medium, params, levels, seed).unwrap();
    let (mut public_rng, mut hidden_rng) = (Rng::new(seed), Rng::new(!seed));
    for session in 0..3 {
        let filler = seed ^ hidden as u64 ^ 0xf111;
        let disk = open_with(&medium, params, levels, options(seed + session, filler + session)).unwrap();
        let all = disk.levels();
        for _ in 0..30 + public_rng.below(60) {
            public_step(&all[0], &disk, &mut public_rng);
            if hidden == Hidden::Busy || hidden == Hidden::Leaky {
                hidden_step(&all[1], &mut hidden_rng);
            }
            let waiting = all.get(1).map_or(0, |l| l.status().items.last().unwrap().value);
            if hidden == Hidden::Leaky && waiting > 4 * BLOCK_SIZE as u64 {
                disk.refresh().unwrap();
            }
        }
        // Closing fails where something hidden still waits for cover, and leaves the same trace.
        let _no_cover = disk.close();
        drop((all, disk));
    }
    recorder.take()
}

/// What the key of level 0 decrypts, as it lies, and the rest.
fn split(params: &Params, record: &Record) -> (Vec<u8>, Vec<u8>) {
    let bytes = record.contents.clone().unwrap_or_default();
    let hidden_slots = usize::from(params.geometry.hidden);
    let public_at = HIDDEN_PART + 7 * 48 + hidden_slots * 48;
    let slots_at = (1 + usize::from(params.geometry.public)) * BLOCK_SIZE;
    if bytes.len() != slots_at + hidden_slots * BLOCK_SIZE {
        return (bytes, Vec::new());
    }
    let public = [&bytes[..SUMMARY_TAGS.start], &bytes[public_at..slots_at]].concat();
    let rest = [&bytes[HIDDEN_PART..public_at], &bytes[slots_at..]].concat();
    (public, rest)
}

/// Where two traces differ for someone with the key of level 0, if they do.
fn difference(params: &Params, one: &[Record], other: &[Record]) -> Option<String> {
    for (at, (a, b)) in one.iter().zip(other).enumerate() {
        if (a.kind, a.offset, a.len, a.ok) != (b.kind, b.offset, b.len, b.ok) {
            return Some(format!(
                "operation {at}: {:?} {} {} against {:?} {} {}",
                a.kind, a.offset, a.len, b.kind, b.offset, b.len
            ));
        }
        if split(params, a).0 != split(params, b).0 {
            return Some(format!("operation {at} differs in what level 0 can read"));
        }
    }
    (one.len() != other.len()).then(|| format!("{} operations against {}", one.len(), other.len()))
}

/// Writes and syncs alone: reads leave no trace on a medium.
fn writes(records: Vec<Record>) -> Vec<Record> {
    records.into_iter().filter(|record| record.kind != OpKind::Read).collect()
}

/// The chi-square statistic of the bytes, against uniform: 255 degrees of freedom.
fn chi_square<'a>(bytes: impl Iterator<Item = &'a u8>) -> f64 {
    let mut counts = [0u64; 256];
    bytes.for_each(|&b| counts[usize::from(b)] += 1);
    let expected = counts.iter().sum::<u64>() as f64 / 256.0;
    counts.iter().map(|&n| (n as f64 - expected).powi(2) / expected).sum()
}

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn traces_with_and_without_hidden_operations_are_the_same() {
    let params = params();
    let mut rest: [Vec<u8>; 3] = Default::default();
    for seed in 1..=env("LACUNA_GAMES", 300) {
        let runs =
            [Hidden::Absent, Hidden::Idle, Hidden::Busy].map(|h| writes(play(&params, seed * 1000, h)));
        for run in &runs[1..] {
            assert_eq!(difference(&params, &runs[0], run), None, "seed {seed}");
        }
        if seed <= 20 {
            for (rest, run) in rest.iter_mut().zip(&runs) {
                run.iter().for_each(|record| rest.extend(split(&params, record).1));
            }
        }
    }
    for bytes in &rest {
        let statistic = chi_square(bytes.iter());
        // Mean 255, standard deviation 22.6: six of them away.
        assert!((120.0..392.0).contains(&statistic), "chi-square {statistic} over {} bytes", bytes.len());
        let ones: u64 = bytes.iter().map(|b| u64::from(b.count_ones())).sum();
        let bits = bytes.len() as f64 * 8.0;
        assert!((ones as f64 - bits / 2.0).abs() < 6.0 * (bits / 4.0).sqrt(), "{ones} ones of {bits} bits");
    }
}

#[test]
fn a_leaky_disk_is_caught() {
    let params = params();
    let caught = (1..=20).filter(|seed| {
        let idle = writes(play(&params, seed * 1000, Hidden::Idle));
        let leaky = writes(play(&params, seed * 1000, Hidden::Leaky));
        difference(&params, &idle, &leaky).is_some()
    });
    assert!(caught.count() > 10);
}
