//! `check`: reads and verifies everything.

use crate::args::CheckArgs;
use crate::bad_runs::{BadRuns, blocks};
use crate::console::{self, Console};
use crate::serve::budget;
use crate::unlock;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lacuna_core::{BLOCK_SIZE, Disk, Error, Kind, Result};
use lacuna_sealed::{BadBlock, CheckReport, Cipher};
use serde::Serialize;

/// Bad blocks named in a JSON answer. The count beside them is always whole.
const NAMED: usize = 65536;

#[derive(Serialize)]
struct Named {
    block: u64,
    error: String,
}

#[derive(Serialize)]
struct Answer {
    location: String,
    good: u64,
    unwritten: u64,
    bad: u64,
    /// Whether the cipher lets altered data be noticed.
    verified: bool,
    bad_blocks: Vec<Named>,
    bad_blocks_truncated: bool,
}

/// `lacuna check`.
pub fn run(args: &CheckArgs, console: Console) -> Result<()> {
    let budget = budget(args.cache)?;
    let volume = unlock::unlock(&args.location, unlock::access(args.read_only), &args.passphrase, console)?;
    let cipher = volume.params.cipher;
    let disk = volume.into_key()?.open(args.read_only, budget)?;
    let bar = progress_bar(disk.blocks(), console);
    let mut named = Vec::new();
    let mut runs = BadRuns::default();
    let mut unsaid = Ok(());
    let report = disk.check(
        |done| bar.set_position(done * BLOCK_SIZE as u64),
        |bad| {
            if !args.json {
                let line = runs.push(bad);
                let said = line.map_or(Ok(()), |line| bar.suspend(|| console::line(&line)));
                if unsaid.is_ok() {
                    unsaid = said;
                }
            } else if named.len() < NAMED {
                let BadBlock { block, error } = bad;
                named.push(Named { block: block.0, error: error.to_string() });
            }
        },
    );
    bar.finish_and_clear();
    let unsaid = unsaid.and(runs.finish().map_or(Ok(()), |line| console::line(&line)));
    let closed = disk.close();
    let report = report?;
    if args.json {
        console::json(&Answer {
            location: args.location.to_string(),
            good: report.good,
            unwritten: report.unwritten,
            bad: report.bad,
            verified: verifies(cipher),
            bad_blocks_truncated: report.bad > named.len() as u64,
            bad_blocks: named,
        })?;
    } else {
        console::line(&summary(&report, cipher))?;
    }
    unsaid?;
    if report.bad > 0 {
        return Err(Error::new(Kind::Corrupt, format!("{} has bad blocks", args.location))
            .found(format!("{} that cannot be read", blocks(report.bad)))
            .remedy(
                "restore what lies there from a backup: a block that is written anew is good again; all other \
                 blocks can be read",
            ));
    }
    closed
}

/// Whether altered data is noticed at all.
fn verifies(cipher: Cipher) -> bool {
    cipher == Cipher::Gcm
}

fn summary(report: &CheckReport, cipher: Cipher) -> String {
    let good = if verifies(cipher) { "verified" } else { "readable" };
    let hint = if verifies(cipher) { "" } else { "; the cipher of this disk cannot tell altered data" };
    format!("{} {good}, {} never written, {} bad{hint}", blocks(report.good), report.unwritten, report.bad)
}

fn progress_bar(blocks: u64, console: Console) -> ProgressBar {
    let target =
        if console.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(blocks * BLOCK_SIZE as u64), target);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {percent:>3}%  {binary_bytes_per_sec}  {eta} left")
    {
        bar.set_style(style);
    }
    bar
}
