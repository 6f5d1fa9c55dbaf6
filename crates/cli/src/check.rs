//! `check`: reads and verifies everything.

use crate::args::CheckArgs;
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
    let mut unsaid = Ok(());
    let report = disk.check(
        |done| bar.set_position(done * BLOCK_SIZE as u64),
        |BadBlock { block, error }| {
            if !args.json {
                let said = bar.suspend(|| console::line(&format!("block {}: {error}", block.0)));
                if unsaid.is_ok() {
                    unsaid = said;
                }
            } else if named.len() < NAMED {
                named.push(Named { block: block.0, error: error.to_string() });
            }
        },
    );
    bar.finish_and_clear();
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
            .found(format!("{} blocks that cannot be read", report.bad))
            .remedy("restore them from a backup, or write them anew; all other blocks are good"));
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
    format!("{} blocks {good}, {} never written, {} bad{hint}", report.good, report.unwritten, report.bad)
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
