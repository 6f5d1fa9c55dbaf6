//! Jobs of a server on its open disk: it checks the disk, lends out its header, resizes it, and
//! covers a closing.

use crate::terminal::option_names;
use crate::verbs::serve::header_wire;
use crate::verbs::serve::settling::{GRACE, SETTLE, Settling};
use lacuna_daemon::{ExpectedDisk, FileIdentity, Identity, Job, JobHandler, JobStream};
use lacuna_storage::{
    BadBlock, Disk, DiskId, Error, Kind, OpenDisk, Pace, Result, human_size, is_of_version_table,
};
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The field of a client's message while it closes the disk: the level with writes that must not
/// wait for cover any more, until the client leaves.
pub(crate) const GIVE_UP: &str = "give_up";

/// Interval at which a waiting server checks whether the disk is being closed.
const CLOSE_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between progress messages of a check.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// An open disk with everything that a server needs to serve it.
pub(crate) struct ServedDisk {
    pub disk: Arc<OpenDisk>,
    /// Jobs for other commands.
    pub jobs: Arc<dyn JobHandler>,
    /// The identity in the registry.
    pub identity: Identity,
}

impl ServedDisk {
    /// `verifies`: whether its cipher detects altered data.
    pub(crate) fn new(disk: Arc<OpenDisk>, verifies: bool, identity: Identity) -> ServedDisk {
        ServedDisk::with_settling(disk, verifies, identity, Arc::default())
    }

    /// The same; closings set the time until which level 0 stays open in `settling`.
    pub(crate) fn with_settling(
        disk: Arc<OpenDisk>,
        verifies: bool,
        identity: Identity,
        settling: Arc<Settling>,
    ) -> ServedDisk {
        let (id, file, weak) = (disk.id(), identity.file.identity(), Arc::downgrade(&disk));
        let jobs = Arc::new(DiskJobs { disk: weak, id, verifies, file, settling });
        ServedDisk { disk, jobs, identity }
    }
}

/// The handler of jobs on a disk.
struct DiskJobs {
    /// Weak, because the disk may be closed while clients ask.
    disk: Weak<OpenDisk>,
    id: DiskId,
    /// Whether its cipher detects altered data.
    verifies: bool,
    /// The file that was opened.
    file: FileIdentity,
    settling: Arc<Settling>,
}

impl DiskJobs {
    /// Refuses a client that means another disk, with a file that may be at this path by now.
    ///
    /// Errors: [`Kind::Busy`] for another file, and [`Kind::Corrupt`] for another ID.
    fn check_target(&self, meant: &ExpectedDisk) -> Result<()> {
        if meant.file == self.file {
            return meant.id.as_ref().map_or(Ok(()), |id| self.id.check(Some(id.parse()?)));
        }
        let error = Error::new(Kind::Busy, "nothing was done");
        let process = std::process::id();
        if meant.file == FileIdentity::Unknown {
            return Err(error
                .found(format!(
                    "process {process}, which has it open, and no file that can be seen at this path any more"
                ))
                .expected("the file that is open")
                .hint("`lacuna status` says what became of it; if it was moved, give its path"));
        }
        Err(error
            .found(format!("process {process}, which has another file open that was at this path before"))
            .expected("the file that is there now")
            .hint("close the disk that is open first; or give the path where its file is now"))
    }

    fn check(&self, disk: &OpenDisk, exchange: &JobStream) -> Result<Value> {
        exchange.send(&json!({ "blocks": disk.total_blocks() }))?;
        let mut last_report = Instant::now();
        let progress = |done: u64| {
            exchange.check_cancelled()?;
            if last_report.elapsed() < PROGRESS_INTERVAL {
                return Ok(());
            }
            last_report = Instant::now();
            exchange.send(&json!({ "done": done }))
        };
        // The next progress message notices a client that has left.
        let bad = |level: Option<u8>, bad: BadBlock| {
            _ = exchange.send(&json!({ "bad": bad_block_message(disk, level, &bad) }));
        };
        let report = disk.check_in_use(progress, bad)?;
        Ok(json!({
            "good": report.good,
            "unwritten": report.unwritten,
            "bad": report.bad,
            "verified": self.verifies,
        }))
    }
}

/// A bad block, as a message.
fn bad_block_message(disk: &OpenDisk, level: Option<u8>, bad: &BadBlock) -> Value {
    json!({
        "level": level,
        "block": bad.block.0,
        "object": disk.object_name(bad.block),
        "kind": bad.error.kind(),
        "finding": bad.error.summary(),
        "error": bad.error.render_with(option_names::full_name),
        "of_version_table": is_of_version_table(&bad.error),
    })
}

fn resize(disk: &OpenDisk, size: Option<u64>, exchange: &JobStream) -> Result<Value> {
    let before = disk.blocks();
    let grown = disk.grow(size)?.describe();
    // Even without a change: the front end may have failed to follow an earlier one.
    exchange.notify_resized().map_err(|e| {
        e.context(format!("the disk is {} now, and its file system cannot see that", human_size(grown.size)))
            .hint("give the command again, or close the disk and open it")
    })?;
    Ok(json!({
        "size": grown.size,
        "largest": grown.max_size,
        "changed": disk.blocks() != before,
    }))
}

fn run_cover_job(disk: &OpenDisk, settling: &Settling, exchange: &mut JobStream) -> Result<Value> {
    let (begun, covering) = (Instant::now(), settling.begin());
    match disk.cover_closing(Pace::Even) {
        // Closing reports it again. Pending data is given up even on a medium that takes no writes.
        Err(e) if e.kind().is_refusal() => {}
        covered => covered?,
    }
    covering.settles_at(Instant::now().max(begun + GRACE) + SETTLE);
    exchange.send(&json!({ "covered": true }))?;
    let heard = serve_cover_client(disk, exchange);
    // Levels that could not be closed continue as before.
    (1..disk.open_level_count() as u64).for_each(|level| disk.give_up(level, false));
    heard.map(|()| Value::Null)
}

fn serve_cover_client(disk: &OpenDisk, exchange: &mut JobStream) -> Result<()> {
    loop {
        match exchange.recv(CLOSE_CHECK_INTERVAL) {
            Ok(Some(word)) => match word[GIVE_UP].as_u64() {
                Some(level) => disk.give_up(level, true),
                None => {
                    return Err(Error::new(Kind::Usage, "invalid message from the client")
                        .found("an unknown message")
                        .expected("a level to give up"));
                }
            },
            Ok(None) => return Ok(()),
            Err(e) if e.kind() == Kind::TimedOut => {}
            Err(e) => return Err(e),
        }
    }
}

impl JobHandler for DiskJobs {
    fn run(&self, job: &Job, exchange: &mut JobStream) -> Result<Value> {
        let disk = self.disk.upgrade().ok_or_else(|| Error::new(Kind::Busy, "the disk is being closed"))?;
        match job {
            // Clients address the server directly, so the disk needs no check.
            Job::Cover => run_cover_job(&disk, &self.settling, exchange),
            Job::Flush => disk.levels()[0].flush().map(|()| Value::Null),
            Job::Check { disk: meant } => self.check_target(meant).and_then(|()| self.check(&disk, exchange)),
            Job::Header { disk: meant } => {
                self.check_target(meant)?;
                header_wire::serve(&disk.lease_header()?, exchange)
            }
            Job::Resize { disk: meant, size } => {
                self.check_target(meant).and_then(|()| resize(&disk, *size, exchange))
            }
        }
    }
}
