//! `check`: reads and verifies everything.

use crate::args::CheckArgs;
use crate::bad_runs::{BadRuns, blocks};
use crate::console::{self, Console};
use crate::settings;
use crate::size::budget;
use crate::unlock;
use lacuna::{
    BLOCK_SIZE, BadBlock, CheckReport, Disk, Error, Kind, OVERWRITTEN, Opening, Result, is_of_version_table,
};
use serde::Serialize;
use std::time::Duration;

/// Bad blocks named in a JSON answer. The count beside them is always whole.
const NAMED: usize = 65536;

#[derive(Serialize)]
struct Named {
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u8>,
    block: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
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
pub(crate) fn run(args: &CheckArgs, console: Console) -> Result<()> {
    let budget = budget(args.cache)?;
    // What is written while a deeper level is not open overwrites some of it, and a check need not cost that.
    let read_only = args.read_only || lacuna::peek(&args.location).is_some_and(|disk| disk.has_levels());
    let access = unlock::access(read_only);
    let volume = unlock::unlock(&args.location, &args.holder, access, &args.passphrase, console)?;
    let verified = volume.parameters.verifies();
    let opening =
        Opening { read_only, budget, cover_timeout: Duration::ZERO, purging: None, ..Opening::default() };
    let disk = unlock::open(volume.into_key(false)?, opening)?;
    let bar = console.progress(disk.all_blocks() * BLOCK_SIZE as u64, "{binary_bytes_per_sec}");
    let mut named = Vec::new();
    let mut runs = BadRuns::default();
    let mut unsaid = Ok(());
    let (mut hidden, mut uncounted) = (false, false);
    let report = disk.check(
        |done| bar.set_position(done * BLOCK_SIZE as u64),
        |level, bad| {
            let object = disk.object_of(bad.block);
            hidden |= level.is_some_and(|level| level > 0);
            uncounted |= is_of_version_table(&bad.error);
            if !args.json {
                let place = object.or_else(|| level.map(|level| format!("level {level}")));
                let line = runs.push(bad, place);
                let said = line.map_or(Ok(()), |line| bar.suspend(|| console::line(&line)));
                if unsaid.is_ok() {
                    unsaid = said;
                }
            } else if named.len() < NAMED {
                let BadBlock { block, error } = bad;
                named.push(Named { level, block: block.0, object, error: settings::words(&error) });
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
            verified,
            bad_blocks_truncated: report.bad > named.len() as u64,
            bad_blocks: named,
        })?;
    } else {
        console::line(&summary(&report, verified))?;
    }
    unsaid?;
    if report.bad > 0 {
        return Err(Error::new(Kind::Corrupt, format!("{} has bad blocks", args.location))
            .found(format!("{} that cannot be read", blocks(report.bad)))
            .remedy(remedy(hidden, uncounted)));
    }
    closed
}

/// What to do about bad blocks; `hidden`: some are on levels above 0; `uncounted`: for some, their version table is bad.
fn remedy(hidden: bool, uncounted: bool) -> String {
    if uncounted {
        return "put the objects of the book that are named above back as they were, or roll the disk back to a snapshot: \
            until then the blocks that they count can neither be read nor written; any other bad block is good again once \
            it is written anew"
            .to_owned();
    }
    let restore = "restore what lies there from a backup: a block that is written anew is good again; all other blocks \
        can be read";
    // Elsewhere it would tell a log that there are hidden levels (deniability contract).
    if hidden && console::is_watched() { format!("{restore}; {OVERWRITTEN}") } else { restore.to_owned() }
}

fn summary(report: &CheckReport, verified: bool) -> String {
    let good = if verified { "verified" } else { "readable" };
    let hint = if verified { "" } else { "; the cipher of this disk cannot tell altered data" };
    format!("{} {good}, {} never written, {} bad{hint}", blocks(report.good), report.unwritten, report.bad)
}
