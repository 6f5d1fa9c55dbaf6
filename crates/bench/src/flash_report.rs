//! Section 9: the format `flash` on simulated chips in this process: its speed beside itself without keys, and what purges, its
//! key storage area and opening cost.

use crate::flash_assignment::{self, Assignment};
use crate::flash_large::{self, Large};
use crate::flash_speed::{self, Speed};
use crate::page::{History, Run};
use crate::requirement::{self, Requirement};
use crate::table::Table;
use crate::workspace::Workspace;
use lacuna_core::Result;

const HISTORY: History = History {
    heading: "### History of flash",
    about: "Ratios of a disk with keys to one without: sequential writes, sequential reads, random writes, random reads, each at depth 1 and 8",
    head: &["date", "lacuna", "ratios", "reached"],
};

/// The figures.
pub(crate) struct OnFlash {
    speed: Speed,
    large: Large,
    assignment: Assignment,
}

/// Measures.
pub(crate) fn measure(work: &Workspace) -> Result<OnFlash> {
    Ok(OnFlash {
        speed: flash_speed::measure(work)?,
        large: flash_large::measure(work)?,
        assignment: flash_assignment::measure(work)?,
    })
}

impl OnFlash {
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut tables = self.speed.tables();
        tables.extend(self.large.tables());
        tables.push(self.assignment.table());
        tables
    }

    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        let mut requirements = self.speed.requirements();
        requirements.extend(self.large.requirements());
        requirements
    }

    /// The part of the page, to stand in the place of an old one.
    pub(crate) fn part(&self, run: &Run, old: &str) -> String {
        let requirements = self.requirements();
        let mut parts = requirement::opening(&format!("On flash: run of {}", run.date), &requirements);
        parts.extend(self.tables().iter().map(Table::markdown));
        parts.push(self.method(run.scale.repeats));
        let figures = [self.speed.ratios(), requirement::tally(&requirements)];
        parts.push(HISTORY.and(old, &[&run.short_cells()[..], &figures].concat()));
        parts.join("\n")
    }

    fn method(&self, repeats: u32) -> String {
        format!(
            "### Method on flash\n\n{}{}{}",
            self.speed.method(repeats),
            self.large.method(),
            self.assignment.method()
        )
    }
}
