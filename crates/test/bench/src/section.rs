//! A section of a run: it can be measured alone, and has its own part of the pages.

use crate::measuring::section_results::SectionResults;
use crate::workspace::Workspace;
use lacuna_contracts::Result;

/// Measures a section.
pub type MeasureFn = fn(&Workspace) -> Result<Box<dyn SectionResults>>;

/// A section of a run.
pub struct BenchSection {
    /// The name on the command line and in the markers of the pages.
    pub name: &'static str,
    /// The heading of the section's part of a page.
    pub heading: &'static str,
    /// Measures the section.
    pub measure: MeasureFn,
}

impl BenchSection {
    /// A section with this name and heading.
    pub const fn new(name: &'static str, heading: &'static str, measure: MeasureFn) -> BenchSection {
        BenchSection { name, heading, measure }
    }
}
