//! `papers`: the program that `make papers` runs. It redoes the figures and tables of the papers,
//! prints them, and writes `benchmarks-papers.md` with its plots.
#![forbid(unsafe_code)]

use clap::Parser;
use lacuna_bench::pages::page::{PageContents, ReportPage};
use lacuna_bench::run::run;
use lacuna_bench::run_args::RunArgs;
use lacuna_bench::section::BenchSection;
use std::process::ExitCode;

/// The sections, in the order of measurement and of the page.
const SECTIONS: [BenchSection; 6] =
    [pd_dm::MODELS, hive::STASH, eint::INTEGRITY, eint::FALSE_ACCEPT, dnefs::PHONE, dnefs::ASSIGNMENT];

const PAGES: [ReportPage; 1] = [ReportPage {
    file: "benchmarks-papers.md",
    introduction: "# Figures of the papers, redone\n\n",
    command: "make papers",
    shows: PageContents::Everything,
}];

/// Redo the figures and tables of the papers.
#[derive(Parser)]
#[command(name = "papers", version)]
struct Args {
    #[command(flatten)]
    run: RunArgs,
}

fn main() -> ExitCode {
    match run(&Args::parse().run, &SECTIONS, &PAGES) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("papers: {e}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Args, SECTIONS};
    use clap::CommandFactory;
    use std::collections::HashSet;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn names_are_distinct() {
        let names: HashSet<_> = SECTIONS.iter().map(|section| section.name).collect();
        assert_eq!(names.len(), SECTIONS.len());
    }
}
