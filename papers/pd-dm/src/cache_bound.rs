//! Section 3.3 of PD-DM: the caches of maps are bounded. Compares the maximum that each cache held
//! with its share: in the runs of Figure 8, and with random writes to many more leaves than any
//! cache holds.

use crate::cache_sizes::{CacheSizes, kib};
use lacuna_bench::modelled::ModelledDisk;
use lacuna_bench::modelled::simulated_disk::SimulatedDisk;
use lacuna_bench::pages::requirement::{Bound, Requirement};
use lacuna_bench::pages::table::Table;
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;
use lacuna_deniable::{CacheUsage, DiskCacheUsage};

/// Budgets for all caches under spread writes. The first is the minimum of `--cache`.
const BUDGETS: [u64; 3] = [1 << 20, 2 << 20, 4 << 20];

pub(crate) struct CacheBound {
    spread: Vec<(u64, DiskCacheUsage)>,
    medium: u64,
    writes: u64,
    /// Leaves in the map of each level.
    leaves: u64,
}

/// Measures the caches under spread writes.
pub(crate) fn measure(work: &Workspace) -> Result<CacheBound> {
    let (medium, writes) = if work.scale.quick { (256 << 20, 500) } else { (2 << 30, 20_000) };
    let params = ModelledDisk::Half.params(medium)?;
    let span = params.blocks.min(params.max_blocks(1) * 15 / 16);
    let mut spread = Vec::new();
    for budget in BUDGETS {
        work.report_progress(&format!("models: spread writes with caches of {}", kib(budget)))?;
        let (mut simulated_disk, disk) = SimulatedDisk::with_caches(medium, span, &params, budget)?;
        simulated_disk.write(true, writes)?;
        spread.push((budget, disk.caches()));
    }
    Ok(CacheBound { spread, medium, writes, leaves: span.div_ceil(512) })
}

/// The caches of a disk, with their names.
fn named(caches: &DiskCacheUsage) -> Vec<(String, CacheUsage)> {
    let leaves =
        (0..).zip(&caches.leaves).map(|(level, leaves): (u8, _)| (format!("map of level {level}"), *leaves));
    leaves.chain([("summaries".into(), caches.summaries)]).collect()
}

impl CacheBound {
    /// The figures of the spread writes and of the runs of Figure 8.
    pub(crate) fn table(&self, figure_8: &CacheSizes) -> Table {
        let head =
            ["all caches", "writes", "map of level 0: peak", "map of level 1: peak", "summaries: peak"];
        let mut table = Table::new("Memory of the caches (paper 000, section 3.3)", head);
        let runs = figure_8.max_held().map(|held| ("as in Figure 8", held));
        let spread = self.spread.iter().map(|(budget, caches)| ("spread", (*budget, caches)));
        for (writes, (budget, caches)) in runs.chain(spread) {
            let held =
                named(caches).into_iter().map(|(_, of)| format!("{} of {}", kib(of.peak), kib(of.budget)));
            table.row(kib(budget), std::iter::once(writes.to_owned()).chain(held));
        }
        table
    }

    /// The requirement that caches stay within their shares, for all sizes that `--cache` takes.
    pub(crate) fn requirement(&self, figure_8: &CacheSizes) -> Requirement {
        let line = format!(
            "caches of maps and summaries, {} or more in all: peak of each, relative to its share",
            kib(BUDGETS[0])
        );
        let mut all = Requirement::new(line, Bound::AtMost(100.0), "%");
        let spread = self.spread.iter().map(|(budget, caches)| (*budget, caches));
        for (budget, caches) in figure_8.max_held().chain(spread).filter(|(budget, _)| *budget >= BUDGETS[0])
        {
            for (name, held) in named(caches) {
                let part = held.peak as f64 / held.budget as f64 * 100.0;
                all.add(format!("{name}, {}", kib(budget)), Some(part));
            }
        }
        all
    }

    /// How the figures are obtained.
    pub(crate) fn method(&self) -> String {
        format!(
            "- Section 3.3: the peak of the bytes in memory since the disk was opened, as the disk counts \
them: of the leaves, including changed leaves that wait to be written, and of the summaries. The pages above \
the leaves, 8 bytes for each leaf, are always in memory. *spread*: {writes} random writes to each level of a \
medium of {medium} MiB with maps of {leaves} leaves each. `deniable` keeps a changed leaf until it is \
written, so with little memory the leaves can exceed their share.\n",
            writes = self.writes,
            medium = self.medium >> 20,
            leaves = self.leaves,
        )
    }
}
