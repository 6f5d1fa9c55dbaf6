//! The adversary's clock: a beat of the cover closes a stripe, so level 0 shows the number of
//! stripes between beats, and with it the speed of the disk in that second. It must not show which
//! levels exist.
//!
//! Time is that of a modelled medium of 200 MB/s which serves one client after another, beats come
//! every second, and level 0 is written at full speed. Reads by the front ends of hidden levels are
//! not charged (the threat model gives their cost). A sample is the stripes of 40 beats, from ten
//! runs of four with seeds of their own. Samples are compared with the Kolmogorov-Smirnov test at a
//! significance level of 0.001. With this number of beats it distinguishes means that differ by
//! three hundredths in 99 of 100 trials (`the_timing_test_detects_a_3_percent_difference`).
//!
//! At commit 98aa4a1 an idle hidden level cost 31 more reads for each stripe, and the same workload
//! gave p < 1e-15 between absent and idle (this file with the signatures of that commit).

mod fixture;

use fixture::{create, open, params_of};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, ManualClock};
use lacuna_deniable::{Levels, Params, StripeGeometry};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::{InterceptedMedium, LatencyMedium, LatencyModel, MediumInterceptor, Rng};
use lacuna_testkit::kolmogorov_smirnov;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BEAT: Duration = Duration::from_secs(1);
const BEATS: usize = 4;

/// The activity of hidden levels beside the stream of public writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HiddenActivity {
    Absent,
    /// Two levels, filled to nine tenths before.
    Idle,
    /// The same, and both are written.
    Busy,
}

/// A medium that takes time, except while `free` is set: then another client is charged.
struct SharedMedium {
    slow: LatencyMedium<MemoryMedium>,
    fast: Arc<MemoryMedium>,
    free: AtomicBool,
}

impl MediumInterceptor for SharedMedium {
    fn inner(&self) -> &dyn Medium {
        if self.free.load(Ordering::Relaxed) { &*self.fast } else { &self.slow }
    }
}

fn params() -> Params {
    let params = params_of(StripeGeometry::DEFAULT, 192);
    Params { cover_millis: 0, ..params }
}

fn model() -> LatencyModel {
    LatencyModel {
        read_overhead: Duration::from_micros(60),
        write_overhead: Duration::from_micros(60),
        read_bytes_per_second: 200_000_000,
        write_bytes_per_second: 200_000_000,
        sync: Duration::from_micros(400),
        ..LatencyModel::zero_cost()
    }
}

/// The numbers of stripes between beats, in one run.
fn run(seed: u64, hidden: HiddenActivity) -> Vec<f64> {
    let params = params();
    let (fast, clock) = (Arc::new(MemoryMedium::new(params.end())), Arc::new(ManualClock::default()));
    let slow = LatencyMedium::new(Arc::clone(&fast), model(), Arc::clone(&clock));
    let shared = Arc::new(InterceptedMedium(SharedMedium { slow, fast, free: AtomicBool::new(true) }));
    let medium: Arc<dyn Medium> = shared.clone();
    let count = if hidden == HiddenActivity::Absent { 1 } else { 3 };
    create(&medium, &params, count, seed).unwrap();
    let disk = open(&medium, &params, count, seed).unwrap();
    let (levels, mut rng, mut other) = (disk.levels(), Rng::new(seed), Rng::new(!seed));
    let data = vec![7; 64 * BLOCK_SIZE];
    for level in &levels[1..] {
        for addr in 0..level.blocks() * 9 / 10 {
            while level.write(BlockAddr(addr), &data[..BLOCK_SIZE]).is_err() {
                disk.refresh().unwrap();
            }
        }
    }
    while fixture::counter(&levels[0], "head") < 4 * params.stripes {
        disk.refresh().unwrap();
    }
    shared.0.free.store(false, Ordering::Relaxed);
    let (mut found, mut next, mut before) = (Vec::new(), clock_now(&shared) + BEAT, 0);
    while found.len() < BEATS + 1 {
        let blocks = 1 + rng.below(64);
        levels[0]
            .write(BlockAddr(rng.below(levels[0].blocks() - blocks)), &data[..blocks as usize * BLOCK_SIZE])
            .unwrap();
        if hidden == HiddenActivity::Busy {
            for level in &levels[1..] {
                let _full = level.write(BlockAddr(other.below(level.blocks() * 9 / 10)), &data[..BLOCK_SIZE]);
            }
        }
        if clock_now(&shared) >= next {
            disk.refresh().unwrap();
            let head = fixture::counter(&levels[0], "head");
            found.push((head - before) as f64);
            before = head;
            next += BEAT;
        }
    }
    // The first interval began before the clock ran.
    found.split_off(1)
}

fn clock_now(shared: &InterceptedMedium<SharedMedium>) -> Duration {
    shared.0.slow.now()
}

fn sample(seeds: std::ops::Range<u64>, hidden: HiddenActivity) -> Vec<f64> {
    seeds.flat_map(|seed| run(seed, hidden)).collect()
}

#[test]
fn stripes_between_beats_reveal_no_hidden_level() {
    let absent = sample(0..10, HiddenActivity::Absent);
    for (hidden, seeds) in [(HiddenActivity::Idle, 10..20), (HiddenActivity::Busy, 20..30)] {
        let other = sample(seeds, hidden);
        let p = kolmogorov_smirnov(&absent, &other);
        println!("{hidden:?}: p = {p:.3}, {:.1} and {:.1} stripes a beat", mean(&absent), mean(&other));
        assert!(p > 0.001, "{hidden:?}: p = {p}");
    }
}

fn mean(sample: &[f64]) -> f64 {
    sample.iter().sum::<f64>() / sample.len() as f64
}

/// The power of the test: it notices if one of two samples is three hundredths slower.
#[test]
fn the_timing_test_detects_a_3_percent_difference() {
    let one = sample(0..10, HiddenActivity::Absent);
    let other: Vec<f64> =
        sample(10..20, HiddenActivity::Absent).into_iter().map(|stripes| (stripes * 0.97).floor()).collect();
    let mut rng = Rng::new(1);
    let mut again = |from: &[f64]| -> Vec<f64> {
        (0..from.len()).map(|_| from[rng.below(from.len() as u64) as usize]).collect()
    };
    let noticed = (0..100).filter(|_| kolmogorov_smirnov(&again(&one), &again(&other)) < 0.001).count();
    assert!(noticed >= 99, "{noticed} of 100");
}
