//! What a server does with the disk that it has open for other commands: it checks the disk, lends its header, makes it larger, and
//! covers a closing.

use crate::header_wire;
use crate::place::{HeldPlace, Place};
use crate::settings;
use lacuna::{BadBlock, Disk, DiskId, Error, Kind, OpenDisk, Result, Uuid, human, is_of_version_table};
use lacuna_daemon::{Attendant, Exchange, unknown};
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Asks for a check.
pub(crate) const CHECK: &str = "check";
/// Asks for the header.
pub(crate) const HEADER: &str = "header";
/// Asks for another size, followed by the bytes or by [`ALL`].
pub(crate) const RESIZE: &str = "resize ";
/// Instead of a size: all that the block device has.
pub(crate) const ALL: &str = "all";
/// Before any of these: the ID that the disk has to have follows, and a space.
pub(crate) const EXPECT: &str = "expect=";

/// Asks that level 0 be made durable: whether the disk takes anything.
pub(crate) const FLUSH: &str = "flush";
/// Asks for the cover of a closing, by a client that is about to close what is open. The server says when it is written.
pub(crate) const CLOSING: &str = "closing";
/// The name of the level of which the client says then that nothing is to wait for more, until the client leaves.
pub(crate) const GIVE_UP: &str = "give_up";

/// How long the server listens before it looks whether the disk is being closed.
const LISTEN: Duration = Duration::from_millis(500);
/// How often a client is told how far a check is.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// See the head of this file.
pub(crate) struct DiskAttendant {
    /// The disk may be closed while clients ask.
    disk: Weak<OpenDisk>,
    uuid: Uuid,
    id: DiskId,
    /// Whether its cipher lets altered data be noticed.
    verifies: bool,
    /// Where it was when it was opened.
    place: Arc<HeldPlace>,
}

impl DiskAttendant {
    /// Of a disk that was opened at `place`; `verifies`: whether its cipher lets altered data be noticed.
    pub(crate) fn of(disk: &Arc<OpenDisk>, verifies: bool, place: Arc<HeldPlace>) -> Arc<dyn Attendant> {
        let (uuid, id) = (disk.uuid(), disk.id());
        Arc::new(DiskAttendant { disk: Arc::downgrade(disk), uuid, id, verifies, place })
    }

    /// What is asked for, if this is the disk that the client expects. Errors: [`Kind::Corrupt`].
    fn expected<'r>(&self, what: &'r str) -> Result<&'r str> {
        let Some(rest) = what.strip_prefix(EXPECT) else { return Ok(what) };
        let (id, what) = rest.split_once(' ').ok_or_else(|| unknown(what))?;
        self.id.check(Some(id.parse()?))?;
        Ok(what)
    }

    /// What is asked for, if the client means the file that is open here: its path may name another one by now.
    fn meant<'r>(&self, request: &'r str) -> Result<&'r str> {
        let (place, what) = request.split_once(' ').unwrap_or((request, ""));
        if place == self.place.place().to_string() {
            return self.expected(what);
        }
        if place == Place::Elsewhere.to_string() {
            return Err(Error::new(Kind::Busy, "nothing was done")
                .found(format!(
                    "process {}, which has it open, and no file that can be seen at this path any more",
                    std::process::id()
                ))
                .expected("the file that is open")
                .remedy("`lacuna status` says what became of it; if it was moved, give its path"));
        }
        Err(Error::new(Kind::Busy, "nothing was done")
            .found(format!(
                "process {}, which has another file open that was at this path before",
                std::process::id()
            ))
            .expected("the file that is there now")
            .remedy("close what is open first; or give the path where that file is now"))
    }

    fn check(&self, disk: &OpenDisk, exchange: &Exchange) -> Result<Value> {
        exchange.tell(&json!({ "blocks": disk.all_blocks() }))?;
        let mut told = Instant::now();
        let progress = |done: u64| {
            exchange.go_on()?;
            if told.elapsed() < TELL_EVERY {
                return Ok(());
            }
            told = Instant::now();
            exchange.tell(&json!({ "done": done }))
        };
        // One that has left is noticed with the next progress.
        let bad =
            |level: Option<u8>, bad: BadBlock| _ = exchange.tell(&json!({ "bad": found(disk, level, &bad) }));
        let report = disk.check_in_use(progress, bad)?;
        Ok(json!({
            "good": report.good,
            "unwritten": report.unwritten,
            "bad": report.bad,
            "verified": self.verifies,
        }))
    }
}

/// A bad block, for the other side.
fn found(disk: &OpenDisk, level: Option<u8>, bad: &BadBlock) -> Value {
    json!({
        "level": level,
        "block": bad.block.0,
        "object": disk.object_of(bad.block),
        "kind": bad.error.kind(),
        "finding": bad.error.finding(),
        "error": bad.error.named(settings::full_name),
        "of_version_table": is_of_version_table(&bad.error),
    })
}

fn resize(disk: &OpenDisk, size: &str, exchange: &Exchange) -> Result<Value> {
    let bytes = match size {
        ALL => None,
        size => Some(size.parse().map_err(|_| unknown(size))?),
    };
    let before = disk.blocks();
    let parameters = disk.grow(bytes)?;
    // Even where nothing has changed: the front end may have failed to follow before.
    exchange.follow().map_err(|e| {
        e.context(format!(
            "the disk is {} now, and its file system cannot see that",
            human(parameters.size())
        ))
        .remedy("give the command again, or close the disk and open it")
    })?;
    Ok(json!({
        "size": parameters.size(),
        "largest": parameters.largest(),
        "changed": disk.blocks() != before,
    }))
}

fn closing(disk: &OpenDisk, exchange: &mut Exchange) -> Result<Value> {
    match disk.cover_closing() {
        // Closing says it again. What waits for a medium that takes nothing is given up all the same.
        Err(e) if e.kind().is_refusal() => {}
        covered => covered?,
    }
    exchange.tell(&json!({ "covered": true }))?;
    let heard = until_it_leaves(disk, exchange);
    // What could not be closed goes on as before.
    (1..disk.open_levels() as u64).for_each(|level| disk.give_up(level, false));
    heard.map(|()| Value::Null)
}

fn until_it_leaves(disk: &OpenDisk, exchange: &mut Exchange) -> Result<()> {
    loop {
        match exchange.hear(LISTEN) {
            Ok(Some(word)) => match word[GIVE_UP].as_u64() {
                Some(level) => disk.give_up(level, true),
                None => return Err(unknown(&word.to_string())),
            },
            Ok(None) => return Ok(()),
            Err(e) if e.kind() == Kind::TimedOut => {}
            Err(e) => return Err(e),
        }
    }
}

impl Attendant for DiskAttendant {
    fn uuid(&self) -> Option<String> {
        Some(self.uuid.to_string())
    }

    fn id(&self) -> Option<String> {
        Some(self.id.to_string())
    }

    fn file(&self) -> Value {
        self.place.to_json()
    }

    fn attend(&self, request: &str, exchange: &mut Exchange) -> Result<Value> {
        let disk = self.disk.upgrade().ok_or_else(|| Error::new(Kind::Busy, "the disk is being closed"))?;
        // It was asked for at the mount point, or at the socket: it is this disk that is meant.
        if request == CLOSING {
            return closing(&disk, exchange);
        }
        if request == FLUSH {
            return disk.levels()[0].flush().map(|()| Value::Null);
        }
        match self.meant(request)? {
            CHECK => self.check(&disk, exchange),
            HEADER => header_wire::serve(&disk.lease_header()?, exchange),
            request => match request.strip_prefix(RESIZE) {
                Some(size) => resize(&disk, size, exchange),
                None => Err(unknown(request)),
            },
        }
    }
}
