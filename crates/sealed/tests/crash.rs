//! Power cuts: a model beside the real disk, on a medium that loses, reorders and tears what was not synced.
//!
//! A round runs random operations until the power goes after a random number of medium operations, opens what
//! the medium kept (power may go again during recovery), and compares every block with the model: it must read
//! as its last flushed version or any later acknowledged one. Rounds continue on the same medium.
//!
//! `LACUNA_CUTS` sets the cuts per cipher and layout (default 500), `LACUNA_SEED` the seed.

use lacuna_core::{BLOCK_SIZE, BlockAddr, Budget, Disk, Result, SEGMENT_BLOCKS, Secret};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_sealed::{Layout, OpenOptions, Params, Sealed};
use lacuna_sim::{CrashMedium, Image, Rng};
use std::sync::Arc;

const BLOCKS: u64 = 2 * SEGMENT_BLOCKS + 300;
const MASTER: [u8; 32] = [5; 32];
const UUID: [u8; 16] = [6; 16];

/// Versions a block may have after a cut: the first is the last flushed, the last is the latest.
/// A version is a stamp; 0 is a block of zeros.
struct Model {
    versions: Vec<Vec<u64>>,
}

impl Model {
    fn new() -> Self {
        Model { versions: vec![vec![0]; BLOCKS as usize] }
    }

    fn set(&mut self, first: u64, count: u64, stamp: impl Fn(u64) -> u64) {
        for block in first..first + count {
            self.versions[block as usize].push(stamp(block));
        }
    }

    fn flushed(&mut self) {
        for versions in self.versions.iter_mut().filter(|versions| versions.len() > 1) {
            let latest = *versions.last().unwrap();
            versions.clear();
            versions.push(latest);
        }
    }
}

fn fill(block: u64, stamp: u64, out: &mut [u8]) {
    if stamp == 0 {
        out.fill(0);
        return;
    }
    let mut word = stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block;
    for chunk in out.chunks_exact_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(stamp | 1);
    }
    out[..8].copy_from_slice(&stamp.to_le_bytes());
}

fn stamp_of(block: u64, data: &[u8]) -> Option<u64> {
    let stamp = u64::from_le_bytes(data[..8].try_into().unwrap());
    let mut expected = [0; BLOCK_SIZE];
    fill(block, stamp, &mut expected);
    (data == expected).then_some(stamp)
}

struct Round<'a> {
    disk: &'a Sealed,
    model: &'a mut Model,
    rng: &'a mut Rng,
    next_stamp: &'a mut u64,
}

impl Round<'_> {
    /// Runs operations until one fails because the power went.
    fn run(&mut self, operations: u64) {
        for _ in 0..operations {
            if self.step().is_err() {
                return;
            }
        }
        let _ = self.disk.close().map(|()| self.model.flushed());
    }

    fn step(&mut self) -> Result<()> {
        match self.rng.below(100) {
            0..52 => {
                let count = 1 + self.rng.below(6);
                let first = self.rng_first(count);
                self.write(first, count)
            }
            52..58 => {
                let count = 16 + self.rng.below(300);
                let first = self.rng_first(count);
                self.write(first, count)
            }
            58..63 => self.stream(),
            63..70 => {
                let count = 1 + self.rng.below(100);
                let first = self.rng_first(count);
                self.discard(first, count)
            }
            70..72 => {
                let first = self.rng.below(BLOCKS / SEGMENT_BLOCKS) * SEGMENT_BLOCKS;
                self.discard(first, SEGMENT_BLOCKS)
            }
            72..82 => {
                self.disk.flush()?;
                self.model.flushed();
                Ok(())
            }
            _ => {
                let count = 1 + self.rng.below(200);
                let first = self.rng_first(count);
                self.compare_latest(first, count)
            }
        }
    }

    fn rng_first(&mut self, count: u64) -> u64 {
        // Half of the work happens in one corner, so that versions meet.
        let room = if self.rng.chance(1, 2) { 400 } else { BLOCKS };
        self.rng.below(room.min(BLOCKS - count + 1))
    }

    /// A run of large writes from the start of a segment, sometimes left unfinished.
    fn stream(&mut self) -> Result<()> {
        let first = self.rng.below(BLOCKS / SEGMENT_BLOCKS) * SEGMENT_BLOCKS;
        let mut at = first;
        let end = first + 1 + self.rng.below(SEGMENT_BLOCKS * 5 / 4).min(BLOCKS - first - 1);
        while at < end {
            let count = (64 + self.rng.below(200)).min(end - at);
            self.write(at, count)?;
            at += count;
        }
        Ok(())
    }

    fn write(&mut self, first: u64, count: u64) -> Result<()> {
        *self.next_stamp += 1;
        let stamp = *self.next_stamp;
        let mut data = vec![0; count as usize * BLOCK_SIZE];
        for (block, out) in (first..).zip(data.chunks_exact_mut(BLOCK_SIZE)) {
            fill(block, stamp, out);
        }
        // A write that the power cut short may have happened to any of its blocks.
        self.model.set(first, count, |_| stamp);
        self.disk.write(BlockAddr(first), &data)
    }

    fn discard(&mut self, first: u64, count: u64) -> Result<()> {
        self.model.set(first, count, |_| 0);
        self.disk.discard(BlockAddr(first), count)
    }

    fn compare_latest(&mut self, first: u64, count: u64) -> Result<()> {
        let mut data = vec![0; count as usize * BLOCK_SIZE];
        self.disk.read(BlockAddr(first), &mut data)?;
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            let latest = *self.model.versions[block as usize].last().unwrap();
            assert_eq!(stamp_of(block, data), Some(latest), "block {block} while running");
        }
        Ok(())
    }
}

fn options(seed: u64) -> OpenOptions {
    OpenOptions {
        budget: Budget::bytes(1 << 20),
        read_only: false,
        write_through: false,
        background: false,
        random: Arc::new(SeededRandom::new(seed)),
    }
}

fn open(medium: &Arc<CrashMedium>, params: &Params, seed: u64) -> Result<Sealed> {
    Sealed::open(medium.clone(), params, &Secret::copy_from(&MASTER), &UUID, options(seed))
}

/// What went wrong after a cut, if anything.
fn compare(disk: &Sealed, model: &mut Model) -> std::result::Result<(), String> {
    let mut data = vec![0; SEGMENT_BLOCKS as usize * BLOCK_SIZE];
    for first in (0..BLOCKS).step_by(SEGMENT_BLOCKS as usize) {
        let count = SEGMENT_BLOCKS.min(BLOCKS - first);
        let data = &mut data[..count as usize * BLOCK_SIZE];
        disk.read(BlockAddr(first), data).map_err(|e| format!("alarm: {e}"))?;
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            let versions = &mut model.versions[block as usize];
            match stamp_of(block, data) {
                None => return Err(format!("block {block} is a mixture")),
                Some(stamp) if !versions.contains(&stamp) => {
                    return Err(format!("block {block} reads version {stamp}, allowed {versions:?}"));
                }
                // Recovery made what it found durable.
                Some(stamp) => *versions = vec![stamp],
            }
        }
    }
    Ok(())
}

struct Outcome {
    digest: u64,
    /// Rounds it took: in some the power goes only after all work is done, which counts as no cut.
    rounds: u64,
    violation: Option<String>,
}

fn simulate(cipher: Cipher, layout: Layout, seed: u64, cuts: u64, lie: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    // A fixed medium, so that the map is as small as the disk.
    let params = Params::plan(cipher, layout, BLOCKS, Some(1 << 40)).unwrap();
    let medium = CrashMedium::new(params.geometry().medium_len());
    Sealed::create(&medium, &params, &Secret::copy_from(&MASTER)).unwrap();
    let mut image: Image = medium.image();
    let mut model = Model::new();
    let mut next_stamp = 0;
    let (mut digest, mut in_flight) = (0u64, 0);
    let mut rounds = 0;
    while in_flight < cuts {
        rounds += 1;
        let medium = Arc::new(CrashMedium::from_image(image.clone()));
        medium.ignore_syncs(lie);
        medium.ignore_durable_writes(lie);
        // Long rounds retire the journal; short ones meet every step of recovery and of a first commit.
        let long = rng.chance(1, 6);
        let limit = if rng.chance(1, 8) { rng.below(20) } else { rng.below(if long { 1200 } else { 150 }) };
        medium.cut_after(limit);
        if let Ok(disk) = open(&medium, &params, rng.next_u64()) {
            let operations = 40 + rng.below(if long { 180 } else { 100 });
            Round { disk: &disk, model: &mut model, rng: &mut rng, next_stamp: &mut next_stamp }
                .run(operations);
        }
        in_flight += u64::from(medium.is_cut());
        medium.cut_now();
        image = medium.after_cut(&mut rng);
        digest = digest.rotate_left(7) ^ medium.ops();
        if rounds % 32 == 0 {
            digest ^= medium.digest();
        }

        let after = Arc::new(CrashMedium::from_image(image.clone()));
        let verdict = match open(&after, &params, rng.next_u64()) {
            Ok(disk) => compare(&disk, &mut model),
            Err(e) => Err(format!("does not open: {e}")),
        };
        if let Err(e) = verdict {
            return Outcome { digest, rounds, violation: Some(format!("seed {seed}, round {rounds}: {e}")) };
        }
        image = after.image();
    }
    Outcome { digest, rounds, violation: None }
}

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn no_cut_loses(cipher: Cipher, layout: Layout) {
    let (seed, cuts) = (env("LACUNA_SEED", 1), env("LACUNA_CUTS", 500));
    let outcome = simulate(cipher, layout, seed, cuts, false);
    println!(
        "{} {}: {cuts} cuts in {} rounds, seed {seed}, digest {:016x}",
        cipher.name(),
        layout.name(),
        outcome.rounds,
        outcome.digest
    );
    if let Some(violation) = outcome.violation {
        panic!("{violation}");
    }
}

#[test]
fn xts() {
    no_cut_loses(Cipher::Xts, Layout::SegmentEnd);
}

#[test]
fn hctr2() {
    no_cut_loses(Cipher::Hctr2, Layout::SegmentEnd);
}

#[test]
fn xts_random_segment_end() {
    no_cut_loses(Cipher::XtsRandom, Layout::SegmentEnd);
}

#[test]
fn xts_random_interleaved() {
    no_cut_loses(Cipher::XtsRandom, Layout::Interleaved);
}

#[test]
fn xts_random_kv() {
    no_cut_loses(Cipher::XtsRandom, Layout::Kv);
}

#[test]
fn gcm_segment_end() {
    no_cut_loses(Cipher::Gcm, Layout::SegmentEnd);
}

#[test]
fn gcm_interleaved() {
    no_cut_loses(Cipher::Gcm, Layout::Interleaved);
}

#[test]
fn gcm_kv() {
    no_cut_loses(Cipher::Gcm, Layout::Kv);
}

/// The proof that the harness bites: a medium whose syncs do nothing loses data, and is caught.
#[test]
fn a_missing_sync_is_caught() {
    for cipher in [Cipher::Xts, Cipher::Gcm] {
        let outcome = simulate(cipher, Layout::SegmentEnd, 1, 100, true);
        println!("caught: {}", outcome.violation.expect("lost writes must be noticed"));
    }
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let digest = |seed| simulate(Cipher::Gcm, Layout::SegmentEnd, seed, 10, false).digest;
    assert_eq!(digest(9), digest(9));
    assert_ne!(digest(9), digest(10));
}
