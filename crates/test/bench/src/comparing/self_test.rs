//! The self-test of `compare`: it must detect a commit with 5 % more processor time per request,
//! and no difference in a commit with an equivalent program.

use crate::args::SelfTestArgs;
use crate::comparing::commits;
use crate::comparing::compare::{SLICES, compare};
use crate::comparing::compared_disks::SUBJECTS;
use crate::comparing::confidence::RatioVerdict;
use crate::interrupt::Interrupt;
use crate::pages::table::Table;
use lacuna_contracts::{Error, Kind, Result};

const MAIN: &str = "crates/command/cli/src/main.rs";
const BURN: &str = "crates/command/cli/src/burn.rs";
const BEGIN: &str = "fn main() -> ExitCode {\n";
/// The slower commit must be found in this fraction of the runs, the unchanged one in none.
const FOUND: f64 = 0.9;

/// A thread that takes a twentieth of the processor time of all other threads.
const BURN_CODE: &str = "\
//! Takes 5 % more processor time than the rest of the process.
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

fn nanos(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

pub(crate) fn start() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_micros(500));
            while 21 * nanos(ClockId::ThreadCPUTime) < nanos(ClockId::ProcessCPUTime) {
                std::hint::spin_loop();
            }
        }
    });
}
";

/// Unused bytes that move the code after them.
const UNUSED_CODE: &str = "\n#[used]\nstatic UNUSED: [u8; 12_345] = [1; 12_345];\n";

/// Compares the current commit with both commits, several times.
pub(crate) fn run(args: &SelfTestArgs) -> Result<bool> {
    let interrupt = Interrupt::install()?;
    let head = commits::resolve("HEAD")?;
    let program = commits::build_program(&head, &interrupt)?;
    let unchanged = unchanged_commit(&head)?;
    let slower = slower_commit(&head)?;
    let mut table = Table::new(
        format!("Self-test of compare, {} runs each with {} sessions", args.runs, args.sessions),
        ["commit", "difference found", "ratio over all jobs in each run"],
    );
    let mut passed = true;
    for (name, commit, wanted) in [("unchanged", unchanged, 0.0), ("5 % more", slower, FOUND)] {
        let other = commits::build_program(&commit, &interrupt)?;
        let (mut found, mut ratios) = (0, Vec::new());
        for run in 0..args.runs {
            eprintln!("self-test: {name}, run {} of {}", run + 1, args.runs);
            let programs = [program.clone(), other.clone()];
            let comparison =
                compare(&programs, args.sessions, SLICES, &args.dir, &SUBJECTS[..1], &interrupt)?;
            // For the unchanged commit a difference in either direction counts, for the slower one
            // only `More`.
            let verdict = comparison.verdict();
            let differs =
                if wanted > 0.0 { verdict == RatioVerdict::More } else { verdict != RatioVerdict::Same };
            found += u32::from(differs);
            ratios.push(format!("{:.3}", comparison.overall().quartile.median));
        }
        table.row(name, [format!("{found} of {}", args.runs), ratios.join(" ")]);
        let part = f64::from(found) / f64::from(args.runs.max(1));
        passed &= if wanted > 0.0 { part >= wanted } else { found == 0 };
    }
    println!("{}\n{}", table.text(), if passed { "passed" } else { "FAILED" });
    Ok(passed)
}

/// A commit with the same behaviour, and code at other addresses.
fn unchanged_commit(head: &str) -> Result<String> {
    let main = commits::file_of(head, MAIN)? + UNUSED_CODE;
    commits::commit_onto(head, "bench: change nothing", &[(MAIN, &main)])
}

fn slower_commit(head: &str) -> Result<String> {
    let main = commits::file_of(head, MAIN)?;
    let at = main.find(BEGIN).ok_or_else(|| {
        Error::new(Kind::Other, format!("cannot make {MAIN} slower")).expected(format!("a line {BEGIN:?}"))
    })?;
    let (before, after) = main.split_at(at + BEGIN.len());
    let main = format!("{before}    burn::start();\n{after}\nmod burn;\n");
    commits::commit_onto(head, "bench: take 5 % more processor time", &[(MAIN, &main), (BURN, BURN_CODE)])
}
