//! `lacuna-bench`: the program behind `make bench`. Its one job is to measure the `lacuna` command beside its peers, in one run on one
//! machine, and to write down what came out: on the terminal, in the pages of `docs/` and as plots; and to tell two commits apart.
//!
//! Invariants kept here:
//! - All servers get the same jobs with the same numbers of requests, in turns. One is busy at a time; on Ceph the others idle,
//!   elsewhere only one is alive.
//! - A speed is the median of the rounds; a ratio of speeds is the median of the ratios of the rounds of one run. A processor time is the
//!   lower quartile of its slices, because other work on the machine can only add to it.
//! - A missed ratio is a result, not a failure: it is written down, and the exit code stays 0.
//! - Whatever happens, no server and no file stays behind, except what was asked for and the programs of commits in `target/compare`.
//! - The exit code is 1 where a comparison found a difference that it must not find, and 2 where something failed.
#![forbid(unsafe_code)]

mod args;
mod bed;
mod cache_bound;
mod cache_sizes;
mod ciphers;
mod client;
mod cluster;
mod commits;
mod compare;
mod compared;
mod confidence;
mod counters;
mod disks;
mod disks_report;
mod false_accept;
mod false_accept_plot;
mod false_accept_report;
mod file_jobs;
mod flash_assignment;
mod flash_bed;
mod flash_job;
mod flash_large;
mod flash_report;
mod flash_sparse;
mod flash_speed;
mod flash_steady;
mod grid;
mod hot_cold;
mod image;
mod in_process;
mod integrity_claims;
mod integrity_files;
mod integrity_paper;
mod integrity_parts;
mod integrity_plot;
mod integrity_report;
mod integrity_speed;
mod integrity_tables;
mod interrupt;
mod job;
mod levels;
mod levels_plot;
mod locality;
mod machine;
mod machine_time;
mod measured;
mod media;
mod memory;
mod modelled;
mod models;
mod mountable;
mod mounted_report;
mod page;
mod paper_tables;
mod peers_plot;
mod phone_chip;
mod phone_files;
mod phone_grain;
mod phone_life;
mod phone_plot;
mod phone_report;
mod phone_timing;
mod phone_wear;
mod phone_week;
mod pin;
mod plot;
mod processor;
mod program;
mod rados;
mod rados_plot;
mod rados_report;
mod ratios_plot;
mod raw_disk;
mod record;
mod report;
mod requirement;
mod rounds;
mod runs;
mod runs_plot;
mod samples;
mod scale;
mod section;
mod self_test;
mod server;
mod servers;
mod side_by_side;
mod stash;
mod stash_plot;
mod stash_report;
mod steady;
mod subject;
mod table;
mod trace_counters;
mod trace_model;
mod trace_speed;
mod turn;
mod vault_act;
mod vault_bed;
mod vault_large;
mod vault_reach;
mod vault_report;
mod vault_schemes;
mod vault_steady;
mod vault_tree;
mod workspace;

use args::{Args, Command, RunArgs};
use clap::Parser;
use interrupt::Interrupt;
use lacuna_core::Result;
use page::Run;
use report::Report;
use section::Page;
use std::process::ExitCode;
use std::time::Instant;
use workspace::Workspace;

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.command {
        None => run(&args.run, Page::Product),
        Some(Command::Papers(run_args)) => run(run_args, Page::Papers),
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

/// Measures the sections that were asked for, of those for this page.
fn run(args: &RunArgs, page: Page) -> Result<bool> {
    let interrupt = Interrupt::install()?;
    let lacuna = program::lacuna(args.place.lacuna.as_deref())?;
    let work = Workspace::new(&args.place.dir, lacuna, args.scale(), interrupt)?;
    let run = Run::new(machine::describe(&work), args.scale());
    let mut sections = Vec::new();
    let mut times = Vec::new();
    for section in args.sections(page) {
        let begin = Instant::now();
        sections.push((section, (section.measure)(&work)?));
        times.push(format!("{} {:.1}", section.name, begin.elapsed().as_secs_f64() / 60.0));
    }
    let report = Report { run, sections };
    println!("\n{}\nminutes: {}", report.terminal(), times.join(", "));
    if let Some(path) = &args.record {
        record::write(path, report.run.machine.facts(), &report.sections)?;
    }
    if let Some(out) = args.out() {
        report.write(out)?;
    }
    Ok(true)
}
