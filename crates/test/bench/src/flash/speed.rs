//! The speed of a disk on flash, compared with the same disk without a key for each block.

use crate::flash::disks::{self, KeyMode, status};
use crate::flash::job::{DISCARDS, JOBS, PURGES, run};
use crate::flash::processor_ratios::{self, FlashProcessorRatios};
use crate::measuring::processor::ProcessorClocks;
use crate::measuring::section_results::StableFigure;
use crate::pages::requirement::{Bound, Requirement};
use crate::pages::table::{Table, head};
use crate::serving::grid::Grid;
use crate::serving::job::{Direction, IoJob};
use crate::serving::turn::TurnResult;
use crate::workspace::Workspace;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Result};
use lacuna_flash::FlashDisk;
use lacuna_nand::ChipGeometry;
use std::time::Instant;

/// Maximum processor time relative to the same disk without keys.
const MAX_PROCESSOR_RATIO: f64 = 1.11;
/// Ratios of UBIFSec to UBIFS in DNEFS (Table 3).
const PAPER: &str = "0.77 (reads) and 0.81 (writes)";

/// The results.
pub(crate) struct FlashSpeed {
    grid: Grid<KeyMode>,
    ratios: FlashProcessorRatios,
    chip: ChipGeometry,
    disk: u64,
    /// Blocks copied by garbage collection per written block, while the disks were aged.
    copied: f64,
}

/// Measures the speed.
pub(crate) fn measure(work: &Workspace) -> Result<FlashSpeed> {
    let quick = work.scale.quick;
    let chip = ChipGeometry { page: 4096, pages: 64, blocks: if quick { 96 } else { 4096 } };
    let mut disks = Vec::new();
    let mut copied = 0.0;
    for keys in [KeyMode::Long, KeyMode::Off] {
        work.report_progress(&format!("flash: filling and aging a disk, {}", keys.name()))?;
        let disk = disks::in_memory(chip, keys, Budget::default())?;
        for (first, len) in runs(disk.blocks(), 256) {
            disk.write(BlockAddr(first), &vec![1; len as usize * BLOCK_SIZE])?;
        }
        // Overwrite until garbage collection is in its steady state.
        run(&disk, keys, JOBS[4], 2 * disk.blocks(), 1)?;
        copied = status(&disk, "nodes_copied") as f64 / (2 * disk.blocks()) as f64;
        disks.push((keys, disk));
    }
    let ratios = processor_ratios::measure(work, &disks)?;
    let mut grid = Grid::default();
    for round in 0..work.scale.rounds {
        work.report_progress(&format!("flash: round {} of {}", round + 1, work.scale.rounds))?;
        // Each disk is first in half of the rounds.
        disks.reverse();
        for job in JOBS {
            for (keys, disk) in &disks {
                work.interrupt.check()?;
                let blocks = if job.direction == Direction::Read { disk.blocks() } else { disk.blocks() / 2 };
                let blocks = if job.random { blocks / 2 } else { blocks };
                grid.add(*keys, job, &turn(disk, *keys, job, blocks, u64::from(round) + 2)?);
            }
        }
    }
    let disk = disks[0].1.blocks() * BLOCK_SIZE as u64;
    for (_, disk) in &disks {
        disk.close()?;
    }
    Ok(FlashSpeed { grid, ratios, chip, disk, copied })
}

/// Splits the disk into pieces of `len` blocks.
fn runs(blocks: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..blocks).step_by(len as usize).map(move |first| (first, len.min(blocks - first)))
}

/// One turn of a job over `blocks` blocks, timed by the clock of this process.
fn turn(disk: &FlashDisk, keys: KeyMode, job: IoJob, blocks: u64, seed: u64) -> Result<TurnResult> {
    let clock = ProcessorClocks::of(std::process::id())?;
    let (begin, before) = (Instant::now(), clock.total()?);
    run(disk, keys, job, blocks, seed)?;
    let spent = clock.total()?.saturating_sub(before);
    let answered = begin.elapsed();
    let requests = blocks * BLOCK_SIZE as u64 / u64::from(job.size);
    let slices = vec![(spent.as_nanos() as f64 / requests as f64, 0.0)];
    let bytes = requests * u64::from(job.size);
    Ok(TurnResult { requests, bytes, answered, durable: answered, slices, ..TurnResult::default() })
}

impl FlashSpeed {
    /// The tables of speeds and their ratios.
    pub(crate) fn tables(&self) -> Vec<Table> {
        vec![self.table(JOBS.iter())]
    }

    fn table<'j>(&self, jobs: impl Iterator<Item = &'j IoJob>) -> Table {
        let columns = [KeyMode::Long, KeyMode::Off].map(|keys| keys.name().to_owned());
        let columns = columns.into_iter().chain(
            [
                "speed ratio",
                "processor time ratio",
                "processor time ratio on one processor, in turns",
                "speed ratio in paper 003, Table 3",
            ]
            .map(str::to_owned),
        );
        let mut table =
            Table::new("Disks on flash in memory: speed with keys and without", head("job", columns));
        for &job in jobs {
            let mut cells =
                [KeyMode::Long, KeyMode::Off].map(|keys| self.grid.cell(keys, job, true)).to_vec();
            cells.push(self.grid.ratio_cell(KeyMode::Long, KeyMode::Off, job, true));
            cells.push(self.grid.processor_ratio_cell(KeyMode::Long, KeyMode::Off, job));
            cells.push(self.ratios.cell(job));
            cells.push(
                match (job.random, job.direction) {
                    (false, Direction::Read) => "0.77",
                    (false, Direction::Write) => "0.81",
                    _ => "-",
                }
                .into(),
            );
            table.row(job.name(), cells);
        }
        table
    }

    /// The table for jobs at depth 1.
    pub(crate) fn results(&self) -> Vec<Table> {
        vec![self.table(JOBS.iter().filter(|job| job.depth == 1))]
    }

    /// The requirements.
    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        let line = "flash: processor time of a disk with keys to one without";
        let empty = Requirement::new(line, Bound::AtMost(MAX_PROCESSOR_RATIO), "");
        let of = |r: Requirement, job: IoJob| r.case(job.name(), self.ratio(job));
        vec![JOBS.into_iter().fold(empty, of)]
    }

    fn ratio(&self, job: IoJob) -> Option<f64> {
        self.ratios.ratio(job).or_else(|| self.grid.processor_ratio(KeyMode::Long, KeyMode::Off, job))
    }

    /// The ratios of all jobs, for the history.
    pub(crate) fn ratios(&self) -> String {
        JOBS.map(|job| self.grid.processor_ratio_cell(KeyMode::Long, KeyMode::Off, job)).join(" / ")
    }

    /// The figures that two runs must agree on.
    pub(crate) fn stable(&self) -> Vec<StableFigure> {
        self.ratios.stable()
    }

    /// How the figures are obtained.
    pub(crate) fn method(&self, rounds: u32) -> String {
        format!(
            "- Speed: two disks of {disk} MiB run in the process of the benchmark, each on a simulated chip \
in memory ({blocks} erase blocks of {pages} pages of {page} bytes), with a budget of 64 MiB and no front \
end. Both are filled from end to end and then overwritten twice at random; {rounds} rounds follow. *keys \
off* is the same engine with the same log, index, groups and garbage collection. It encrypts everything \
under one key of the disk, with nonces that never repeat; it has no key storage area, no key state map and \
no purge. A depth of 8 is 8 threads.\n\
- A sequential job that writes overwrites half of the disk, a random one a quarter; both end with a flush. \
One request of {DISCARDS} discards its blocks instead. The disk with keys is purged whenever one {PURGES}th \
of it was overwritten. So the figures include garbage collection ({copied:.2} blocks copied for each written \
block, while the disks were aged), renewed keys, and purges with their drains. Reads find the data that \
random and sequential writes left.\n\
- The paper's ratios are {PAPER} on a Nexus One, between two versions of a file system on real flash. Our \
disks run on memory, which hides less of the cost of keys.\n",
            disk = self.disk >> 20,
            blocks = self.chip.blocks,
            pages = self.chip.pages,
            page = self.chip.page,
            copied = self.copied,
        )
    }
}
