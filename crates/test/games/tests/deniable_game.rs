//! The game of the paper (section 2.2) at every depth, as equality instead of a guess. The
//! adversary has the keys of levels 0 to *d*, all writes in order, and every byte. Runs with the
//! same operations on those levels and the same public randomness, and with the levels above
//! absent, idle, busy or full, give traces that agree in every position, length and order, and in
//! every byte outside the slots and records of the levels above. Those bytes pass tests of
//! randomness.
//!
//! Bytes that the adversary cannot decrypt come from the same seed in all runs of a comparison. So
//! all bytes can be compared, and any byte that depends on hidden data is found.
//!
//! Closes are compared as well: if a level above had more pending data than closing covers, its run
//! ends like a run without that level on a medium that fails at that moment.
//!
//! With the threads of the disk running, a separate thread drives the levels above, on a slow
//! medium. The workload triggers the beats of cover, because the adversary knows the time.
//!
//! `LACUNA_GAMES` sets the rounds at each depth (default 20), `LACUNA_SEED` the first seed (default
//! 1).

#[path = "../../../formats/deniable/tests/fixture/mod.rs"]
mod fixture;

use fixture::{create_with, open_with, options, params_of};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_deniable::{DeniableDisk, LevelDisk, Levels, OpenOptions, Params, StripeGeometry};
use lacuna_games::{SeedReporter, game_count, game_seeds};
use lacuna_levels::Pace;
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::{Fault, FaultMedium, OpKind, RecordedOp, Recorder, Rng, SlowMedium, env_number};
use lacuna_testkit::StopAtEnd;
use lacuna_testkit::levels::{UpperLevels, seeded_randomness};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The tag and digest of a summary depend on the hidden bytes, and look random without the keys.
const SUMMARY_TAGS: Range<usize> = 32..64;
const ROOTS: usize = 64;
const ROOT: usize = 48;
const ENTRIES: usize = ROOTS + 7 * ROOT;

const SESSIONS: usize = 3;

/// A comparison: the number of levels that the adversary can open, and how the disk is run.
#[derive(Clone, Copy)]
struct TraceGame {
    depth: usize,
    threads: bool,
    seed: u64,
}

/// A disk with all levels that a game at depth 2 can have: levels 1, 2 and 3 have 13, 3 and 1
/// slots, and one slot belongs to no level.
fn params() -> Params {
    let params = params_of(StripeGeometry { public: 4, hidden: 18 }, 96);
    assert_eq!(
        (1..=params.hidden_levels()).map(|level| params.slots(level).len()).collect::<Vec<_>>(),
        [13, 3, 1]
    );
    Params { cover_millis: 0, ..params }
}

fn step(level: &LevelDisk, disk: &DeniableDisk, rng: &mut Rng) {
    let blocks = level.blocks();
    let public = level.level() == 0;
    match rng.below(10) {
        0..6 => {
            let count = 1 + rng.below(6);
            let data = rng.bytes(count as usize * BLOCK_SIZE);
            let written = level.write(BlockAddr(rng.below(blocks - count)), &data);
            assert!(!public || written.is_ok());
        }
        6 => {
            let count = 1 + rng.below(15);
            let _many = level.discard(BlockAddr(rng.below(blocks - count)), count);
        }
        7 => {
            let _no_cover = level.flush();
        }
        8 if public => disk.refresh().unwrap(),
        _ => level.read(BlockAddr(rng.below(blocks)), &mut [0; BLOCK_SIZE]).unwrap(),
    }
}

/// Fills a level above before the session.
fn fill(disk: &DeniableDisk, level: &LevelDisk, rng: &mut Rng) {
    for addr in 0..level.blocks() {
        let data = rng.bytes(BLOCK_SIZE);
        while let Err(e) = level.write(BlockAddr(addr), &data) {
            assert_eq!(e.kind(), Kind::NoCover);
            disk.refresh().unwrap();
        }
    }
}

/// One session: the workload on the levels that the adversary can open, and another on the levels
/// above.
fn session(disk: &Arc<DeniableDisk>, game: TraceGame, above: UpperLevels, rngs: &mut [Rng; 2], steps: u64) {
    let levels = disk.levels();
    let (known, unknown) = levels.split_at(game.depth + 1);
    let [below, hidden] = rngs;
    let busy = !unknown.is_empty() && above != UpperLevels::Idle;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if busy && game.threads {
            let mut rng = Rng::new(hidden.next_u64());
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    unknown.iter().for_each(|level| step(level, disk, &mut rng));
                }
            });
        }
        let _stop = StopAtEnd(&done);
        for _ in 0..steps {
            step(&known[below.below(known.len() as u64) as usize], disk, below);
            if busy && !game.threads {
                unknown.iter().for_each(|level| step(level, disk, hidden));
            }
            let queued = unknown.first().map_or(0, |level| fixture::counter(level, "waiting_for_cover"));
            if above == UpperLevels::Leaky && queued > 4 * BLOCK_SIZE as u64 {
                disk.refresh().unwrap();
            }
        }
    });
}

/// A run of several sessions.
struct RunTrace {
    trace: Vec<RecordedOp>,
    /// For each session, whether closing failed.
    failed_closes: [bool; SESSIONS],
}

/// Closes the disk. If it `fails`, the medium refuses the end of the log. Returns whether the close
/// failed.
fn close(disk: &DeniableDisk, medium: &FaultMedium<Recorder<MemoryMedium>>, fails: bool) -> bool {
    disk.cover_closing(Pace::Immediate).unwrap();
    if fails {
        medium.add(Fault::FailFrom { op: OpKind::Write, nth: 1, error: Kind::Io });
    }
    let closed = disk.close();
    medium.heal();
    closed.is_err()
}

/// A run, and a run without the levels above. In the latter the medium fails at the end of each
/// session where the former lost pending data.
fn play_with_and_without(game: TraceGame, above: UpperLevels) -> [RunTrace; 2] {
    let run = play(game, above, [false; SESSIONS]);
    let absent = play(game, UpperLevels::Absent, run.failed_closes);
    assert_eq!(run.failed_closes, absent.failed_closes, "the caller hears of both alike");
    [absent, run]
}

/// The trace of a seeded workload of several sessions, with closes that fail in `failing` sessions.
fn play(game: TraceGame, above: UpperLevels, failing: [bool; SESSIONS]) -> RunTrace {
    // The game compares data from public randomness byte for byte, and hedging would change it.
    lacuna_crypto::nonce_log::disable_hedging();
    let params = params();
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.end()))));
    recorder.keep_contents(true);
    let faulty = Arc::new(FaultMedium::new(recorder.clone()));
    let medium: Arc<dyn Medium> =
        if game.threads { SlowMedium::wrap(faulty.clone(), game.seed) } else { faulty.clone() };
    let mut failed = [false; SESSIONS];
    let most = 1 + usize::from(params.hidden_levels());
    let levels = if above == UpperLevels::Absent { game.depth + 1 } else { most };
    create_with(&medium, &params, levels, seeded_randomness(game.seed, game.seed ^ 0xf111)).unwrap();
    let mut rngs = [Rng::new(game.seed), Rng::new(!game.seed ^ above as u64)];
    for (turn, failed) in (0..).zip(&mut failed) {
        let seeds = options(game.seed + turn, (game.seed + turn) ^ 0xf111);
        let options = OpenOptions { background: game.threads, ..seeds };
        let disk = open_with(&medium, &params, levels, options).unwrap();
        if turn == 0 {
            // The same amount of cover in every run, whether or not a level is filled.
            if above == UpperLevels::Full {
                let levels = disk.levels();
                levels[game.depth + 1..].iter().for_each(|level| fill(&disk, level, &mut rngs[1]));
            }
            let head = fixture::counter(&disk.levels()[0], "head");
            (head..3 * params.stripes).for_each(|_| disk.refresh().unwrap());
        }
        let steps = 30 + rngs[0].below(60);
        session(&disk, game, above, &mut rngs, steps);
        *failed = close(&disk, &faulty, failing[turn as usize]);
    }
    let trace = recorder.take().into_iter().filter(|record| record.kind != OpKind::Read).collect();
    RunTrace { trace, failed_closes: failed }
}

/// The ranges of a stripe that depend on keys of levels deeper than `depth`.
fn undecryptable_ranges(params: &Params, depth: usize) -> Vec<Range<usize>> {
    let hidden = usize::from(params.geometry.hidden);
    let slots_at = (1 + usize::from(params.geometry.public)) * BLOCK_SIZE;
    let mut parts = vec![SUMMARY_TAGS];
    for level in depth + 1..=usize::from(params.hidden_levels()) {
        let slots = params.slots(level as u8);
        let echo = ENTRIES + hidden * 32;
        parts.push(ROOTS + (level - 1) * ROOT..ROOTS + level * ROOT);
        parts.push(ENTRIES + slots.start * 32..ENTRIES + slots.end * 32);
        parts.push(echo + slots.start * 16..echo + slots.end * 16);
        parts.push(slots_at + slots.start * BLOCK_SIZE..slots_at + slots.end * BLOCK_SIZE);
    }
    parts
}

/// The bytes of a write that the adversary can check, and the remaining ones.
fn split(params: &Params, depth: usize, record: &RecordedOp) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = record.contents.clone().unwrap_or_default();
    let mut rest = Vec::new();
    if bytes.len() > BLOCK_SIZE {
        for part in undecryptable_ranges(params, depth) {
            rest.extend_from_slice(&bytes[part.clone()]);
            bytes[part].fill(0);
        }
    }
    (bytes, rest)
}

/// The first difference between two traces for an adversary with the keys of levels 0 to `depth`.
fn difference(depth: usize, one: &[RecordedOp], other: &[RecordedOp]) -> Option<String> {
    let params = params();
    for (at, (a, b)) in one.iter().zip(other).enumerate() {
        let differ = |what: &str| Some(format!("operation {at}, at {} and {}: {what}", a.offset, b.offset));
        if (a.kind, a.offset, a.len, a.ok) != (b.kind, b.offset, b.len, b.ok) {
            return differ("kind, place, length or outcome");
        }
        if split(&params, depth, a).0 != split(&params, depth, b).0 {
            return differ("bytes");
        }
    }
    (one.len() != other.len()).then(|| format!("{} operations against {}", one.len(), other.len()))
}

/// The writes alone. Another thread makes the syncs, so their place among the writes varies.
fn writes_only(records: Vec<RecordedOp>) -> Vec<RecordedOp> {
    records.into_iter().filter(|record| record.kind == OpKind::Write).collect()
}

/// The chi-square statistic of the bytes against a uniform distribution: 255 degrees of freedom.
fn chi_square<'a>(bytes: impl Iterator<Item = &'a u8>) -> f64 {
    let mut counts = [0u64; 256];
    bytes.for_each(|&b| counts[usize::from(b)] += 1);
    let expected = counts.iter().sum::<u64>() as f64 / 256.0;
    counts.iter().map(|&n| (n as f64 - expected).powi(2) / expected).sum()
}

#[test]
fn traces_hide_the_levels_above_at_every_depth() {
    let (params, seeds) = (params(), game_seeds(1, 20));
    for depth in 0..3 {
        let mut rest: [Vec<u8>; 3] = Default::default();
        let (mut endings, mut digest) = ([0u64; 2], DefaultHasher::new());
        for seed in seeds.clone() {
            let _seed = SeedReporter(seed);
            let game = TraceGame { depth, threads: false, seed: seed * 1000 };
            let idle = play_with_and_without(game, UpperLevels::Idle);
            let busy = play_with_and_without(game, UpperLevels::Busy);
            for [absent, run] in [&idle, &busy] {
                let found = difference(depth, &absent.trace, &run.trace);
                assert_eq!(found, None, "depth {depth}, seed {seed}");
                for failed in run.failed_closes {
                    endings[usize::from(failed)] += 1;
                }
                run.trace.iter().for_each(|record| split(&params, depth, record).0.hash(&mut digest));
            }
            if seed < seeds.start + 8 {
                for (rest, run) in rest.iter_mut().zip([&idle[0], &idle[1], &busy[1]]) {
                    run.trace.iter().for_each(|record| rest.extend(split(&params, depth, record).1));
                }
            }
        }
        println!(
            "depth {depth}, seed {}: {} endings, {} of them with a loss; digest {:016x}",
            seeds.start,
            endings[0] + endings[1],
            endings[1],
            digest.finish()
        );
        assert!(endings.iter().all(|count| *count > 0), "depth {depth}: {endings:?}");
        for bytes in &rest {
            let statistic = chi_square(bytes.iter());
            // Mean 255, standard deviation 22.6: at most six deviations away.
            assert!((120.0..392.0).contains(&statistic), "chi-square {statistic} over {} bytes", bytes.len());
            let ones: u64 = bytes.iter().map(|b| u64::from(b.count_ones())).sum();
            let bits = bytes.len() as f64 * 8.0;
            assert!(
                (ones as f64 - bits / 2.0).abs() < 6.0 * (bits / 4.0).sqrt(),
                "{ones} ones of {bits} bits"
            );
        }
    }
}

#[test]
fn full_levels_above_leave_the_same_trace() {
    let seed = env_number("LACUNA_SEED", 7);
    let _seed = SeedReporter(seed);
    for depth in 0..3 {
        let game = TraceGame { depth, threads: false, seed };
        let [absent, full] = play_with_and_without(game, UpperLevels::Full);
        assert_eq!(difference(depth, &absent.trace, &full.trace), None, "depth {depth}");
    }
}

/// With threads, data that the adversary can decrypt depends on the order of operations, and not on
/// the progress of a thread.
#[test]
fn threads_hide_the_levels_above_at_every_depth() {
    for depth in 0..3 {
        for seed in game_seeds(1, 20).take(game_count(20) as usize / 4) {
            let _seed = SeedReporter(seed);
            let game = TraceGame { depth, threads: true, seed: seed * 1000 };
            for above in [UpperLevels::Idle, UpperLevels::Busy, UpperLevels::Full] {
                let [absent, run] =
                    play_with_and_without(game, above).map(|played| writes_only(played.trace));
                assert_eq!(difference(depth, &absent, &run), None, "depth {depth}, seed {seed}, {above:?}");
            }
        }
    }
}

#[test]
fn a_leaky_disk_is_caught_at_every_depth() {
    for depth in 0..3 {
        let caught = (1..=6).filter(|seed| {
            let game = TraceGame { depth, threads: false, seed: seed * 1000 };
            let [idle, leaky] = [UpperLevels::Idle, UpperLevels::Leaky]
                .map(|above| play(game, above, [false; SESSIONS]).trace);
            difference(depth, &idle, &leaky).is_some()
        });
        assert!(caught.count() > 3, "depth {depth}");
    }
}
