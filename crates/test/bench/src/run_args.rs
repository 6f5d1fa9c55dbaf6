//! The options of a run, for any list of sections.

use crate::section::BenchSection;
use crate::serving::scale::Scale;
use lacuna_contracts::{Error, Kind, Result};
use std::path::{Path, PathBuf};

/// The options of a run.
#[derive(clap::Args)]
pub struct RunArgs {
    /// Number of rounds; in each, a server has one turn at each job [default: 9, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// Use tiny sizes and one round, to check that everything works; the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Measure only this section; may be repeated
    #[arg(long, value_name = "SECTION")]
    only: Vec<String>,
    /// Directory for the pages and plots [default: docs; none with --quick or --only]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write the stable measures to this file, for `agree`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) place: MeasureArgs,
}

/// The options on the directory and the measured program.
#[derive(clap::Args)]
pub(crate) struct MeasureArgs {
    /// Directory for the disks, on the measured file system; the disks need about 20 GiB, with
    /// Ceph 50 GiB
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// The measured lacuna program [default: a new build; outside Cargo, the one beside this
    /// program]
    #[arg(long, value_name = "PATH")]
    pub lacuna: Option<PathBuf>,
}

impl RunArgs {
    /// The requested sections of `all`. Errors: [`Kind::Usage`] for an unknown name.
    pub(crate) fn sections(&self, all: &'static [BenchSection]) -> Result<Vec<&'static BenchSection>> {
        if self.only.is_empty() {
            return Ok(all.iter().collect());
        }
        let by_name = |name: &String| {
            all.iter().find(|section| section.name == name).ok_or_else(|| {
                let known: Vec<&str> = all.iter().map(|section| section.name).collect();
                Error::new(Kind::Usage, "cannot measure a section that does not exist")
                    .found(name.as_str())
                    .expected(format!("one of {}", known.join(", ")))
            })
        };
        self.only.iter().map(by_name).collect()
    }

    /// The output directory, if any. A partial run replaces the pages of a full run only if `--out`
    /// is set.
    pub(crate) fn out(&self) -> Option<&Path> {
        let whole = !self.quick && self.only.is_empty();
        self.out.as_deref().or_else(|| whole.then_some(Path::new("docs")))
    }

    /// The sizes of this run.
    pub(crate) fn scale(&self) -> Scale {
        Scale::new(self.quick, self.rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sections::SECTIONS;
    use clap::Parser;

    #[derive(Parser)]
    struct TestArgs {
        #[command(flatten)]
        run: RunArgs,
    }

    fn args(words: &[&str]) -> RunArgs {
        TestArgs::parse_from([&["run"], words].concat()).run
    }

    #[test]
    fn a_partial_run_replaces_no_page() {
        let out = |words: &[&str]| args(words).out().map(Path::to_owned);
        assert_eq!(out(&[]), Some(PathBuf::from("docs")));
        assert_eq!(out(&["--quick"]), None);
        assert_eq!(out(&["--only", "disks"]), None);
        assert_eq!(out(&["--quick", "--out", "x"]), Some(PathBuf::from("x")));
    }

    #[test]
    fn sections_are_selected_by_name() {
        let names = |words: &[&str]| -> Result<Vec<&'static str>> {
            Ok(args(words).sections(&SECTIONS)?.iter().map(|section| section.name).collect())
        };
        assert_eq!(names(&[]).unwrap().len(), SECTIONS.len());
        assert_eq!(names(&["--only", "memory", "--only", "disks"]).unwrap(), ["memory", "disks"]);
        assert_eq!(names(&["--only", "nothing"]).unwrap_err().kind(), Kind::Usage);
    }
}
