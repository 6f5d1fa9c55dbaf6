//! A run: measures sections one after another, prints the results and writes the pages.

use crate::interrupt::Interrupt;
use crate::machine;
use crate::pages::page::{ReportPage, RunInfo};
use crate::pages::record;
use crate::pages::report::Report;
use crate::program;
use crate::run_args::RunArgs;
use crate::section::BenchSection;
use crate::workspace::Workspace;
use lacuna_contracts::Result;
use std::time::Instant;

/// Measures the requested sections of `all`, prints the results, and writes them into `pages`
/// unless the run is partial. Errors: [`lacuna_contracts::Kind::Usage`] for an unknown section;
/// those of the sections.
pub fn run(args: &RunArgs, all: &'static [BenchSection], pages: &[ReportPage]) -> Result<()> {
    let wanted = args.sections(all)?;
    let interrupt = Interrupt::install()?;
    let lacuna = program::lacuna(args.place.lacuna.as_deref())?;
    let work = Workspace::new(&args.place.dir, lacuna, args.scale(), interrupt)?;
    let run = RunInfo::new(machine::describe(&work), args.scale());
    let mut sections = Vec::new();
    let mut times = Vec::new();
    for section in wanted {
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
        report.write(out, pages)?;
    }
    Ok(())
}
