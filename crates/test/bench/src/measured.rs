//! What all sections of the benchmark can be asked once they are measured.

use crate::page::Run;
use crate::requirement::Requirement;
use crate::table::Table;
use lacuna_contracts::Result;
use std::path::Path;

/// A figure that noise hardly moves: counts, processor time, memory, modelled time.
pub struct Stable {
    /// What it is of, as `subject, job: measure`.
    pub name: String,
    /// The figure.
    pub value: f64,
}

/// What a section found out.
pub trait Measured {
    /// Tables for the page of results: what a user gets.
    fn results(&self) -> Vec<Table> {
        Vec::new()
    }

    /// All tables.
    fn tables(&self) -> Vec<Table>;

    /// What was promised, beside what was measured.
    fn requirements(&self) -> Vec<Requirement> {
        Vec::new()
    }

    /// The figures that two runs on the same commit must agree on.
    fn stable(&self) -> Vec<Stable> {
        Vec::new()
    }

    /// What could not be measured, and why.
    fn skipped(&self) -> &[String] {
        &[]
    }

    /// Draws plots into a directory.
    fn plot(&self, _plots: &Path) -> Result<()> {
        Ok(())
    }

    /// The text of its part of the page behind the promises: tables, plots and method.
    fn body(&self, run: &Run) -> String;

    /// Its history with one line more, from the old text of its part.
    fn history(&self, _run: &Run, _requirements: &[Requirement], _old: &str) -> Option<String> {
        None
    }
}
