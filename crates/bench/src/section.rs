//! The sections of the benchmark: what each is called, on which page its figures stand, and what all of them can be asked.

use crate::page::Run;
use crate::requirement::Requirement;
use crate::table::Table;
use crate::workspace::Workspace;
use crate::{
    disks, false_accept, flash_report, hctr2, integrity_report, levels, media, memory, models,
    mounted_report, phone_report, rados, stash, vault_report,
};
use lacuna_core::Result;
use std::path::Path;

/// A figure that noise hardly moves: counts, processor time, memory, modelled time.
pub(crate) struct Stable {
    /// What it is of, as `subject, job: measure`.
    pub name: String,
    /// The figure.
    pub value: f64,
}

/// What a section found out.
pub(crate) trait Measured {
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

/// Where the figures of a section are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Page {
    /// What users get: `benchmarks.md` and `benchmarks-method.md`.
    Product,
    /// Figures of the papers redone: `benchmarks-papers.md`.
    Papers,
}

/// A part of the run that can be measured alone.
pub(crate) struct Section {
    /// On the command line, and in the markers of the pages.
    pub name: &'static str,
    /// The heading of its part.
    pub heading: &'static str,
    /// Which pages it is for.
    pub page: Page,
    /// Measures it.
    pub measure: fn(&Workspace) -> Result<Box<dyn Measured>>,
}

/// All of them, in the order in which they are measured and stand on the pages.
pub(crate) const SECTIONS: [Section; 14] = [
    product("disks", "Disks over NBD", disks::measure),
    product("levels", "Disks with levels", levels::measure),
    product("media", "On a modelled hard disk and stick", media::measure),
    product("mounted", "Mounted disks", mounted_report::measure),
    product("vaults", "Vaults", vault_report::measure),
    product("hctr2", "Ciphers", hctr2::measure),
    product("memory", "Memory and opening", memory::measure),
    product("flash", "On flash", flash_report::measure),
    product("rados", "On Ceph", rados::measure),
    papers("models", "Paper 000: models", models::measure),
    papers("stash", "Paper 001: the stash", stash::measure),
    papers("integrity", "Paper 002: integrity", integrity_report::measure),
    papers("false-accept", "Paper 002: false accepts", false_accept::measure),
    papers("phone", "Paper 003: the phone", phone_report::measure),
];

type Measure = fn(&Workspace) -> Result<Box<dyn Measured>>;

const fn product(name: &'static str, heading: &'static str, measure: Measure) -> Section {
    Section { name, heading, page: Page::Product, measure }
}

const fn papers(name: &'static str, heading: &'static str, measure: Measure) -> Section {
    Section { name, heading, page: Page::Papers, measure }
}

impl Section {
    /// The section of this name.
    pub(crate) fn by_name(name: &str) -> Option<&'static Section> {
        SECTIONS.iter().find(|section| section.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::SECTIONS;

    #[test]
    fn names_are_distinct() {
        let names: std::collections::HashSet<_> = SECTIONS.iter().map(|section| section.name).collect();
        assert_eq!(names.len(), SECTIONS.len());
    }
}
