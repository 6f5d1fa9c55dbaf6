//! `lacuna-bench`: what `make bench` runs. Its one job is to measure the `lacuna` command beside its peers, in
//! one run on one machine, and to write down what came out: on the terminal, in `docs/benchmarks.md` and as
//! plots.
//!
//! Invariants kept here:
//! - All servers get the same jobs with the same options, in turns. One is busy at a time; on Ceph the others idle, elsewhere
//!   only one is alive.
//! - A figure is the median of the repeats; a ratio is the median of the ratios of the repeats of one run.
//! - A missed ratio is a result, not a failure: it is written down, and the exit code stays 0.
//! - Whatever happens, no server and no file stays behind, except what was asked for.
#![forbid(unsafe_code)]

mod args;
mod bed;
mod cache_bound;
mod cache_sizes;
mod ciphers;
mod cluster;
mod false_accept;
mod false_accept_plot;
mod file_jobs;
mod fio;
mod flash_assignment;
mod flash_bed;
mod flash_large;
mod flash_report;
mod flash_sparse;
mod flash_speed;
mod grid;
mod hctr2;
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
mod levels;
mod levels_plot;
mod locality;
mod machine;
mod memory;
mod method;
mod modelled;
mod models;
mod mountable;
mod mounted_report;
mod page;
mod paper_tables;
mod peers;
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
mod plot;
mod program;
mod rados;
mod rados_plot;
mod rados_report;
mod ratios_plot;
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
mod trace_counters;
mod trace_model;
mod trace_speed;
mod vault_large;
mod vault_reach;
mod vault_report;
mod vault_schemes;
mod vault_tree;
mod workspace;

use args::{Args, Section};
use clap::Parser;
use interrupt::Interrupt;
use lacuna_core::Result;
use page::Run;
use report::Report;
use std::process::ExitCode;
use workspace::Workspace;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("lacuna-bench: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::install()?;
    fio::available()?;
    let lacuna = program::lacuna(args.lacuna.as_deref())?;
    let work = Workspace::new(&args.dir, lacuna, args.scale(), interrupt)?;
    let run = Run::new(machine::describe(&work), args.scale());
    let peers = args.wants(Section::Peers).then(|| peers::measure(&work)).transpose()?;
    let ciphers = args.wants(Section::Ciphers).then(|| ciphers::measure(&work)).transpose()?;
    let memory = args.wants(Section::Memory).then(|| memory::measure(&work)).transpose()?;
    // Removing a file of many small extents can take minutes where the file system discards; the ciphers,
    // which use no medium, are measured meanwhile.
    let hctr2 = args.wants(Section::Hctr2).then(|| hctr2::measure(&work)).transpose()?;
    let memory = memory.map(memory::Measured::removed);
    let levels = args.wants(Section::Levels).then(|| levels::measure(&work)).transpose()?;
    let models = args.wants(Section::Models).then(|| models::measure(&work)).transpose()?;
    let stash = args.wants(Section::Stash).then(|| stash::measure(&work)).transpose()?;
    let flash = args.wants(Section::Flash).then(|| flash_report::measure(&work)).transpose()?;
    let phone = args.wants(Section::Phone).then(|| phone_report::measure(&work)).transpose()?;
    let integrity = args.wants(Section::Integrity).then(|| integrity_report::measure(&work)).transpose()?;
    let accepts = args.wants(Section::FalseAccept).then(|| false_accept::measure(&work)).transpose()?;
    let vaults = args.wants(Section::Vaults).then(|| vault_report::measure(&work)).transpose()?;
    let mounts = args.wants(Section::Mounted).then(|| mounted_report::measure(&work)).transpose()?;
    let rados = args.wants(Section::Rados).then(|| rados::measure(&work)).transpose()?;
    let report = Report {
        run,
        peers,
        ciphers,
        hctr2,
        memory,
        rados,
        levels,
        models,
        stash,
        flash,
        phone,
        accepts,
        integrity,
        vaults,
        mounts,
    };
    println!("\n{}", report.terminal());
    if let Some(out) = args.out() {
        report.write(out)?;
    }
    Ok(())
}
