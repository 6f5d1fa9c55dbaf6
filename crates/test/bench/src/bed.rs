//! A disk on a simulated medium, and the jobs that are done on it: the time that the models charge
//! is taken as time.

use crate::in_process;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Clock, Disk, Error, Kind, ManualClock, Result};
use lacuna_deniable::{Deniable, Params};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::{LatencyMedium, LatencyModel, Reads, Rng};
use std::sync::Arc;
use std::time::Duration;

/// Blocks of a sequential request: 1 MiB.
pub const LONG: u64 = 256;
/// Blocks that one of two clients gets done before it is the other's turn: they are served side by
/// side.
const TURN: u64 = 8;
/// Random writes that are flushed now and then, and after how many each time.
const SYNCED_BLOCKS: u64 = 4096;
const FLUSH_AFTER: usize = 32;
/// Public writes for one hidden write, at most.
const MOST_COVER: u64 = 8;
/// The part of the medium that the cache before a disk holds back: 256 MiB of a disk of 8 GiB.
pub const HELD_BACK: u64 = 32;

/// The simulated disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// 5400 turns a minute, every call served at once: Tables 2 and 3.
    HardDisk,
    /// The same behind a cache that holds writes back until they are synced, as the system does for
    /// a file.
    CachedHardDisk,
    /// SATA: Table 4.
    Ssd,
    /// A USB stick behind the same cache.
    Stick,
}

/// The rows of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads of level 0.
    PublicRead,
    /// Writes of level 0, nothing hidden waiting.
    PublicWrite,
    /// Reads of level 1.
    HiddenRead,
    /// Writes of level 1 while as much is written to level 0; the bytes of level 1 count.
    HiddenWrite,
}

impl Model {
    /// The paper's first.
    const ALL: [Model; 4] = [Model::HardDisk, Model::CachedHardDisk, Model::Ssd, Model::Stick];

    /// For a medium of `len` bytes.
    fn latency(self, len: u64) -> LatencyModel {
        match self {
            Model::HardDisk => LatencyModel::laptop_disk(),
            Model::CachedHardDisk => {
                LatencyModel { write_back: len / HELD_BACK, ..LatencyModel::laptop_disk() }
            }
            Model::Ssd => LatencyModel::ssd(),
            Model::Stick => LatencyModel { write_back: len / HELD_BACK, ..LatencyModel::stick() },
        }
    }
}

/// A disk on a medium that all models charge for the same calls at once.
pub struct Bed {
    levels: Vec<Arc<dyn Disk>>,
    /// What the models charge, and where.
    charged: [(Model, Arc<ManualClock>, Arc<LatencyMedium>); Model::ALL.len()],
    /// Blocks of each level that are written and read.
    pub span: u64,
    rng: Rng,
    /// Zeros; what they are does not matter to any model.
    data: Vec<u8>,
}

impl Bed {
    /// A disk that `open` makes of a medium of `len` bytes. `span` blocks of each level are written
    /// and read.
    pub fn new(
        len: u64,
        span: u64,
        open: impl FnOnce(&Arc<dyn Medium>) -> Result<Vec<Arc<dyn Disk>>>,
    ) -> Result<Bed> {
        let mut medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(len));
        let charged = Model::ALL.map(|model| {
            let clock = Arc::new(ManualClock::default());
            let slow = LatencyMedium::new(Arc::clone(&medium), model.latency(len), Arc::clone(&clock));
            let slow = Arc::new(slow);
            medium = Arc::clone(&slow) as Arc<dyn Medium>;
            (model, clock, slow)
        });
        let levels = open(&medium)?;
        debug_assert!(levels.iter().all(|level| level.blocks() >= span), "a disk is as large as its data");
        Ok(Bed { levels, charged, span, rng: Rng::new(5), data: vec![0; LONG as usize * BLOCK_SIZE] })
    }

    /// The same with a `deniable` disk of two levels, and that disk.
    pub fn with_caches(len: u64, span: u64, params: &Params, budget: u64) -> Result<(Bed, Arc<Deniable>)> {
        let mut disk = None;
        let bed = Bed::new(len, span, |medium| {
            let opened = in_process::open_new(medium, params, 2, Budget::bytes(budget))?;
            Ok(in_process::levels_of(disk.insert(opened)))
        })?;
        Ok((bed, disk.expect("the bed opened it")))
    }

    /// How many levels are open.
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// What was read so far, by how many seeks, and the time charged, by the model of the paper's
    /// disk.
    pub fn charged(&self) -> (Reads, u64, Duration) {
        let (_, clock, medium) = &self.charged[0];
        (medium.reads(), medium.seeks(), clock.now())
    }

    /// Writes so many blocks of every level.
    pub fn write(&mut self, random: bool, blocks: u64) -> Result<()> {
        if self.levels.len() > 1 {
            self.write_both(random, blocks)
        } else {
            self.write_public(random, blocks)
        }
    }

    /// Ages the disk with the pattern, then measures it in all operations: bytes per second on each
    /// model.
    pub fn aged_jobs(&mut self, random: bool) -> Result<Vec<(Model, Operation, f64)>> {
        for _ in 0..2 {
            self.write(random, self.span)?;
        }
        self.jobs(random)
    }

    /// Measures writes of level 0 with a flush after every 32 on the disk as it is.
    pub fn synced(&mut self, random: bool) -> Result<Vec<(Model, f64)>> {
        let blocks = if random { SYNCED_BLOCKS.min(self.span) } else { self.span };
        let rates = self.timed(Operation::PublicWrite, blocks, |bed| {
            for (n, (first, count)) in bed.requests(random, blocks).into_iter().enumerate() {
                bed.levels[0].write(BlockAddr(first), &bed.data[..count as usize * BLOCK_SIZE])?;
                if n % FLUSH_AFTER == FLUSH_AFTER - 1 {
                    bed.levels[0].flush()?;
                }
            }
            bed.levels[0].flush()
        })?;
        Ok(rates.into_iter().map(|(model, _, rate)| (model, rate)).collect())
    }

    /// Measures all operations on the disk as it is: bytes per second on each model.
    pub fn jobs(&mut self, random: bool) -> Result<Vec<(Model, Operation, f64)>> {
        let hidden = self.levels.len() > 1;
        let blocks = if random { self.span / 4 } else { self.span };
        let mut all = self.timed(Operation::PublicWrite, blocks, |bed| bed.write_public(random, blocks))?;
        all.extend(self.timed(Operation::PublicRead, blocks, |bed| bed.read(0, random, blocks))?);
        if hidden {
            all.extend(self.timed(Operation::HiddenWrite, blocks, |bed| bed.write_both(random, blocks))?);
            all.extend(self.timed(Operation::HiddenRead, blocks, |bed| bed.read(1, random, blocks))?);
        }
        Ok(all)
    }

    fn timed(
        &mut self,
        operation: Operation,
        blocks: u64,
        job: impl FnOnce(&mut Bed) -> Result<()>,
    ) -> Result<Vec<(Model, Operation, f64)>> {
        let before = self.charged.each_ref().map(|(_, clock, _)| clock.now());
        job(self)?;
        let bytes = (blocks * BLOCK_SIZE as u64) as f64;
        let charged = self.charged.iter().zip(before);
        let rate = charged.map(|((model, clock, _), before)| {
            (*model, operation, bytes / clock.now().saturating_sub(before).as_secs_f64())
        });
        Ok(rate.collect())
    }

    /// Requests that make up `blocks`, as first block and length.
    fn requests(&mut self, random: bool, blocks: u64) -> Vec<(u64, u64)> {
        if random {
            return (0..blocks).map(|_| (self.rng.below(self.span), 1)).collect();
        }
        (0..blocks).step_by(LONG as usize).map(|at| (at, LONG.min(blocks - at))).collect()
    }

    /// Reads so many blocks of a level.
    pub fn read(&mut self, level: usize, random: bool, blocks: u64) -> Result<()> {
        for (first, count) in self.requests(random, blocks) {
            self.levels[level].read(BlockAddr(first), &mut self.data[..count as usize * BLOCK_SIZE])?;
        }
        Ok(())
    }

    /// Writes to level 0, and a flush.
    fn write_public(&mut self, random: bool, blocks: u64) -> Result<()> {
        for (first, count) in self.requests(random, blocks) {
            self.levels[0].write(BlockAddr(first), &self.data[..count as usize * BLOCK_SIZE])?;
        }
        self.levels[0].flush()
    }

    /// Writes as much to level 0 as to level 1, and flushes of both. Two clients write side by
    /// side; while the hidden one must wait, the public one goes on.
    fn write_both(&mut self, random: bool, blocks: u64) -> Result<()> {
        let turns = |requests: Vec<(u64, u64)>| {
            requests.into_iter().flat_map(|(first, count)| {
                (0..count).step_by(TURN as usize).map(move |at| (first + at, TURN.min(count - at)))
            })
        };
        let hidden = turns(self.requests(random, blocks));
        // More than enough for as long as the hidden client waits.
        let mut public = turns((0..MOST_COVER).flat_map(|_| self.requests(random, blocks)).collect());
        let (levels, data) = (&self.levels, &self.data);
        let mut go_on = || {
            let (first, count) = public.next().ok_or_else(stuck)?;
            levels[0].write(BlockAddr(first), &data[..count as usize * BLOCK_SIZE])
        };
        for (first, count) in hidden {
            for block in first..first + count {
                loop {
                    match levels[1].write(BlockAddr(block), &data[..BLOCK_SIZE]) {
                        Err(e) if e.kind() == Kind::NoCover => go_on()?,
                        done => break done?,
                    }
                }
            }
            go_on()?;
        }
        while in_process::status(&*levels[1], "waiting_for_cover") > 0 {
            go_on()?;
        }
        levels[0].flush()?;
        levels[1].flush()
    }
}

fn stuck() -> Error {
    Error::new(Kind::Other, "hidden writes do not get through")
        .found(format!("{MOST_COVER} times as many public writes"))
        .expected("about as many")
}
