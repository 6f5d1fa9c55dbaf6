//! `check`: reads and verifies every block.

use crate::args::CheckArgs;
use crate::args::size::budget;
use crate::terminal::bad_runs::{BadRuns, blocks};
use crate::terminal::console::{self, Console};
use crate::terminal::option_names;
use crate::verbs::empty_level;
use crate::verbs::info::open_levels::{self, LevelInfo};
use crate::verbs::remote_ops;
use crate::verbs::status;
use crate::verbs::unlock::{self, DiskArgs, UnlockArgs};
use indicatif::ProgressBar;
use lacuna_daemon::{Job, JobClient, JobReply, set_path};
use lacuna_storage::{
    BLOCK_SIZE, BadBlock, BlockAddr, Disk, DiskCheckReport, Error, Kind, OVERWRITTEN, OpenDiskOptions,
    Result, is_of_version_table,
};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of bad blocks listed in a JSON answer. The count in the answer is always
/// complete.
const NAMED: usize = 65536;

#[derive(Serialize)]
struct ListedBlock {
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u8>,
    block: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    error: String,
}

#[derive(Serialize)]
struct CheckAnswer {
    /// The location as given.
    #[serde(flatten)]
    paths: Value,
    good: u64,
    unwritten: u64,
    bad: u64,
    /// Whether the cipher detects altered data.
    verified: bool,
    bad_blocks: Vec<ListedBlock>,
    bad_blocks_truncated: bool,
}

/// `lacuna check`.
pub(crate) fn run(args: &CheckArgs, console: Console) -> Result<()> {
    match remote_ops::start_job(&args.location, &args.pool_access, args.expect, |disk| Job::Check { disk })? {
        Some(begun) => check_on_server(args, begun.stream, console),
        None => check_closed(args, console),
    }
}

/// Opens the disk and checks it.
fn check_closed(args: &CheckArgs, console: Console) -> Result<()> {
    let budget = budget(args.cache)?;
    // Writes while a deeper level is not open can overwrite its data; a check must not cause that.
    let read_only = args.read_only
        || lacuna_storage::read_public_params(&args.location)?.is_some_and(|disk| disk.has_levels());
    let access = unlock::access(read_only);
    let place = DiskArgs { location: &args.location, pool_access: &args.pool_access };
    let given = UnlockArgs { passphrase: &args.passphrase, expect: args.expect };
    let volume = unlock::unlock_expected(place, access, given, console)?;
    let verified = volume.parameters.describe().detects_alterations;
    // The disk may have been exchanged since the peek.
    let read_only = read_only || volume.parameters.has_levels();
    let opening = OpenDiskOptions {
        read_only,
        budget,
        cover_timeout: Duration::ZERO,
        purge_policy: None,
        ..OpenDiskOptions::default()
    };
    let disk = Arc::new(unlock::open(volume.into_disk(false)?, opening)?);
    let bar = console.progress(disk.total_blocks() * BLOCK_SIZE as u64, "{binary_bytes_per_sec}");
    let mut findings = BlockFindings::of(args, &bar);
    let report = disk.check(
        |done| {
            bar.set_position(done * BLOCK_SIZE as u64);
            Ok(())
        },
        |level, bad| {
            let object = disk.object_name(bad.block);
            let (words, uncounted) = (option_names::render(&bad.error), is_of_version_table(&bad.error));
            findings.take(BlockFinding { level, object, words, version_table_bad: uncounted, bad });
        },
    );
    bar.finish_and_clear();
    let unsaid = findings.end();
    let empty = empty_level::among(&disk.levels());
    let closed = disk.close();
    let concluded = report.and_then(|report| findings.conclude(&report, verified)).and(unsaid);
    if !args.json {
        empty_level::print_notes(empty, console);
    }
    console::combine(concluded.and_then(|()| findings.verdict()), closed)
}

/// Lets the server that has the disk open check it.
fn check_on_server(args: &CheckArgs, mut talk: JobClient, console: Console) -> Result<()> {
    if args.passphrase.is_given() {
        console.note("the disk is open: its server checks it, and the passphrase was not used");
    }
    let bar = console.progress(0, "{binary_bytes_per_sec}");
    let mut findings = BlockFindings::of(args, &bar);
    let bytes = |blocks: &Value| blocks.as_u64().map(|blocks| blocks.saturating_mul(BLOCK_SIZE as u64));
    let done = loop {
        match talk.recv() {
            Ok(JobReply::Message(message)) => {
                bytes(&message["blocks"]).into_iter().for_each(|all| bar.set_length(all));
                bytes(&message["done"]).into_iter().for_each(|done| bar.set_position(done));
                BlockFinding::from_message(&message["bad"])
                    .into_iter()
                    .for_each(|finding| findings.take(finding));
            }
            Ok(JobReply::Done(done)) => break Ok(done),
            Err(e) => break Err(e.context(format!("cannot check {}", args.location))),
        }
    };
    bar.finish_and_clear();
    let unsaid = findings.end();
    let done = done?;
    let count = |name: &str| {
        done[name].as_u64().ok_or_else(|| {
            Error::new(Kind::Other, format!("cannot read the result of the check of {}", args.location))
                .found(format!("an answer of the server without the count {name:?}"))
                .hint("close the disk and give the command then")
        })
    };
    let report = DiskCheckReport { good: count("good")?, unwritten: count("unwritten")?, bad: count("bad")? };
    findings.conclude(&report, done["verified"] == true)?;
    unsaid?;
    let printed = if args.json || !console::is_terminal() {
        Ok(())
    } else {
        empty_of_server(args, console).map(|empty| empty_level::print_notes(empty, console))
    };
    console::combine(findings.verdict(), printed)
}

/// The numbers of the hidden levels without data that the server has open.
fn empty_of_server(args: &CheckArgs, console: Console) -> Result<Vec<u64>> {
    let servers = status::find_servers_json(
        &args.location,
        &args.pool_access.cluster.options_for(&args.location)?,
        console,
    )?;
    let items: Vec<Value> =
        servers.iter().filter_map(|server| server["items"].as_array()).flatten().cloned().collect();
    Ok(open_levels::parse(&items).iter().filter_map(LevelInfo::empty).collect())
}

/// A bad block and its description.
struct BlockFinding {
    level: Option<u8>,
    object: Option<String>,
    /// The text of the whole error.
    words: String,
    /// Whether the block is bad because of its version table.
    version_table_bad: bool,
    bad: BadBlock,
}

impl BlockFinding {
    /// Parses a finding from a server's message.
    fn from_message(bad: &Value) -> Option<BlockFinding> {
        let block = BlockAddr(bad["block"].as_u64()?);
        let text = |name: &str| bad[name].as_str().map(str::to_owned);
        let kind = serde_json::from_value(bad["kind"].clone()).unwrap_or(Kind::Corrupt);
        let error = Error::new(kind, text("finding").unwrap_or_default());
        Some(BlockFinding {
            level: bad["level"].as_u64().and_then(|level| u8::try_from(level).ok()),
            object: text("object"),
            words: text("error").unwrap_or_default(),
            version_table_bad: bad["of_version_table"] == true,
            bad: BadBlock { block, error },
        })
    }
}

/// Collects and prints the findings of a check.
struct BlockFindings<'a> {
    args: &'a CheckArgs,
    bar: &'a ProgressBar,
    named: Vec<ListedBlock>,
    runs: BadRuns,
    /// The first failure to write to standard output.
    output_result: Result<()>,
    /// Whether any bad block is on a level above 0.
    hidden: bool,
    /// Whether any block is bad because of its version table.
    version_table_bad: bool,
    bad: u64,
}

impl<'a> BlockFindings<'a> {
    fn of(args: &'a CheckArgs, bar: &'a ProgressBar) -> Self {
        let (named, runs) = (Vec::new(), BadRuns::default());
        BlockFindings {
            args,
            bar,
            named,
            runs,
            output_result: Ok(()),
            hidden: false,
            version_table_bad: false,
            bad: 0,
        }
    }

    fn take(
        &mut self,
        BlockFinding { level, object, words, version_table_bad: uncounted, bad }: BlockFinding,
    ) {
        self.hidden |= level.is_some_and(|level| level > 0);
        self.version_table_bad |= uncounted;
        if !self.args.json {
            let place = object.or_else(|| level.map(|level| format!("level {level}")));
            let line = self.runs.push(bad, place);
            let said = line.map_or(Ok(()), |line| self.bar.suspend(|| console::line(&line)));
            if self.output_result.is_ok() {
                self.output_result = said;
            }
        } else if self.named.len() < NAMED {
            self.named.push(ListedBlock { level, block: bad.block.0, object, error: words });
        }
    }

    /// Prints the last run. Returns the first failure to write to standard output.
    fn end(&mut self) -> Result<()> {
        let last = std::mem::take(&mut self.runs).finish();
        let unsaid = std::mem::replace(&mut self.output_result, Ok(()));
        unsaid.and(last.map_or(Ok(()), |line| console::line(&line)))
    }

    /// Prints the summary.
    fn conclude(&mut self, report: &DiskCheckReport, verified: bool) -> Result<()> {
        self.bad = report.bad;
        if !self.args.json {
            return console::line(&summary(report, verified));
        }
        let bad_blocks = std::mem::take(&mut self.named);
        let mut paths = json!({});
        set_path(&mut paths, "location", self.args.location.to_os_string());
        console::json(&CheckAnswer {
            paths,
            good: report.good,
            unwritten: report.unwritten,
            bad: report.bad,
            verified,
            bad_blocks_truncated: report.bad > bad_blocks.len() as u64,
            bad_blocks,
        })
    }

    /// Whether all blocks are good. Errors: [`Kind::Corrupt`] with advice on bad blocks.
    fn verdict(&self) -> Result<()> {
        if self.bad == 0 {
            return Ok(());
        }
        Err(Error::new(Kind::Corrupt, format!("{} has bad blocks", self.args.location))
            .found(format!("{} that cannot be read", blocks(self.bad)))
            .hint(remedy(self.hidden, self.version_table_bad)))
    }
}

/// Advice on bad blocks. `hidden`: some are on levels above 0. `uncounted`: some have a bad version
/// table.
fn remedy(hidden: bool, uncounted: bool) -> String {
    if uncounted {
        return "restore the metadata objects named above to their last state, or roll the disk back to a snapshot: \
            until then the blocks that they count can neither be read nor written; any other bad block is good again after \
            it is rewritten"
            .to_owned();
    }
    let restore = "restore the data of these blocks from a backup: a rewritten block is good again; all other blocks \
        can be read, and `lacuna rescue` copies them to an image";
    // Deniability contract: elsewhere the sentence would tell a log that there are hidden levels.
    if hidden && console::is_terminal() { format!("{restore}; {OVERWRITTEN}") } else { restore.to_owned() }
}

fn summary(report: &DiskCheckReport, verified: bool) -> String {
    let good = if verified { "verified" } else { "readable" };
    let hint = if verified { "" } else { "; the cipher of this disk cannot tell altered data" };
    format!("{} {good}, {} never written, {} bad{hint}", blocks(report.good), report.unwritten, report.bad)
}
