//! The options of the program.

use crate::compared;
use crate::scale::Scale;
use crate::section::{Page, SECTIONS, Section};
use crate::subject;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};

/// Measure lacuna beside its peers.
#[derive(Parser)]
#[command(name = "lacuna-bench", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Something else than a whole run.
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub run: RunArgs,
}

/// What else can be done.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Redo the figures of the papers
    Papers(RunArgs),
    /// Tell whether two commits differ in processor time, and with what confidence
    Compare(CompareArgs),
    /// Show that `compare` finds a commit with 5 % more processor time, and nothing in an unchanged one
    SelfTest(SelfTestArgs),
    /// Compare the stable measures of two runs, as `--record` wrote them
    Agree {
        /// The record of one run
        one: PathBuf,
        /// The record of another
        other: PathBuf,
    },
}

/// The options of a run.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// How often every server has its turn [default: 9, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// Tiny sizes and one round, to see that everything works; the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Measure only this; may be repeated
    #[arg(long, value_name = "SECTION", value_parser = section)]
    only: Vec<&'static Section>,
    /// Directory for the pages and plots [default: docs; nowhere with --quick or --only]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// File for the stable measures, for `agree`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Where it is measured, and what.
#[derive(clap::Args, Clone)]
pub(crate) struct PlaceArgs {
    /// Directory for the disks, on the file system to measure; they need about 20 GiB, with Ceph
    /// 50 GiB
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// The lacuna command [default: built with Cargo, or the one beside this program]
    #[arg(long, value_name = "PATH")]
    pub lacuna: Option<PathBuf>,
}

/// The options of a comparison.
#[derive(clap::Args)]
pub(crate) struct CompareArgs {
    /// A commit of this repository, or a lacuna program
    pub one: String,
    /// Another
    pub other: String,
    /// Compare this kind of disk; may be repeated [default: gcm]
    #[arg(long, value_name = "DISK", value_parser = compared::by_name)]
    pub only: Vec<(&'static str, subject::Subject)>,
    /// How often both servers are started anew
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(11..=999))]
    pub sessions: u32,
    /// Slices of each server at each job, each time; few of them tell little [default: 24]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=999))]
    pub slices: Option<u64>,
    /// Directory for the disks, on the file system to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
}

/// The options of the self-test.
#[derive(clap::Args)]
pub(crate) struct SelfTestArgs {
    /// How often each of the two is compared
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub runs: u32,
    /// How often both servers are started anew in each
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(11..=999))]
    pub sessions: u32,
    /// Directory for the disks, on the file system to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
}

fn section(name: &str) -> Result<&'static Section, String> {
    let known = || SECTIONS.map(|section| section.name).join(", ");
    Section::by_name(name).ok_or_else(|| format!("there are {}", known()))
}

impl RunArgs {
    /// The sections that were asked for, of those for this page.
    pub(crate) fn sections(&self, page: Page) -> Vec<&'static Section> {
        if self.only.is_empty() {
            SECTIONS.iter().filter(|section| section.page == page).collect()
        } else {
            self.only.clone()
        }
    }

    /// Where to write, if anywhere. A partial run must not replace the record of a whole one unasked.
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
    use clap::CommandFactory;

    #[test]
    fn the_words_fit_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn only_a_whole_run_replaces_the_record() {
        let out = |words: &[&str]| {
            Args::parse_from([&["lacuna-bench"], words].concat()).run.out().map(Path::to_owned)
        };
        assert_eq!(out(&[]), Some(PathBuf::from("docs")));
        assert_eq!(out(&["--quick"]), None);
        assert_eq!(out(&["--only", "disks"]), None);
        assert_eq!(out(&["--quick", "--out", "x"]), Some(PathBuf::from("x")));
    }
}
