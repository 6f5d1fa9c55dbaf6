//! `lacuna-bench`: what `make bench` runs. Its one job is to measure the `lacuna` command beside its peers, in
//! one run on one machine, and to write down what came out: on the terminal, in `docs/benchmarks.md` and as
//! plots.
//!
//! Invariants kept here:
//! - Only one server lives at a time, and all get the same jobs with the same options, in turns.
//! - A figure is the median of the repeats; a ratio is the median of the ratios of the repeats of one run.
//! - A missed ratio is a result, not a failure: it is written down, and the exit code stays 0.
//! - Whatever happens, no server and no file stays behind, except what was asked for.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod args;
mod bed;
mod cache_bound;
mod cache_sizes;
mod ciphers;
mod cluster;
mod date;
mod fio;
mod grid;
mod hctr2;
mod hot_cold;
mod image;
mod in_process;
mod interrupt;
mod levels;
mod levels_plot;
mod locality;
mod machine;
mod memory;
mod method;
mod modelled;
mod models;
mod page;
mod paper_tables;
mod peers;
mod plot;
mod program;
mod rados;
mod rados_plot;
mod rados_report;
mod read_counter;
mod report;
mod requirement;
mod rounds;
mod runs;
mod runs_plot;
mod server;
mod stash;
mod stash_plot;
mod subject;
mod table;
mod workspace;

use args::{Args, Section};
use clap::Parser;
use interrupt::Interrupt;
use lacuna_core::Result;
use report::Report;
use std::process::ExitCode;
use workspace::Workspace;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("lacuna-bench: {e}");
            ExitCode::from(e.kind().exit_code())
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::install()?;
    fio::available()?;
    let lacuna = program::lacuna(args.lacuna.as_deref())?;
    let work = Workspace::new(&args.dir, lacuna, args.scale(), interrupt)?;
    let mut report = Report::new(machine::describe(&work), args.scale());
    if args.wants(Section::Peers) {
        report.peers(peers::measure(&work)?);
    }
    if args.wants(Section::Ciphers) {
        report.ciphers(ciphers::measure(&work)?);
    }
    // Removing a file of many small extents can take minutes where the file system discards; the ciphers,
    // which use no medium, are measured meanwhile.
    let memory = args.wants(Section::Memory).then(|| memory::measure(&work)).transpose()?;
    let hctr2 = args.wants(Section::Hctr2).then(|| hctr2::measure(&work)).transpose()?;
    if let Some(hctr2) = hctr2 {
        report.hctr2(hctr2);
    }
    if let Some((memory, removals)) = memory {
        report.memory(memory);
        removals.finish();
    }
    if args.wants(Section::Levels) {
        report.levels(levels::measure(&work)?);
    }
    if args.wants(Section::Models) {
        report.models(models::measure(&work)?);
    }
    if args.wants(Section::Stash) {
        report.stash(stash::measure(&work)?);
    }
    if args.wants(Section::Rados) {
        report.rados(rados::measure(&work)?);
    }
    println!("\n{}", report.terminal());
    if let Some(out) = args.out() {
        report.write(out)?;
    }
    Ok(())
}
