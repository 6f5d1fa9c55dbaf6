//! The jobs that measure disks on flash, executed in this process.

use crate::flash::disks::KeyMode;
use crate::serving::job::{Direction, IoJob};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Result};
use lacuna_flash::FlashDisk;
use lacuna_sim::Rng;
use std::sync::atomic::{AtomicU64, Ordering};

/// The jobs, in the order of the figures.
pub(crate) const JOBS: [IoJob; 8] = [
    job(Direction::Write, false, 1),
    job(Direction::Write, false, 8),
    job(Direction::Read, false, 1),
    job(Direction::Read, false, 8),
    job(Direction::Write, true, 1),
    job(Direction::Write, true, 8),
    job(Direction::Read, true, 1),
    job(Direction::Read, true, 8),
];
/// One of this number of write requests is a discard instead.
pub(crate) const DISCARDS: u64 = 16;
/// The disk is purged each time that this fraction (1/20) of it was overwritten.
pub(crate) const PURGES: u64 = 20;

const fn job(direction: Direction, random: bool, depth: u32) -> IoJob {
    let size = if random { 4096 } else { 1 << 20 };
    IoJob { depth, ..IoJob::of_size(direction, size) }
}

/// Reads or writes `blocks` blocks, with a thread for each request of the depth. Writes end with a
/// flush; one request in 16 is a discard instead; and a disk with keys is purged each time that a
/// twentieth of it was overwritten.
pub(crate) fn run(disk: &FlashDisk, keys: KeyMode, job: IoJob, blocks: u64, seed: u64) -> Result<()> {
    let len = u64::from(job.size) / BLOCK_SIZE as u64;
    let requests = blocks / len;
    let next = AtomicU64::new(0);
    let written = AtomicU64::new(0);
    let threads = || -> Result<()> {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..job.depth)
                .map(|thread| {
                    let worker = JobThread { disk, keys, job, len, requests, next: &next, written: &written };
                    scope.spawn(move || worker.work(Rng::new(seed << 8 | u64::from(thread))))
                })
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })
    };
    threads()?;
    if job.direction == Direction::Write {
        disk.flush()?;
    }
    Ok(())
}

struct JobThread<'r> {
    disk: &'r FlashDisk,
    keys: KeyMode,
    job: IoJob,
    len: u64,
    requests: u64,
    next: &'r AtomicU64,
    /// Blocks read or written so far.
    written: &'r AtomicU64,
}

impl JobThread<'_> {
    fn work(&self, mut rng: Rng) -> Result<()> {
        let mut buf = rng.bytes(self.len as usize * BLOCK_SIZE);
        let places = self.disk.blocks() / self.len;
        let epoch = self.disk.blocks() / PURGES;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.requests {
                return Ok(());
            }
            let place = if self.job.random { rng.below(places) } else { number % places };
            let first = BlockAddr(place * self.len);
            if self.job.direction == Direction::Read {
                self.disk.read(first, &mut buf)?;
                self.written.fetch_add(self.len, Ordering::Relaxed);
                continue;
            }
            if rng.chance(1, DISCARDS) {
                self.disk.discard(first, self.len)?;
                continue;
            }
            // Each block differs, so that no subject gains from equal ones.
            buf[..8].copy_from_slice(&number.to_le_bytes());
            self.disk.write(first, &buf)?;
            let before = self.written.fetch_add(self.len, Ordering::Relaxed);
            if before / epoch != (before + self.len) / epoch && self.keys != KeyMode::Off {
                self.disk.purge()?;
            }
        }
    }
}
