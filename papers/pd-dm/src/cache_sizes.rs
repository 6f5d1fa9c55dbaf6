//! Figure 8 of PD-DM: throughput by the size of the caches, on the model of the paper's disk.

use crate::paper_tables::{megabytes, name};
use lacuna_bench::modelled::simulated_disk::{MediumModel, Operation, SimulatedDisk};
use lacuna_bench::modelled::{ModelledDisk, Sizes};
use lacuna_bench::pages::table::{Table, head};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::{BLOCK_SIZE, Budget, Result};
use lacuna_deniable::DiskCacheUsage;
use std::collections::HashMap;

/// Budgets for all caches of a disk, in bytes.
const BUDGETS: [u64; 6] = [256 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Divisors of the data that give the range of random requests, smallest range first; they
/// correspond to the paper's file sizes.
const FILES: [u64; 3] = [16, 4, 1];
/// Sequential passes over a disk before it is measured, so that its log has wrapped around.
const PASSES: u32 = 5;
/// The measured operations, in the order of the columns.
const OPERATIONS: [Operation; 4] =
    [Operation::PublicRead, Operation::PublicWrite, Operation::HiddenRead, Operation::HiddenWrite];

/// Bytes per second by divisor and operation; divisor 0 is the sequential job.
type RateMap = HashMap<(u64, Operation), f64>;

pub(crate) struct CacheSizes {
    cells: Vec<(u64, RateMap, DiskCacheUsage)>,
    /// Rates of `sealed`, which has one level.
    xts: RateMap,
    sizes: Sizes,
}

pub(crate) fn measure(work: &Workspace) -> Result<CacheSizes> {
    let sizes = Sizes::of(work)?;
    let span = sizes.full_level_blocks / 2;
    let mut xts = SimulatedDisk::new(sizes.medium, span, |medium| {
        ModelledDisk::Xts.open(medium, Budget::bytes(sizes.budget))
    })?;
    let xts = rates(work, &mut xts)?;
    let mut cells = Vec::new();
    for budget in BUDGETS.into_iter().filter(|budget| !work.scale.quick || *budget == BUDGETS[1]) {
        work.report_progress(&format!("models: caches of {} KiB", budget >> 10))?;
        let (mut simulated_disk, disk) = SimulatedDisk::with_caches(
            sizes.medium,
            span,
            &ModelledDisk::Half.params(sizes.medium)?,
            budget,
        )?;
        cells.push((budget, rates(work, &mut simulated_disk)?, disk.caches()));
    }
    Ok(CacheSizes { cells, xts, sizes })
}

fn rates(work: &Workspace, simulated_disk: &mut SimulatedDisk) -> Result<RateMap> {
    let span = simulated_disk.span;
    for _ in 0..PASSES {
        simulated_disk.write(false, span)?;
    }
    let mut found = RateMap::new();
    let mut note = |divisor: u64, measured: Vec<(MediumModel, Operation, f64)>| {
        let of_disk = measured.into_iter().filter(|(model, ..)| *model == MediumModel::HardDisk);
        found.extend(of_disk.map(|(_, operation, rate)| ((divisor, operation), rate)));
    };
    note(0, simulated_disk.run_jobs(false)?);
    for divisor in FILES {
        work.interrupt.check()?;
        simulated_disk.span = span / divisor;
        simulated_disk.write(true, simulated_disk.span)?;
        note(divisor, simulated_disk.run_jobs(true)?);
    }
    Ok(found)
}

pub(crate) fn kib(bytes: u64) -> String {
    if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{} KiB", bytes >> 10)
    }
}

impl CacheSizes {
    pub(crate) fn tables(&self) -> Vec<Table> {
        let jobs = |divisor: u64| OPERATIONS.map(|operation| (divisor, operation));
        let all = [jobs(0), jobs(1)].concat();
        let title = |what| format!("{what} (paper 000, Figure 8)");
        let both = self.rates_table(title("Size of the caches, hard disk"), &all, |(divisor, operation)| {
            format!("{} {}", if divisor == 0 { "sequential" } else { "random" }, name(operation))
        });
        let files = [Operation::HiddenWrite, Operation::HiddenRead, Operation::PublicRead];
        let files = files.map(|operation| FILES.map(|divisor| (divisor, operation))).concat();
        let data = self.sizes.full_level_blocks / 2 * BLOCK_SIZE as u64;
        let by_file = self.rates_table(
            title("Random requests to a part of the data"),
            &files,
            |(divisor, operation)| format!("{}, {} MiB", name(operation), (data / divisor) >> 20),
        );
        vec![both, by_file]
    }

    fn rates_table(
        &self,
        title: String,
        columns: &[(u64, Operation)],
        name: impl Fn((u64, Operation)) -> String,
    ) -> Table {
        let mut table = Table::new(title, head("MB/s", columns.iter().map(|column| name(*column))));
        let cells = self.cells.iter().map(|(budget, rates, _)| (kib(*budget), rates));
        for (first, rates) in cells.chain([(ModelledDisk::Xts.name().into(), &self.xts)]) {
            let figure =
                |column| rates.get(column).map_or_else(|| "n/a".into(), |rate| megabytes(rate / 1e6));
            table.row(first, columns.iter().map(figure));
        }
        table
    }

    /// The maximum that each cache held, by the budget for all caches.
    pub(crate) fn max_held(&self) -> impl Iterator<Item = (u64, &DiskCacheUsage)> {
        self.cells.iter().map(|(budget, _, caches)| (*budget, caches))
    }

    /// How the figures are obtained.
    pub(crate) fn method(&self) -> String {
        format!(
            "- Figure 8: *half* with the given size for all caches (`--cache` accepts 1 MiB or more). A \
quarter is for leaves of the map of level 0, an eighth for those of level 1, a quarter for summaries, and an \
eighth for pending blocks of level 1. The leaves of the written data take {leaves} KiB for each level. \
Sequential requests come first, after {PASSES} passes from end to end. Then come random requests to a \
sixteenth of the data, to a quarter and to all of it; each time, a number of random writes equal to the \
number of its blocks comes before. The rest is as in Tables 2 and 3. *lacuna xts* has {budget} KiB. With a \
short queue, level 1 needs more public writes for each of its own.\n",
            leaves = ((self.sizes.full_level_blocks / 2).div_ceil(512) * BLOCK_SIZE as u64) >> 10,
            budget = self.sizes.budget >> 10,
        )
    }
}
