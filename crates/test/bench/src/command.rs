//! The `lacuna-bench` command: dispatches to its subcommands, and sets the exit code.

use crate::args::{Args, Command};
use crate::comparing::compare;
use crate::comparing::self_test;
use crate::pages::record;
use crate::run;
use crate::sections::{PAGES, SECTIONS};
use clap::Parser;
use std::process::ExitCode;

/// Runs the command line. The exit code is 1 if a comparison found a difference that it must not
/// find, and 2 on an error.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.command {
        None => run::run(&args.run, &SECTIONS, &PAGES).map(|()| true),
        Some(Command::Compare(compare_args)) => compare::run(compare_args),
        Some(Command::SelfTest(test_args)) => self_test::run(test_args),
        Some(Command::Agree { one, other }) => record::agree(one, other).map(|(text, agrees)| {
            println!("{text}");
            agrees
        }),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("lacuna-bench: {e}");
            ExitCode::from(2)
        }
    }
}
