//! The sections of the benchmark: what each is called, on which page its figures stand, and how it is measured.

use crate::measured::Measured;
use crate::workspace::Workspace;
use crate::{
    ciphers, disks_report, false_accept_report, flash_report, integrity_report, levels, media, memory, models,
    mounted_report, phone_report, rados_report, stash_report, vault_report,
};
use lacuna_core::Result;

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
    product("disks", "Disks over NBD", disks_report::measure),
    product("levels", "Disks with levels", levels::measure),
    product("media", "On a modelled hard disk and stick", media::measure),
    product("mounted", "Mounted disks", mounted_report::measure),
    product("vaults", "Vaults", vault_report::measure),
    product("ciphers", "Ciphers", ciphers::measure),
    product("memory", "Memory and opening", memory::measure),
    product("flash", "On flash", flash_report::measure),
    product("rados", "On Ceph", rados_report::measure),
    papers("models", "Paper 000: models", models::measure),
    papers("stash", "Paper 001: the stash", stash_report::measure),
    papers("integrity", "Paper 002: integrity", integrity_report::measure),
    papers("false-accept", "Paper 002: false accepts", false_accept_report::measure),
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
