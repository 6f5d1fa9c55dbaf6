//! The sections of the benchmark, and the pages that they write.

use crate::page::{Page, Shows};
use crate::section::Section;
use crate::{
    ciphers, disks_report, flash_report, levels, media, memory, mounted_report, rados_report, vault_report,
};

/// The sections, in the order of measurement and of the pages.
pub(crate) const SECTIONS: [Section; 9] = [
    Section::new("disks", "Disks over NBD", disks_report::measure),
    Section::new("levels", "Disks with levels", levels::measure),
    Section::new("media", "On a modelled hard disk and stick", media::measure),
    Section::new("mounted", "Mounted disks", mounted_report::measure),
    Section::new("vaults", "Vaults", vault_report::measure),
    Section::new("ciphers", "Ciphers", ciphers::measure),
    Section::new("memory", "Memory and opening", memory::measure),
    Section::new("flash", "On flash", flash_report::measure),
    Section::new("rados", "On Ceph", rados_report::measure),
];

/// The page of results, and the page with all figures and methods.
pub(crate) const PAGES: [Page; 2] = [
    Page {
        file: "benchmarks.md",
        introduction: "# Benchmarks\n\n",
        command: "make bench",
        shows: Shows::Results,
    },
    Page {
        file: "benchmarks-method.md",
        introduction: "# Benchmarks: method, all figures, requirements, history\n\n",
        command: "make bench",
        shows: Shows::Everything,
    },
];

#[cfg(test)]
mod tests {
    use super::SECTIONS;

    #[test]
    fn names_are_distinct() {
        let names: std::collections::HashSet<_> = SECTIONS.iter().map(|section| section.name).collect();
        assert_eq!(names.len(), SECTIONS.len());
    }
}
