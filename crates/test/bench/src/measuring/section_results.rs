//! The results of a section, for all pages.

use crate::pages::page::RunInfo;
use crate::pages::requirement::Requirement;
use crate::pages::table::Table;
use lacuna_contracts::Result;
use std::path::Path;

/// A figure with little noise: a count, processor time, memory, modelled time.
pub struct StableFigure {
    /// The name, as `subject, job: measure`.
    pub name: String,
    /// The figure.
    pub value: f64,
}

/// The results of a section.
pub trait SectionResults {
    /// Tables for the page of results, for users.
    fn results(&self) -> Vec<Table> {
        Vec::new()
    }

    /// All tables.
    fn tables(&self) -> Vec<Table>;

    /// The requirements, with the measured figures.
    fn requirements(&self) -> Vec<Requirement> {
        Vec::new()
    }

    /// The figures that two runs on the same commit must agree on.
    fn stable(&self) -> Vec<StableFigure> {
        Vec::new()
    }

    /// The subjects that could not be measured, with the reasons.
    fn skipped(&self) -> &[String] {
        &[]
    }

    /// Draws plots into a directory.
    fn plot(&self, _plots: &Path) -> Result<()> {
        Ok(())
    }

    /// The text of the section's part after the requirements: tables, plots and method.
    fn body(&self, run: &RunInfo) -> String;

    /// The history with one more line, from the old text of the section's part.
    fn history(&self, _run: &RunInfo, _requirements: &[Requirement], _old: &str) -> Option<String> {
        None
    }
}
