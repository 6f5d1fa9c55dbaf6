//! `purge`: what was deleted is gone for good when it returns, or it says that it is not.

use crate::args::{ExpectArgs, PurgeArgs};
use crate::close::Failures;
use crate::console::{self, Console};
use crate::online;
use crate::size::budget;
use crate::status;
use crate::unlock;
use crate::vault::many;
use crate::working;
use lacuna::{Access, ClusterOptions, Disk, Error, Holder, Kind, Location, Opening, Result, Uuid};
use serde_json::{Value, json};
use std::path::Path;

/// What `statfs` says of btrfs.
const BTRFS: u32 = 0x9123_683e;
/// What is said of it.
const KEPT_BY_BTRFS: &str = "btrfs keeps what was overwritten in a file, or cut off it, as long as another part of the same extent is \
    in use, and small files in blocks of its metadata: that is not deleted for the disk, and stays readable. Of files that were deleted \
    whole nothing stays, if it is mounted with max_inline=0; ext4 and xfs keep neither";

/// `lacuna purge`.
pub(crate) fn run(args: &PurgeArgs, console: Console) -> Result<()> {
    let Some(location) = &args.location else { return all(console) };
    let what = format!("purging {location}");
    let mut servers = status::servers_of(location, &ClusterOptions::default(), console)?;
    let uuid = if servers.is_empty() { None } else { meant(location)? };
    servers.retain(|server| uuid.is_none_or(|uuid| is_of(server, uuid)));
    let uuid = uuid.map(|uuid| uuid.to_string());
    let items = match servers.first() {
        Some(server) => working::show(console, &what, |_| ask(server, uuid.as_deref(), args.expect))?,
        None => closed(args, location, console, &what)?,
    };
    servers.first().into_iter().for_each(|server| note_file_system(server, console));
    if args.json {
        return console::json(&json!({ "location": location.to_string(), "complete": true, "items": items }));
    }
    tell(&location.to_string(), &items, console)
}

/// Purges every disk on flash that is open for writing. Each failure is told; the first one is what the command ends with.
fn all(console: Console) -> Result<()> {
    let on_flash = |server: &Value| {
        let location = Location::parse(server["location"].as_str().unwrap_or(""));
        location.is_ok_and(|location| lacuna::check_forgets(&location).is_ok())
    };
    let mut servers = status::all(console)?;
    // Of one that does not answer nothing may be known, and it may be on flash.
    let unknown = |server: &Value| server["silent"] == true && server["location"].is_null();
    servers.retain(|server| (on_flash(server) || unknown(server)) && server["read_only"] != true);
    if servers.is_empty() {
        return console.done("no disk on flash is open");
    }
    let mut failures = Failures::default();
    for server in &servers {
        let location = server["location"].as_str().unwrap_or("a disk");
        let what = format!("purging {location}");
        match working::show(console, &what, |_| ask(server, None, ExpectArgs { expect: None })) {
            Ok(items) => {
                note_file_system(server, console);
                tell(location, &items, console)?;
            }
            Err(e) => failures.add(e),
        }
    }
    failures.end()
}

/// Notes what the file system that is mounted from a disk keeps of what was deleted.
fn note_file_system(server: &Value, console: Console) {
    let Some(mountpoint) = server["mountpoint"].as_str().filter(|_| server["raw"] != true) else { return };
    if rustix::fs::statfs(mountpoint).is_ok_and(|about| about.f_type as u32 == BTRFS) {
        console.note(KEPT_BY_BTRFS);
    }
}

/// Says what a purge did.
fn tell(location: &str, items: &[Value], console: Console) -> Result<()> {
    let count = |name: &str| {
        let item = items.iter().find(|item| item["name"] == name);
        item.and_then(|item| item["value"].as_u64()).unwrap_or(0)
    };
    let gone = gone(count("purged_keys"), count("purged_known"), count("purged_key_blocks"));
    console.done(&format!("purged {location}: {gone}"))
}

/// What a purge says that ended `most` keys, of which `known` encrypted a deleted block for sure.
fn gone(most: u64, known: u64, key_blocks: u64) -> String {
    if most == 0 {
        return "nothing was deleted since the last purge".to_owned();
    }
    let deleted = match most.saturating_sub(known) {
        0 => format!("{} gone for good", many(known, "deleted block")),
        more => format!("{} gone for good, and {more} more at most", many(known, "deleted block")),
    };
    format!("{deleted}; {} of keys replaced", many(key_blocks, "block"))
}

/// The disk that is at this location now; none where a mount point is named, at which whatever is open is meant.
///
/// Errors: what keeps its header from being read. Then nothing can tell which server has the disk.
fn meant(location: &Location) -> Result<Option<Uuid>> {
    match location {
        Location::Nand(_) | Location::Ubi(_) => {
            Ok(Some(lacuna::about(location, &ClusterOptions::default())?.header.uuid))
        }
        Location::Path(_) | Location::Rados { .. } => Ok(None),
    }
}

/// Whether a server has this disk open: the one that it opened at the same location may have been moved since.
fn is_of(server: &Value, uuid: Uuid) -> bool {
    // Readers claim nothing. Where the system lets nobody claim a disk, opening it says that it is in use.
    lacuna::process_of(uuid).is_some_and(|pid| server["pid"] == pid) || server["read_only"] == true
}

/// Asks the server that has the disk open, which says whether it is the one that is meant. Nothing is asked of the server of another
/// disk than the expected one.
fn ask(server: &Value, uuid: Option<&str>, expect: ExpectArgs) -> Result<Vec<Value>> {
    if server["died"] == true {
        let at = server["mountpoint"].as_str().unwrap_or_default();
        return Err(Error::new(Kind::Busy, "cannot purge the disk")
            .found(format!("what a server left that died, at {at}"))
            .remedy(format!("clear it away with `lacuna close {at}`, then try again")));
    }
    if server["silent"] == true {
        let process = server["pid"].as_u64().map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
        return Err(Error::new(Kind::TimedOut, "the disk was not purged")
            .found("a server that does not answer")
            .expected("an answer within 5 seconds")
            .remedy(format!(
                "if the process was stopped, `kill -CONT {process}` lets it go on; then try again"
            )));
    }
    let naming = |e: Error| e.context(server["location"].as_str().unwrap_or("the disk"));
    online::check_account(server, expect).map_err(naming)?;
    if let Some(mountpoint) = server["mountpoint"].as_str() {
        return lacuna_daemon::purge_mounted(Path::new(mountpoint), server["raw"] == true, uuid, None);
    }
    // Several servers may have the same location: another disk may have been there before.
    let mut answers = lacuna_daemon::answers()?.into_iter();
    match answers.find(|(_, account)| account["pid"] == server["pid"]) {
        Some((socket, _)) => lacuna_daemon::purge_served(&socket, uuid),
        None => Err(Error::new(Kind::PurgeIncomplete, "the disk was not purged")
            .found("a server that does not answer any more")
            .remedy("`lacuna status` shows what is open; then try again")),
    }
}

/// Opens a disk that no server has open, for the purge alone.
fn closed(args: &PurgeArgs, location: &Location, console: Console, what: &str) -> Result<Vec<Value>> {
    lacuna::check_forgets(location)?;
    let budget = budget(args.cache)?;
    let ask = |disk: &lacuna::PublicHeader, open: lacuna::Opener<'_>| {
        let opened = crate::passphrase::to_open(&args.passphrase, &location.to_string(), disk.uuid, open)?;
        unlock::check_id(opened, args.expect.expect, location)
    };
    let volume = lacuna::unlock(location, &Holder::default(), Access::Write, &console, ask)?;
    let opening = Opening { budget, purging: None, ..Opening::default() };
    let disk = unlock::open(volume.into_key(false)?, opening)?;
    let purged = working::show(console, what, |_| disk.purge());
    let closed = disk.close().map_err(|e| e.context(location));
    let done = console::both(purged, closed)?;
    Ok(done.items.iter().map(|item| json!(item)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_told_as_far_as_it_is_known() {
        assert_eq!(gone(0, 0, 0), "nothing was deleted since the last purge");
        assert_eq!(gone(200, 200, 1), "200 deleted blocks gone for good; 1 block of keys replaced");
        assert_eq!(
            gone(201, 1, 3),
            "1 deleted block gone for good, and 200 more at most; 3 blocks of keys replaced"
        );
    }
}
