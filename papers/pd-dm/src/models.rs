//! The section on PD-DM, which measures no time: Figure 4 and sections 3.3 and 6 are counted;
//! Tables 2 to 4 and Figures 6 and 8 use models of the paper's disks. All figures are functions of
//! the code alone: the same on every machine.

use crate::cache_bound::{self, CacheBound};
use crate::cache_sizes::{self, CacheSizes};
use crate::hot_cold::{self, HotCold};
use crate::levels_plot;
use crate::locality::{self, Locality};
use crate::modelled::{self, Modelled};
use crate::paper_tables;
use crate::runs::{self, RunSeries};
use crate::runs_plot;
use lacuna_bench::measuring::section_results::SectionResults;
use lacuna_bench::modelled::ModelledDisk;
use lacuna_bench::modelled::simulated_disk::{MediumModel, Operation};
use lacuna_bench::pages::page::{HistoryTable, RunInfo};
use lacuna_bench::pages::requirement::{self, Requirement};
use lacuna_bench::pages::table::{Table, figure};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;
use std::path::Path;

const HISTORY: HistoryTable = HistoryTable {
    heading: "### History of models",
    about: "Results of *levels half*",
    head: &[
        "date",
        "lacuna",
        "blocks for a block, uniform, ρ = 0.2",
        "hard disk, to xts: public / hidden sequential writes",
        "public / hidden sequential reads",
        "public / hidden random writes",
        "SSD, to xts: public / hidden sequential writes",
        "public / hidden random writes",
        "reached",
    ],
};

struct PdDmResults {
    writes: HotCold,
    modelled: Modelled,
    runs: RunSeries,
    caches: CacheSizes,
    bound: CacheBound,
    locality: Locality,
}

pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    Ok(Box::new(PdDmResults {
        writes: hot_cold::measure(work)?,
        modelled: modelled::measure(work)?,
        runs: runs::measure(work)?,
        caches: cache_sizes::measure(work)?,
        bound: cache_bound::measure(work)?,
        locality: locality::measure(work)?,
    }))
}

impl SectionResults for PdDmResults {
    fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.writes.table(), self.runs.table()];
        tables.extend(paper_tables::tables(&self.modelled));
        tables.extend(self.caches.tables());
        tables.push(self.bound.table(&self.caches));
        tables.push(self.locality.table());
        tables
    }

    fn requirements(&self) -> Vec<Requirement> {
        vec![self.writes.requirement(), self.runs.requirement(), self.bound.requirement(&self.caches)]
    }

    fn plot(&self, plots: &Path) -> Result<()> {
        levels_plot::draw(&self.writes, &plots.join("levels-writes.svg"))?;
        runs_plot::draw(&self.runs, &plots.join("levels-runs.svg"))
    }

    fn body(&self, _run: &RunInfo) -> String {
        let [writes, runs, tables @ ..] = &self.tables()[..] else {
            unreachable!("there are always two tables")
        };
        let mut parts = vec![
            writes.markdown(),
            "![medium blocks written for one block](plots/levels-writes.svg)\n".into(),
            runs.markdown(),
            "![throughput over runs on one disk](plots/levels-runs.svg)\n".into(),
        ];
        parts.extend(tables.iter().map(Table::markdown));
        let methods = [
            self.writes.method(),
            self.modelled.method(),
            self.runs.method(),
            self.caches.method(),
            self.bound.method(),
            locality::method(),
        ];
        parts.push(format!("### Method for models\n\n{}", methods.concat()));
        parts.join("\n")
    }

    fn history(&self, run: &RunInfo, requirements: &[Requirement], old: &str) -> Option<String> {
        let both = |model, random, base: Operation, hidden: Operation| {
            let to_xts = |operation| {
                let xts = self.modelled.rate(model, random, ModelledDisk::Xts, base)?;
                Some(self.modelled.rate(model, random, ModelledDisk::Half, operation)? / xts)
            };
            format!("{} / {}", figure(to_xts(base), 2), figure(to_xts(hidden), 2))
        };
        let writes = |model, random| both(model, random, Operation::PublicWrite, Operation::HiddenWrite);
        let figures = [
            figure(self.writes.uniform(), 2),
            writes(MediumModel::HardDisk, false),
            both(MediumModel::HardDisk, false, Operation::PublicRead, Operation::HiddenRead),
            writes(MediumModel::HardDisk, true),
            writes(MediumModel::Ssd, false),
            writes(MediumModel::Ssd, true),
            requirement::tally(requirements),
        ];
        Some(HISTORY.with_row(old, &[&run.short_cells()[..], &figures].concat()))
    }
}
