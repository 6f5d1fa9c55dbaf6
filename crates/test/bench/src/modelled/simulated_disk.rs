//! A disk on a simulated medium, and its jobs: the time that the models charge is the measured
//! time.

use crate::modelled::in_process;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Clock, Disk, Error, Kind, ManualClock, Result};
use lacuna_deniable::{DeniableDisk, Params};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::{LatencyMedium, LatencyModel, ReadStats, Rng};
use std::sync::Arc;
use std::time::Duration;

/// Blocks of a sequential request: 1 MiB.
pub const SEQUENTIAL_BLOCKS: u64 = 256;
/// Blocks of a turn of each of two clients that are served side by side.
const TURN: u64 = 8;
/// Random writes of the job with flushes, and requests between two flushes.
const SYNCED_BLOCKS: u64 = 4096;
const FLUSH_AFTER: usize = 32;
/// Maximum public writes per hidden write.
const MOST_COVER: u64 = 8;
/// The cache in front of a disk holds back the medium's length divided by this: 256 MiB of a disk
/// of 8 GiB.
pub const CACHE_DIVISOR: u64 = 32;

/// The simulated disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MediumModel {
    /// 5400 rpm, with every call served immediately: Tables 2 and 3.
    HardDisk,
    /// The same disk behind a cache that holds writes back until a sync, like the page cache for a
    /// file.
    CachedHardDisk,
    /// An SSD on SATA: Table 4.
    Ssd,
    /// A USB stick behind such a cache.
    Stick,
}

/// The rows of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads of level 0.
    PublicRead,
    /// Writes of level 0, without pending hidden data.
    PublicWrite,
    /// Reads of level 1.
    HiddenRead,
    /// Writes of level 1 with equal writes to level 0; only the bytes of level 1 count.
    HiddenWrite,
}

impl MediumModel {
    /// All models; the paper's hard disk is the first.
    const ALL: [MediumModel; 4] =
        [MediumModel::HardDisk, MediumModel::CachedHardDisk, MediumModel::Ssd, MediumModel::Stick];

    /// The latencies of a medium of `len` bytes.
    fn latency(self, len: u64) -> LatencyModel {
        match self {
            MediumModel::HardDisk => LatencyModel::laptop_disk(),
            MediumModel::CachedHardDisk => {
                LatencyModel { write_back: len / CACHE_DIVISOR, ..LatencyModel::laptop_disk() }
            }
            MediumModel::Ssd => LatencyModel::ssd(),
            MediumModel::Stick => {
                LatencyModel { write_back: len / CACHE_DIVISOR, ..LatencyModel::usb_stick() }
            }
        }
    }
}

/// A disk on a medium that all models charge at once, for the same calls.
pub struct SimulatedDisk {
    levels: Vec<Arc<dyn Disk>>,
    /// The models, with their clocks and media.
    media: [(MediumModel, Arc<ManualClock>, Arc<LatencyMedium>); MediumModel::ALL.len()],
    /// Blocks of each level that are written and read.
    pub span: u64,
    rng: Rng,
    /// Zeros; no model depends on the content.
    data: Vec<u8>,
}

impl SimulatedDisk {
    /// Opens a disk with `open` on a medium of `len` bytes. `span` blocks of each level are written
    /// and read.
    pub fn new(
        len: u64,
        span: u64,
        open: impl FnOnce(&Arc<dyn Medium>) -> Result<Vec<Arc<dyn Disk>>>,
    ) -> Result<SimulatedDisk> {
        let mut medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(len));
        let charged = MediumModel::ALL.map(|model| {
            let clock = Arc::new(ManualClock::default());
            let slow = LatencyMedium::new(Arc::clone(&medium), model.latency(len), Arc::clone(&clock));
            let slow = Arc::new(slow);
            medium = Arc::clone(&slow) as Arc<dyn Medium>;
            (model, clock, slow)
        });
        let levels = open(&medium)?;
        debug_assert!(levels.iter().all(|level| level.blocks() >= span), "a disk is as large as its data");
        Ok(SimulatedDisk {
            levels,
            media: charged,
            span,
            rng: Rng::new(5),
            data: vec![0; SEQUENTIAL_BLOCKS as usize * BLOCK_SIZE],
        })
    }

    /// A simulated disk that is a `deniable` disk of two levels, and that disk.
    pub fn with_caches(
        len: u64,
        span: u64,
        params: &Params,
        budget: u64,
    ) -> Result<(SimulatedDisk, Arc<DeniableDisk>)> {
        let mut disk = None;
        let simulated = SimulatedDisk::new(len, span, |medium| {
            let opened = in_process::open_new(medium, params, 2, Budget::bytes(budget))?;
            Ok(in_process::levels_of(disk.insert(opened)))
        })?;
        Ok((simulated, disk.expect("SimulatedDisk::new called open")))
    }

    /// Number of open levels.
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// The reads so far, the seeks so far, and the charged time, by the model of the paper's disk.
    pub fn paper_disk_costs(&self) -> (ReadStats, u64, Duration) {
        let (_, clock, medium) = &self.media[0];
        (medium.reads(), medium.seeks(), clock.now())
    }

    /// Writes `blocks` blocks of every level.
    pub fn write(&mut self, random: bool, blocks: u64) -> Result<()> {
        if self.levels.len() > 1 {
            self.write_both(random, blocks)
        } else {
            self.write_public(random, blocks)
        }
    }

    /// Ages the disk with the access pattern, then measures all operations: bytes per second on
    /// each model.
    pub fn age_and_run_jobs(&mut self, random: bool) -> Result<Vec<(MediumModel, Operation, f64)>> {
        for _ in 0..2 {
            self.write(random, self.span)?;
        }
        self.run_jobs(random)
    }

    /// Measures writes of level 0 with a flush after every 32 requests, on the disk as it is.
    pub fn run_synced_writes(&mut self, random: bool) -> Result<Vec<(MediumModel, f64)>> {
        let blocks = if random { SYNCED_BLOCKS.min(self.span) } else { self.span };
        let rates = self.run_timed(Operation::PublicWrite, blocks, |simulated| {
            for (n, (first, count)) in simulated.requests(random, blocks).into_iter().enumerate() {
                simulated.levels[0]
                    .write(BlockAddr(first), &simulated.data[..count as usize * BLOCK_SIZE])?;
                if n % FLUSH_AFTER == FLUSH_AFTER - 1 {
                    simulated.levels[0].flush()?;
                }
            }
            simulated.levels[0].flush()
        })?;
        Ok(rates.into_iter().map(|(model, _, rate)| (model, rate)).collect())
    }

    /// Measures all operations on the disk as it is: bytes per second on each model.
    pub fn run_jobs(&mut self, random: bool) -> Result<Vec<(MediumModel, Operation, f64)>> {
        let hidden = self.levels.len() > 1;
        let blocks = if random { self.span / 4 } else { self.span };
        let mut all = self
            .run_timed(Operation::PublicWrite, blocks, |simulated| simulated.write_public(random, blocks))?;
        all.extend(
            self.run_timed(Operation::PublicRead, blocks, |simulated| simulated.read(0, random, blocks))?,
        );
        if hidden {
            all.extend(self.run_timed(Operation::HiddenWrite, blocks, |simulated| {
                simulated.write_both(random, blocks)
            })?);
            all.extend(
                self.run_timed(Operation::HiddenRead, blocks, |simulated| simulated.read(1, random, blocks))?,
            );
        }
        Ok(all)
    }

    fn run_timed(
        &mut self,
        operation: Operation,
        blocks: u64,
        job: impl FnOnce(&mut SimulatedDisk) -> Result<()>,
    ) -> Result<Vec<(MediumModel, Operation, f64)>> {
        let before = self.media.each_ref().map(|(_, clock, _)| clock.now());
        job(self)?;
        let bytes = (blocks * BLOCK_SIZE as u64) as f64;
        let charged = self.media.iter().zip(before);
        let rate = charged.map(|((model, clock, _), before)| {
            (*model, operation, bytes / clock.now().saturating_sub(before).as_secs_f64())
        });
        Ok(rate.collect())
    }

    /// Requests for `blocks` blocks in all, as first block and length.
    fn requests(&mut self, random: bool, blocks: u64) -> Vec<(u64, u64)> {
        if random {
            return (0..blocks).map(|_| (self.rng.below(self.span), 1)).collect();
        }
        (0..blocks)
            .step_by(SEQUENTIAL_BLOCKS as usize)
            .map(|at| (at, SEQUENTIAL_BLOCKS.min(blocks - at)))
            .collect()
    }

    /// Reads `blocks` blocks of a level.
    pub fn read(&mut self, level: usize, random: bool, blocks: u64) -> Result<()> {
        for (first, count) in self.requests(random, blocks) {
            self.levels[level].read(BlockAddr(first), &mut self.data[..count as usize * BLOCK_SIZE])?;
        }
        Ok(())
    }

    /// Writes to level 0, then flushes.
    fn write_public(&mut self, random: bool, blocks: u64) -> Result<()> {
        for (first, count) in self.requests(random, blocks) {
            self.levels[0].write(BlockAddr(first), &self.data[..count as usize * BLOCK_SIZE])?;
        }
        self.levels[0].flush()
    }

    /// Writes `blocks` blocks to each of levels 0 and 1, then flushes both. Two clients write side
    /// by side; while the hidden one waits for cover, the public one continues.
    fn write_both(&mut self, random: bool, blocks: u64) -> Result<()> {
        let turns = |requests: Vec<(u64, u64)>| {
            requests.into_iter().flat_map(|(first, count)| {
                (0..count).step_by(TURN as usize).map(move |at| (first + at, TURN.min(count - at)))
            })
        };
        let hidden = turns(self.requests(random, blocks));
        // More than the hidden client can need.
        let mut public = turns((0..MOST_COVER).flat_map(|_| self.requests(random, blocks)).collect());
        let (levels, data) = (&self.levels, &self.data);
        let mut write_cover = || {
            let (first, count) = public.next().ok_or_else(no_cover_error)?;
            levels[0].write(BlockAddr(first), &data[..count as usize * BLOCK_SIZE])
        };
        for (first, count) in hidden {
            for block in first..first + count {
                loop {
                    match levels[1].write(BlockAddr(block), &data[..BLOCK_SIZE]) {
                        Err(e) if e.kind() == Kind::NoCover => write_cover()?,
                        done => break done?,
                    }
                }
            }
            write_cover()?;
        }
        while in_process::status(&*levels[1], "waiting_for_cover") > 0 {
            write_cover()?;
        }
        levels[0].flush()?;
        levels[1].flush()
    }
}

fn no_cover_error() -> Error {
    Error::new(Kind::Other, "hidden writes find no cover")
        .found(format!("{MOST_COVER} public writes for each hidden write"))
        .expected("about one")
}
