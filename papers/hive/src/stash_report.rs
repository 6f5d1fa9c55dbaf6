//! The section on the stash, for the page of the papers.

use crate::stash::{self, StashResults};
use crate::stash_plot;
use lacuna_bench::measuring::section_results::SectionResults;
use lacuna_bench::pages::page::RunInfo;
use lacuna_bench::pages::requirement::Requirement;
use lacuna_bench::pages::table::Table;
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;
use std::path::Path;

/// Measures the stash.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    Ok(Box::new(stash::measure(work)?))
}

impl SectionResults for StashResults {
    fn tables(&self) -> Vec<Table> {
        vec![self.table()]
    }

    fn requirements(&self) -> Vec<Requirement> {
        vec![self.requirement()]
    }

    fn plot(&self, plots: &Path) -> Result<()> {
        stash_plot::draw(self, &plots.join("oblivious-stash.svg"))
    }

    fn body(&self, _run: &RunInfo) -> String {
        let plot = "![blocks that wait for a cell, beside the bound](plots/oblivious-stash.svg)\n";
        [&self.table().markdown(), plot, &self.method()].join("\n")
    }
}
