//! Many threads on one disk with its background thread: each thread reads its own writes, none ever
//! sees a mixture or a false alarm, and everything is intact after reopening.

mod fixture;

use fixture::*;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{FileMedium, Medium};
use lacuna_sealed::{OpenOptions, Params, SealedDisk};
use lacuna_sim::Rng;
use std::path::PathBuf;
use std::sync::Arc;

const THREADS: u64 = 4;
/// The threads share segments 0 to 3 in alternating runs of 64 blocks, and segments 4 and 5 in
/// alternating single blocks. Each thread owns two of the remaining segments; the last
/// segment is short.
const BLOCKS: u64 = 14 * SEGMENT_BLOCKS - 300;
const STRIPES: u64 = 4 * SEGMENT_BLOCKS;
const SINGLES: u64 = 6 * SEGMENT_BLOCKS;

fn owner(block: u64) -> u64 {
    if block < STRIPES {
        block / 64 % THREADS
    } else if block < SINGLES {
        block % THREADS
    } else {
        (block / SEGMENT_BLOCKS - 6) % THREADS
    }
}

/// The number of blocks, starting at `first`, with the same owner, at most `most`.
fn owned_run(first: u64, most: u64) -> u64 {
    (first..BLOCKS.min(first + most)).take_while(|b| owner(*b) == owner(first)).count() as u64
}

/// One thread: its number, the stamps that it wrote, and its random generator.
struct WriterThread<'a> {
    disk: &'a SealedDisk,
    number: u64,
    rng: Rng,
    stamps: Vec<u64>,
    next: u64,
}

impl WriterThread<'_> {
    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.rng.below(100) {
                0..40 => self.small(),
                40..52 => self.stream(),
                52..58 => self.discard_some(),
                58..60 => self.discard_segment(),
                60..63 => self.disk.flush().unwrap(),
                63..85 => self.read_own(),
                _ => self.read_others(),
            }
        }
    }

    fn own_block(&mut self) -> u64 {
        loop {
            let block = self.rng.below(BLOCKS);
            if owner(block) == self.number {
                return block;
            }
        }
    }

    fn own_segment(&mut self) -> u64 {
        6 + self.number + THREADS * self.rng.below(2)
    }

    fn put(&mut self, first: u64, count: u64) {
        self.next += THREADS;
        let stamp = self.next;
        write(self.disk, first, count, stamp).unwrap();
        self.stamps[first as usize..(first + count) as usize].fill(stamp);
    }

    fn small(&mut self) {
        let first = self.own_block();
        let count = owned_run(first, 1 + self.rng.below(8));
        self.put(first, count);
        self.verify(first, count);
    }

    /// Writes of up to 1 MiB, one after another, from the start of an own segment.
    fn stream(&mut self) {
        let first = self.own_segment() * SEGMENT_BLOCKS;
        let len = if self.rng.chance(2, 3) { SEGMENT_BLOCKS } else { 1 + self.rng.below(SEGMENT_BLOCKS) };
        let end = (first + len).min(BLOCKS);
        let mut at = first;
        while at < end {
            let count = (64 + self.rng.below(193)).min(end - at);
            self.put(at, count);
            at += count;
        }
        self.verify(first, end - first);
    }

    fn discard_some(&mut self) {
        let first = self.own_block();
        let count = owned_run(first, 1 + self.rng.below(100));
        self.discard(first, count);
    }

    fn discard_segment(&mut self) {
        let first = self.own_segment() * SEGMENT_BLOCKS;
        self.discard(first, SEGMENT_BLOCKS.min(BLOCKS - first));
        // Write again at once: the discard must not remove later writes.
        self.put(first + 17, 3);
        self.verify(first, 64);
    }

    fn discard(&mut self, first: u64, count: u64) {
        self.disk.discard(BlockAddr(first), count).unwrap();
        self.stamps[first as usize..(first + count) as usize].fill(0);
        self.verify(first, count);
    }

    fn read_own(&mut self) {
        let first = self.own_block();
        let count = owned_run(first, 1 + self.rng.below(64));
        self.verify(first, count);
    }

    fn verify(&self, first: u64, count: u64) {
        let mut data = vec![0; count as usize * BLOCK_SIZE];
        self.disk.read(BlockAddr(first), &mut data).unwrap();
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            let expected = self.stamps[block as usize];
            assert_eq!(stamp_of(block, data), Some(expected), "block {block} of thread {}", self.number);
        }
    }

    /// Blocks of other threads hold a whole version, and only one of their owner.
    fn read_others(&mut self) {
        let first = self.rng.below(BLOCKS - 128);
        let count = 1 + self.rng.below(128);
        let mut data = vec![0; count as usize * BLOCK_SIZE];
        self.disk.read(BlockAddr(first), &mut data).unwrap();
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            let stamp =
                stamp_of(block, data).unwrap_or_else(|| panic!("block {block} mixes several versions"));
            assert!(stamp == 0 || stamp % THREADS == owner(block), "block {block} reads {stamp}");
        }
    }
}

fn background(seed: u64) -> OpenOptions {
    OpenOptions { background: true, ..options(seed) }
}

fn open_background(medium: &Arc<dyn Medium>, params: &Params, seed: u64) -> SealedDisk {
    open_with(medium.clone(), params, background(seed)).unwrap()
}

/// Runs the threads, closes, opens again and compares; twice, so that segments move away from old
/// slots.
fn threads_agree(medium: &Arc<dyn Medium>, params: &Params, seed: u64, steps: u64) {
    create(&**medium, params);
    let mut stamps = vec![0; BLOCKS as usize];
    for round in 0..2u64 {
        let disk = open_background(medium, params, seed * 10 + round);
        let parts: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|me| {
                    let (disk, stamps) = (&disk, stamps.clone());
                    let rng = Rng::new(seed * 1000 + round * 100 + me);
                    let next = (round + 1) * (1 << 40) + me;
                    scope.spawn(move || {
                        let mut writer = WriterThread { disk, number: me, rng, stamps, next };
                        writer.run(steps);
                        writer.stamps
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for (block, stamp) in stamps.iter_mut().enumerate() {
            *stamp = parts[owner(block as u64) as usize][block];
        }
        for counter in ["segments_moved", "journal_retirements", "destaged", "journal_batches"] {
            assert!(status(&disk, counter) > 0, "{counter}: the run must cover it");
        }
        disk.close().unwrap();
        drop(disk);
        assert_all(&open_background(medium, params, 999), &stamps);
    }
}

fn assert_all(disk: &SealedDisk, stamps: &[u64]) {
    assert_eq!(status(disk, "batches_replayed"), 0);
    for (block, stamp) in (0..).zip(stamps) {
        assert_eq!(
            stamp_of(block, &read(disk, block).unwrap()),
            Some(*stamp),
            "block {block} after reopening"
        );
    }
    let report = lacuna_contracts::check_disk(disk, |_| Ok(()), |b| panic!("{}", b.error)).unwrap();
    assert_eq!(report.bad, 0);
}

fn in_memory(cipher: Cipher, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let params = params(cipher, BLOCKS);
        let medium: Arc<dyn Medium> = Arc::new(lacuna_medium::MemoryMedium::new(params.geometry().end()));
        threads_agree(&medium, &params, seed, 250);
    }
}

#[test]
fn threads_agree_with_gcm() {
    in_memory(Cipher::Gcm, 0..3);
}

#[test]
fn threads_agree_with_xts_random() {
    in_memory(Cipher::XtsRandom, 30..32);
}

#[test]
fn threads_agree_with_hctr2() {
    in_memory(Cipher::Hctr2, 40..41);
}

#[test]
fn threads_agree_on_a_file() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("concurrent.img");
    let params = params(Cipher::Gcm, BLOCKS);
    let medium = FileMedium::create(&path, params.geometry().end()).unwrap();
    let medium: Arc<dyn Medium> = Arc::new(medium);
    threads_agree(&medium, &params, 50, 250);
    std::fs::remove_file(path).unwrap();
}
