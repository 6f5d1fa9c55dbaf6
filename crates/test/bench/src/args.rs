//! The options of `lacuna-bench`.

use crate::comparing::compared_disks;
use crate::run_args::RunArgs;
use crate::serving::subject;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Measure lacuna beside its peers.
#[derive(Parser)]
#[command(name = "lacuna-bench", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// An action other than a whole run.
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub run: RunArgs,
}

/// The subcommands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Compare the processor time of two commits, and print the confidence
    Compare(CompareArgs),
    /// Check that `compare` finds a commit with 5 % more processor time, and no difference in an
    /// unchanged commit
    SelfTest(SelfTestArgs),
    /// Compare the stable measures of two runs, from the files that `--record` wrote
    Agree {
        /// The record of one run
        one: PathBuf,
        /// The record of the other run
        other: PathBuf,
    },
}

/// The options of a comparison.
#[derive(clap::Args)]
pub(crate) struct CompareArgs {
    /// A commit of this repository, or a lacuna program
    pub one: String,
    /// Another commit or program
    pub other: String,
    /// Compare this kind of disk; may be repeated [default: gcm]
    #[arg(long, value_name = "DISK", value_parser = compared_disks::by_name)]
    pub only: Vec<(&'static str, subject::Subject)>,
    /// Number of sessions; each starts both servers anew
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(11..=999))]
    pub sessions: u32,
    /// Slices of each server for each job of a session; few slices give imprecise ratios
    /// [default: 24]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=999))]
    pub slices: Option<u64>,
    /// Directory for the disks, on the measured file system
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
}

/// The options of the self-test.
#[derive(clap::Args)]
pub(crate) struct SelfTestArgs {
    /// Number of comparisons of each of the two commits
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub runs: u32,
    /// Number of sessions of a comparison; each starts both servers anew
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(11..=999))]
    pub sessions: u32,
    /// Directory for the disks, on the measured file system
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
