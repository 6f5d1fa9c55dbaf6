//! The section on flash, on simulated chips in this process: speed compared with the same disk
//! without keys, and the costs of purges, of the key storage area and of opening.

use crate::flash_file::{self, InFile};
use crate::flash_large::{self, Large};
use crate::flash_speed::{self, Speed};
use crate::measured::{Measured, Stable};
use crate::page::{History, Run};
use crate::requirement::{self, Requirement};
use crate::table::Table;
use crate::workspace::Workspace;
use lacuna_contracts::Result;

const HISTORY: History = History {
    heading: "### History of flash",
    about: "Ratios of processor time, a disk with keys to one without: sequential writes, sequential reads, \
            random writes, random reads; each at depth 1 and 8",
    head: &["date", "lacuna", "ratios", "reached"],
};

/// The results of the section.
struct OnFlash {
    speed: Speed,
    large: Large,
    in_file: InFile,
}

/// Measures the section.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn Measured>> {
    let (speed, large) = (flash_speed::measure(work)?, flash_large::measure(work)?);
    Ok(Box::new(OnFlash { speed, large, in_file: flash_file::measure(work)? }))
}

impl Measured for OnFlash {
    fn results(&self) -> Vec<Table> {
        self.speed.results()
    }

    fn stable(&self) -> Vec<Stable> {
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

    fn body(&self, run: &Run) -> String {
        let mut parts: Vec<String> = self.tables().iter().map(Table::markdown).collect();
        let (speed, large, file) =
            (self.speed.method(run.scale.rounds), self.large.method(), self.in_file.method());
        parts.push(format!("### Method on flash\n\n{speed}{large}{file}"));
        parts.join("\n")
    }

    fn history(&self, run: &Run, requirements: &[Requirement], old: &str) -> Option<String> {
        let figures = [self.speed.ratios(), requirement::tally(requirements)];
        Some(HISTORY.and(old, &[&run.short_cells()[..], &figures].concat()))
    }
}
