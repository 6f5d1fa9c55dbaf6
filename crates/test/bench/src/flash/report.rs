//! The section on flash, on simulated chips in this process: speed compared with the same disk
//! without keys, and the costs of purges, of the key storage area and of opening.

use crate::flash::file::{self, FileChipResults};
use crate::flash::large::{self, LargeFlash};
use crate::flash::speed::{self, FlashSpeed};
use crate::measuring::section_results::{SectionResults, StableFigure};
use crate::pages::page::{HistoryTable, RunInfo};
use crate::pages::requirement::{self, Requirement};
use crate::pages::table::Table;
use crate::workspace::Workspace;
use lacuna_contracts::Result;

const HISTORY: HistoryTable = HistoryTable {
    heading: "### History of flash",
    about: "Ratios of processor time, a disk with keys to one without: sequential writes, sequential reads, \
            random writes, random reads; each at depth 1 and 8",
    head: &["date", "lacuna", "ratios", "reached"],
};

/// The results of the section.
struct FlashResults {
    speed: FlashSpeed,
    large: LargeFlash,
    in_file: FileChipResults,
}

/// Measures the section.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    let (speed, large) = (speed::measure(work)?, large::measure(work)?);
    Ok(Box::new(FlashResults { speed, large, in_file: file::measure(work)? }))
}

impl SectionResults for FlashResults {
    fn results(&self) -> Vec<Table> {
        self.speed.results()
    }

    fn stable(&self) -> Vec<StableFigure> {
        self.speed.stable()
    }

    fn tables(&self) -> Vec<Table> {
        let mut tables = self.speed.tables();
        tables.extend(self.large.tables());
        tables.push(self.in_file.table());
        tables
    }

    fn requirements(&self) -> Vec<Requirement> {
        let mut requirements = self.speed.requirements();
        requirements.extend(self.large.requirements());
        requirements.push(self.in_file.requirement());
        requirements
    }

    fn body(&self, run: &RunInfo) -> String {
        let mut parts: Vec<String> = self.tables().iter().map(Table::markdown).collect();
        let (speed, large, file) =
            (self.speed.method(run.scale.rounds), self.large.method(), self.in_file.method());
        parts.push(format!("### Method on flash\n\n{speed}{large}{file}"));
        parts.join("\n")
    }

    fn history(&self, run: &RunInfo, requirements: &[Requirement], old: &str) -> Option<String> {
        let figures = [self.speed.ratios(), requirement::tally(requirements)];
        Some(HISTORY.with_row(old, &[&run.short_cells()[..], &figures].concat()))
    }
}
