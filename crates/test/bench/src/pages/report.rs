//! The report of a run: on the terminal, and in the pages, where each section replaces its own part
//! and continues its history.

use crate::machine;
use crate::measuring::section_results::SectionResults;
use crate::pages::page::{self, PageContents, ReportPage, RunInfo};
use crate::pages::requirement::{self, Requirement};
use crate::pages::table::Table;
use crate::section::BenchSection;
use lacuna_contracts::{Error, Result};
use std::io::ErrorKind;
use std::path::Path;

/// The results of a run.
pub(crate) struct Report {
    /// Date, machine and sizes.
    pub run: RunInfo,
    /// The measured sections.
    pub sections: Vec<(&'static BenchSection, Box<dyn SectionResults>)>,
}

impl Report {
    fn requirements(&self) -> Vec<Requirement> {
        self.sections.iter().flat_map(|(_, measured)| measured.requirements()).collect()
    }

    /// The report as text for a terminal.
    pub(crate) fn terminal(&self) -> String {
        let requirements = self.requirements();
        let mut tables: Vec<Table> =
            self.sections.iter().flat_map(|(_, measured)| measured.tables()).collect();
        tables.push(requirement::table(&requirements));
        let mut parts: Vec<String> = tables.iter().map(Table::text).collect();
        let skipped = self.sections.iter().flat_map(|(_, measured)| measured.skipped());
        parts.extend(skipped.map(|why| format!("{why}\n")));
        parts.push(requirement::verdict(&requirements));
        parts.join("\n")
    }

    /// Writes these pages and the plots into `dir`.
    pub(crate) fn write(&self, dir: &Path, pages: &[ReportPage]) -> Result<()> {
        let failed = |e| Error::io(format!("cannot write the report into {}", dir.display()), &e);
        let plots = dir.join("plots");
        std::fs::create_dir_all(&plots).map_err(failed)?;
        for (_, measured) in &self.sections {
            measured.plot(&plots)?;
        }
        for page in pages {
            let path = dir.join(page.file);
            let old = match std::fs::read_to_string(&path) {
                Err(e) if e.kind() == ErrorKind::NotFound => None,
                other => Some(other.map_err(failed)?),
            };
            let text = old.clone().unwrap_or_else(|| page.introduction.to_owned());
            let text = self.text_of(page, text);
            if old.as_ref() != Some(&text) {
                std::fs::write(&path, text).map_err(failed)?;
                println!("written: {}", path.display());
            }
        }
        Ok(())
    }

    /// The new text of a page, from its old text.
    fn text_of(&self, page: &ReportPage, mut text: String) -> String {
        for (section, measured) in &self.sections {
            let written = match page.shows {
                PageContents::Results => measured.results(),
                PageContents::Everything => measured.tables(),
            };
            // Without results, the part of an earlier run stays.
            if !written.is_empty() {
                text = page::replace(&text, page.command, section.name, |old| match page.shows {
                    PageContents::Results => self.results(&written),
                    PageContents::Everything => self.part(section, &**measured, old),
                });
            }
        }
        if page.shows == PageContents::Results {
            text = page::replace(&text, page.command, "machine", |_| self.machine());
        }
        text
    }

    /// The whole part of a section.
    fn part(&self, section: &BenchSection, measured: &dyn SectionResults, old: &str) -> String {
        let requirements = measured.requirements();
        let mut parts = vec![format!(
            "## {}\n\n{} {}\n",
            section.heading,
            self.origin(),
            requirement::verdict(&requirements)
        )];
        parts.push(requirement::table(&requirements).markdown());
        parts.extend(measured.skipped().iter().map(|why| format!("{why}\n")));
        parts.push(measured.body(&self.run));
        parts.extend(measured.history(&self.run, &requirements, old));
        parts.join("\n")
    }

    /// The tables of results for users.
    fn results(&self, tables: &[Table]) -> String {
        let tables: Vec<String> = tables.iter().map(Table::markdown).collect();
        format!("\n{}\n\n{}", self.origin(), tables.join("\n"))
    }

    /// Date and machine of a section's figures: sections can be run alone, on other machines.
    fn origin(&self) -> String {
        let fact = |name| self.run.machine.fact(name);
        format!("Run of {} on {}, {} cores.", self.run.date, fact("processor"), fact("cores"))
    }

    fn machine(&self) -> String {
        let facts = self.run.machine.facts().iter().map(|(name, value)| (*name, value.as_str()));
        format!("\n### Machine of the last run, {}\n\n{}", self.run.date, machine::list(facts))
    }
}
