//! Tables 2 to 4 of paper 000 redone with the latency models: `sealed`, `deniable` and `oblivious` on the same
//! simulated disks, the time that a model charges taken as time.

use crate::in_process;
use crate::subject::SPARE_PERMILLE;
use crate::workspace::Workspace;
use lacuna_core::{BLOCK_SIZE, BlockAddr, Budget, Clock, Disk, Error, Kind, ManualClock, Result};
use lacuna_deniable::Geometry;
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::Plan;
use lacuna_sealed::{Cipher, Layout};
use lacuna_sim::{LatencyMedium, LatencyModel, Rng};
use std::collections::HashMap;
use std::sync::Arc;

/// Blocks of a sequential request: 1 MiB.
const LONG: u64 = 256;
/// Blocks that one of two clients gets done before it is the other's turn: they are served side by side.
const TURN: u64 = 8;
/// Public writes for one hidden write, at most.
const MOST_COVER: u64 = 8;
/// The part of the medium that the cache before a disk holds back: 256 MiB of a disk of 8 GiB.
const HELD_BACK: u64 = 32;

/// The simulated disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// 5400 turns a minute, every call served at once: Tables 2 and 3.
    HardDisk,
    /// The same behind a cache that holds writes back until they are synced, as the system does for a file.
    CachedHardDisk,
    /// SATA: Table 4.
    Ssd,
}

/// What is measured on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Case {
    /// `sealed` with `xts`: what dm-crypt is to the paper.
    Xts,
    /// `deniable` in its default geometry, half full.
    Half,
    /// The same, full.
    Full,
    /// One public and one hidden block in a stripe, as in the paper; as much data as in `Half`.
    Paper,
    /// `oblivious`, opportunistic; as much data as its hidden level holds.
    Oblivious,
}

impl Model {
    const ALL: [Model; 3] = [Model::HardDisk, Model::CachedHardDisk, Model::Ssd];

    /// For a medium of `len` bytes.
    fn latency(self, len: u64) -> LatencyModel {
        match self {
            Model::HardDisk => LatencyModel::laptop_disk(),
            Model::CachedHardDisk => {
                LatencyModel { write_back: len / HELD_BACK, ..LatencyModel::laptop_disk() }
            }
            Model::Ssd => LatencyModel::ssd(),
        }
    }
}

impl Case {
    /// All of them, the baseline first.
    pub const ALL: [Case; 5] = [Case::Xts, Case::Half, Case::Full, Case::Paper, Case::Oblivious];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Case::Xts => "lacuna xts",
            Case::Half => "levels half",
            Case::Full => "levels full",
            Case::Paper => "levels 1+1",
            Case::Oblivious => "oblivious",
        }
    }
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

/// What came out.
pub struct Modelled {
    /// Bytes per second; random where it says true.
    rates: HashMap<(Model, bool, Case, Operation), f64>,
    /// Bytes of the simulated disk.
    medium: u64,
    /// Bytes of the data of a level that is half full.
    data: u64,
    /// Bytes of all caches of a disk.
    budget: u64,
}

impl Modelled {
    /// Bytes per second of a case in an operation, sequential or random.
    pub fn rate(&self, model: Model, random: bool, case: Case, operation: Operation) -> Option<f64> {
        self.rates.get(&(model, random, case, operation)).copied()
    }

    /// How the figures come about.
    pub fn method(&self) -> String {
        format!(
            "- Tables 2 to 4: MB/s, in parentheses the ratio to `lacuna xts`, or to the dm-crypt of the paper; a \
hidden level is compared with the one level that the baseline has. The paper's columns are as it prints them (in Table \
3 it prints \"Hidden Write\" for the second row as well, which must be the public one). It measured file systems on 40 \
GB volumes of a 180 GB partition with Bonnie++ and IoZone, and a cache of 1 MB for its maps; ours are disks without a \
file system, on a medium of {medium} MiB with {budget} KiB for all caches: a sixteenth of a disk of 8 GiB and of the \
default for caches, with stripes, segments and the distance of syncs not made smaller.\n\
- No time is measured here: models of a laptop's hard disk (5400 turns a minute, seeks of 8.9 ms on average as the \
paper says of its own, 100 MB/s) and of an SSD on a SATA bus charge for every call to the medium, one call after \
another, whatever the processor does meanwhile. A seek costs by its distance as a part of the medium. Each extent of a \
batch costs its overhead (50 µs on the hard disk, on the SSD 90 µs for reads and 30 µs for writes, 32 at a time). \
Behind a write-back cache of {held} MiB, writes are charged when a sync wants them, sorted and with their neighbours, \
as the system does it for a file; without one, the head goes from what a stripe carries on to the stripe and back each \
time. Neither keeps anything for reads but what it holds back.\n\
- *half*: the first {data} MiB of each level, half of what it holds, are written and read; *full*: all of it; *1+1*: \
one public and one hidden block in a stripe, as in the paper, with as much data as *half*; *oblivious*: five sixths of what its \
hidden level holds; *xts*: as much data, on a \
medium of the same length. Each disk is written twice from end to end, both levels together, before sequential \
requests of 1 MiB are measured; then twice as often as it has blocks at random, before random ones of 4 KiB are. Writes \
end with a flush, which counts. Public writes find nothing hidden waiting, but the hidden data of before, which is \
carried on; hidden writes have as many public ones beside them, in turns of 32 KiB, more where a hidden write must wait \
for cover, and the bytes of the hidden level alone count.\n",
            medium = self.medium >> 20,
            budget = self.budget >> 10,
            data = self.data >> 20,
            held = (self.medium / HELD_BACK) >> 20,
        )
    }
}

/// A disk on a medium that all models charge for the same calls at once.
struct Bed {
    levels: Vec<Arc<dyn Disk>>,
    clocks: [(Model, Arc<ManualClock>); Model::ALL.len()],
    /// Blocks of each level that are written and read.
    span: u64,
    rng: Rng,
    /// Zeros; what they are does not matter to any model.
    data: Vec<u8>,
}

/// Measures all of them.
pub fn measure(work: &Workspace) -> Result<Modelled> {
    let (medium, budget) = if work.scale.quick { (64 << 20, 1 << 20) } else { (512 << 20, 4 << 20) };
    let plan = |geometry| lacuna_deniable::Params::plan(medium, geometry, SPARE_PERMILLE, 0);
    let whole = plan(Geometry::DEFAULT)?;
    // What every disk has for a workload on its first hidden level as well.
    let whole = whole.blocks.min(whole.most_blocks(1) * 15 / 16);
    let mut found = Modelled { rates: HashMap::new(), medium, data: whole / 2 * BLOCK_SIZE as u64, budget };
    for case in Case::ALL {
        work.say(&format!("models: {}", case.name()));
        let oblivious = lacuna_oblivious::Params::plan(medium, Plan::DEFAULT)?;
        let span = match case {
            Case::Full => whole,
            Case::Oblivious => oblivious.most_blocks(1) * 5 / 6,
            _ => whole / 2,
        };
        let mut bed = Bed::new(medium, Budget::bytes(budget), span, |medium, budget| match case {
            Case::Xts => {
                let params = lacuna_sealed::Params::largest(Cipher::Xts, Layout::SegmentEnd, medium.len())?;
                Ok(vec![in_process::sealed(medium, &params, budget)?])
            }
            Case::Half | Case::Full => in_process::deniable(medium, &plan(Geometry::DEFAULT)?, 2, budget),
            Case::Paper => in_process::deniable(medium, &plan(Geometry::PAPER)?, 2, budget),
            Case::Oblivious => in_process::oblivious(medium, &oblivious, 2, budget),
        })?;
        for random in [false, true] {
            work.interrupt.check()?;
            for (model, operation, rate) in bed.jobs(random)? {
                found.rates.insert((model, random, case, operation), rate);
            }
        }
    }
    Ok(found)
}

impl Bed {
    fn new(
        len: u64,
        budget: Budget,
        span: u64,
        open: impl FnOnce(&Arc<dyn Medium>, Budget) -> Result<Vec<Arc<dyn Disk>>>,
    ) -> Result<Bed> {
        let clocks = Model::ALL.map(|model| (model, Arc::new(ManualClock::default())));
        let mut medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(len));
        for (model, clock) in &clocks {
            medium = Arc::new(LatencyMedium::new(medium, model.latency(len), Arc::clone(clock)));
        }
        let levels = open(&medium, budget)?;
        debug_assert!(levels.iter().all(|level| level.blocks() >= span), "a disk is as large as its data");
        Ok(Bed { levels, clocks, span, rng: Rng::new(5), data: vec![0; LONG as usize * BLOCK_SIZE] })
    }

    /// Ages the disk with the pattern, then measures it in all operations: bytes per second on each model.
    fn jobs(&mut self, random: bool) -> Result<Vec<(Model, Operation, f64)>> {
        let hidden = self.levels.len() > 1;
        let span = self.span;
        let blocks = if random { span / 4 } else { span };
        for _ in 0..2 {
            if hidden { self.write_both(random, span)? } else { self.write_public(random, span)? }
        }
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
        let before = self.clocks.clone().map(|(_, clock)| clock.now());
        job(self)?;
        let bytes = (blocks * BLOCK_SIZE as u64) as f64;
        let rate = |((model, clock), before): (&(Model, Arc<ManualClock>), _)| {
            (*model, operation, bytes / (clock.now() - before).as_secs_f64())
        };
        Ok(self.clocks.iter().zip(before).map(rate).collect())
    }

    /// Requests that make up `blocks`, as first block and length.
    fn requests(&mut self, random: bool, blocks: u64) -> Vec<(u64, u64)> {
        if random {
            return (0..blocks).map(|_| (self.rng.below(self.span), 1)).collect();
        }
        (0..blocks).step_by(LONG as usize).map(|at| (at, LONG.min(blocks - at))).collect()
    }

    fn read(&mut self, level: usize, random: bool, blocks: u64) -> Result<()> {
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

    /// Writes as much to level 0 as to level 1, and flushes of both. Two clients write side by side; while the hidden
    /// one must wait, the public one goes on.
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
