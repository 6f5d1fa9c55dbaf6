//! A section of a run: a part that can be measured alone and has its own part of the pages.

use crate::measured::Measured;
use crate::workspace::Workspace;
use lacuna_contracts::Result;

/// Measures a section.
pub type Measure = fn(&Workspace) -> Result<Box<dyn Measured>>;

/// A part of the run that can be measured alone.
pub struct Section {
    /// On the command line, and in the markers of the pages.
    pub name: &'static str,
    /// The heading of its part.
    pub heading: &'static str,
    /// Measures it.
    pub measure: Measure,
}

impl Section {
    /// A section with this name and heading.
    pub const fn new(name: &'static str, heading: &'static str, measure: Measure) -> Section {
        Section { name, heading, measure }
    }
}
