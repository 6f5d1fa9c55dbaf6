//! The times of batches, compared as an observer would: a two-sample test (Kolmogorov-Smirnov) of
//! the times between batches, with the same public work and a hidden level absent, idle, busy or
//! full.
//!
//! The clock is simulated: a model of a solid-state disk charges for every call to the medium, and
//! every draw from the filler charges for the encryption or the filler that it is made for: half a
//! microsecond, and half a nanosecond for each byte. The result is therefore the same on every
//! machine. With 400 times in each sample, the test distinguishes distributions that differ by more
//! than 0.12 anywhere, at a significance level of 1 percent. An engine that decrypts and encrypts
//! only the cells that a level uses fails it with p = 3e-44 for a busy hidden level.

mod fixture;

use fixture::{create, flush_hidden, open_with, options};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Clock, Disk, ManualClock};
use lacuna_crypto::{RandomSource, SeededRandom};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Levels, OpenOptions, Params, Plan, Randomness};
use lacuna_sim::{LatencyMedium, LatencyModel, Rng};
use lacuna_testkit::levels::seeded_randomness;
use std::sync::Arc;
use std::time::Duration;

/// Times in each sample.
const SAMPLES: usize = 400;

/// A filler that charges time for its draws.
struct ChargedRandom {
    random: SeededRandom,
    clock: Arc<ManualClock>,
}

impl RandomSource for ChargedRandom {
    fn fill(&self, out: &mut [u8]) {
        self.clock.advance(Duration::from_nanos(500 + out.len() as u64 / 2));
        self.random.fill(out);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum HiddenActivity {
    Absent,
    Idle,
    Busy,
    Full,
    /// A hidden level that causes batches of its own.
    Leaky,
}

/// The times between batches of a public stream, in nanoseconds.
fn times(hidden: HiddenActivity, seed: u64) -> Vec<u64> {
    let params = Params::plan(48 << 20, Plan { operations: 16, ..Plan::DEFAULT }).unwrap();
    let memory: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.end()));
    let levels = if hidden == HiddenActivity::Absent { 1 } else { 2 };
    create(&memory, &params, levels, seed).unwrap();
    let clock = Arc::new(ManualClock::default());
    let medium: Arc<dyn Medium> =
        Arc::new(LatencyMedium::new(memory, LatencyModel::ssd(), Arc::clone(&clock)));
    let filler = Arc::new(ChargedRandom { random: SeededRandom::new(seed), clock: Arc::clone(&clock) });
    let disk = open_with(
        &medium,
        &params,
        levels,
        OpenOptions { random: Randomness { filler, ..seeded_randomness(seed, 0) }, ..options(seed, 0) },
    )
    .unwrap();
    let open = disk.levels();
    let mut rng = Rng::new(seed);
    if hidden == HiddenActivity::Full {
        for at in 0..open[1].blocks() {
            while open[1].write(BlockAddr(at), &[at as u8; BLOCK_SIZE]).is_err() {
                disk.refresh().unwrap();
            }
        }
        flush_hidden(&disk, &open[1]).unwrap();
    }
    // The same public work comes first in every run.
    (0..open[0].blocks()).for_each(|at| open[0].write(BlockAddr(at), &[1; BLOCK_SIZE]).unwrap());
    let batch = || fixture::counter(&open[0], "last_batch");
    let (mut last, mut since, mut found) = (batch(), clock.now(), Vec::new());
    while found.len() < SAMPLES {
        open[0].write(BlockAddr(rng.below(open[0].blocks())), &[2; BLOCK_SIZE]).unwrap();
        if hidden == HiddenActivity::Busy || hidden == HiddenActivity::Leaky {
            let _no_cover = open[1].write(BlockAddr(rng.below(open[1].blocks())), &[3; BLOCK_SIZE]);
        }
        if hidden == HiddenActivity::Leaky && rng.chance(1, 12) {
            disk.refresh().unwrap();
        }
        if batch() != last {
            let now = clock.now();
            found.push(now.saturating_sub(since).as_nanos() as u64);
            (last, since) = (batch(), now);
        }
    }
    found
}

/// The probability that two samples of one distribution differ by at least this much
/// (Kolmogorov-Smirnov, asymptotic).
fn likelihood(one: &[u64], other: &[u64]) -> f64 {
    let part = |sample: &[u64], most: u64| {
        sample.iter().filter(|time| **time <= most).count() as f64 / sample.len() as f64
    };
    let distance = one.iter().chain(other).map(|at| (part(one, *at) - part(other, *at)).abs());
    let distance = distance.fold(0.0, f64::max);
    let size = (one.len() as f64 * other.len() as f64 / (one.len() + other.len()) as f64).sqrt();
    let scaled = (size + 0.12 + 0.11 / size) * distance;
    if scaled < 0.2 {
        return 1.0;
    }
    let term = |n: i32| f64::from(1 - 2 * ((n + 1) % 2)) * (-2.0 * f64::from(n * n) * scaled * scaled).exp();
    (2.0 * (1..100).map(term).sum::<f64>()).clamp(0.0, 1.0)
}

#[test]
fn batch_times_reveal_no_hidden_level() {
    let absent = times(HiddenActivity::Absent, 1);
    // Two runs of one kind must be similar too.
    let others = [
        (HiddenActivity::Absent, 2),
        (HiddenActivity::Idle, 3),
        (HiddenActivity::Busy, 4),
        (HiddenActivity::Full, 5),
    ];
    for (hidden, seed) in others {
        let p = likelihood(&absent, &times(hidden, seed));
        println!("{}: p = {p:e}", hidden as u8);
        assert!(p > 0.01, "{} shows: p = {p:e}", hidden as u8);
    }
    let leaky = likelihood(&absent, &times(HiddenActivity::Leaky, 6));
    assert!(leaky < 1e-3, "the test does not bite: p = {leaky:e}");
}
