//! The options of `lacuna-bench`.

use crate::compared;
use crate::run_args::RunArgs;
use crate::subject;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

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

/// The subcommands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Tell whether two commits differ in processor time, and with what confidence
    Compare(CompareArgs),
    /// Show that `compare` finds a commit with 5 % more processor time, and nothing in an unchanged
    /// one
    SelfTest(SelfTestArgs),
    /// Compare the stable measures of two runs, as `--record` wrote them
    Agree {
        /// The record of one run
        one: PathBuf,
        /// The record of another
        other: PathBuf,
    },
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_words_fit_together() {
        Args::command().debug_assert();
    }
}
