//! The sections of the benchmark, and the pages that they write.

use crate::ceph;
use crate::ciphers;
use crate::flash;
use crate::memory;
use crate::modelled::media;
use crate::mounted;
use crate::nbd::disks_report;
use crate::nbd::levels;
use crate::pages::page::{PageContents, ReportPage};
use crate::section::BenchSection;
use crate::vaults;

/// The sections, in the order of measurement and of the pages.
pub(crate) const SECTIONS: [BenchSection; 9] = [
    BenchSection::new("disks", "Disks over NBD", disks_report::measure),
    BenchSection::new("levels", "Disks with levels", levels::measure),
    BenchSection::new("media", "On a modelled hard disk and stick", media::measure),
    BenchSection::new("mounted", "Mounted disks", mounted::report::measure),
    BenchSection::new("vaults", "Vaults", vaults::report::measure),
    BenchSection::new("ciphers", "Ciphers", ciphers::measure),
    BenchSection::new("memory", "Memory and opening", memory::measure),
    BenchSection::new("flash", "On flash", flash::report::measure),
    BenchSection::new("rados", "On Ceph", ceph::report::measure),
];

/// The page of results, and the page with all figures and methods.
pub(crate) const PAGES: [ReportPage; 2] = [
    ReportPage {
        file: "benchmarks.md",
        introduction: "# Benchmarks\n\n",
        command: "make bench",
        shows: PageContents::Results,
    },
    ReportPage {
        file: "benchmarks-method.md",
        introduction: "# Benchmarks: method, all figures, requirements, history\n\n",
        command: "make bench",
        shows: PageContents::Everything,
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
