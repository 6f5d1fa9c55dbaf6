//! What the page of the papers says of the stash.

use crate::measured::Measured;
use crate::page::Run;
use crate::requirement::Requirement;
use crate::stash::{self, Stash};
use crate::stash_plot;
use crate::table::Table;
use crate::workspace::Workspace;
use lacuna_core::Result;
use std::path::Path;

/// Measures.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn Measured>> {
    Ok(Box::new(stash::measure(work)?))
}

impl Measured for Stash {
    fn tables(&self) -> Vec<Table> {
        vec![self.table()]
    }

    fn requirements(&self) -> Vec<Requirement> {
        vec![self.requirement()]
    }

    fn plot(&self, plots: &Path) -> Result<()> {
        stash_plot::draw(self, &plots.join("oblivious-stash.svg"))
    }

    fn body(&self, _run: &Run) -> String {
        let plot = "![blocks that wait for a cell, beside the bound](plots/oblivious-stash.svg)\n";
        [&self.table().markdown(), plot, &self.method()].join("\n")
    }
}
