//! `purge`: makes deleted data unrecoverable for good, or fails.

use crate::args::size::budget;
use crate::args::{ExpectArgs, PurgeArgs};
use crate::terminal::console::{self, Console};
use crate::terminal::progress;
use crate::verbs::close::Failures;
use crate::verbs::remote_ops;
use crate::verbs::status::{self, PeerStatus};
use crate::verbs::unlock;
use crate::verbs::vault::count_text;
use lacuna_daemon::{Counter, Peer, set_path};
use lacuna_storage::{
    Access, ClusterOptions, Disk, Error, Kind, Location, OpenDiskOptions, PoolAccess, Result, Uuid,
};
use serde_json::json;

/// The file system type of btrfs in `statfs`.
const BTRFS: u32 = 0x9123_683e;
/// The note on btrfs.
const KEPT_BY_BTRFS: &str = "btrfs keeps data that was overwritten in a file, or cut off it, as long as \
    another part of the same extent is in use, and small files in blocks of its metadata: that is not \
    deleted for the disk, and stays readable. Of files that were deleted whole nothing stays, if it is \
    mounted with max_inline=0; ext4 and xfs keep neither";

/// `lacuna purge`.
pub(crate) fn run(args: &PurgeArgs, console: Console) -> Result<()> {
    let Some(location) = &args.location else { return purge_all(console) };
    let what = format!("purging {location}");
    let mut servers = status::find_servers(location, &ClusterOptions::default(), console)?;
    // The location may hold another disk by now than the server opened there.
    let uuid = if servers.is_empty() { None } else { disk_uuid(location)?.map(|uuid| uuid.to_string()) };
    servers.retain(|PeerStatus { peer, status }| {
        uuid.is_none() || (!status.is_dead() && peer.record.uuid == uuid)
    });
    let items = match servers.first() {
        Some(server) => {
            progress::show(console, &what, |_| purge_on_server(server, uuid.as_deref(), args.expect))?
        }
        None => purge_closed(args, location, console, &what)?,
    };
    servers.first().into_iter().for_each(|server| note_file_system(&server.peer, console));
    if args.json {
        let mut out = json!({ "complete": true, "items": items });
        set_path(&mut out, "location", location.to_os_string());
        return console::json(&out);
    }
    print_purged(&location.to_string(), &items, console)
}

/// Purges every disk on flash that is open for writing. Each failure is printed; the first one is
/// the result of the command.
fn purge_all(console: Console) -> Result<()> {
    let mut servers = status::all_servers(console)?;
    servers.retain(|PeerStatus { peer, .. }| {
        let location = Location::parse(&peer.record.location);
        !peer.record.read_only
            && location.is_ok_and(|location| lacuna_storage::check_can_purge(&location).is_ok())
    });
    if servers.is_empty() {
        return console.done("no disk on flash is open");
    }
    let mut failures = Failures::default();
    for server in &servers {
        let location = &server.peer.record.location;
        let what = format!("purging {location}");
        match progress::show(console, &what, |_| purge_on_server(server, None, ExpectArgs { expect: None })) {
            Ok(items) => {
                note_file_system(&server.peer, console);
                print_purged(location, &items, console)?;
            }
            Err(e) => failures.add(e),
        }
    }
    failures.end()
}

/// Prints a note if the file system that is mounted from the disk keeps deleted data.
fn note_file_system(peer: &Peer, console: Console) {
    let Some(mount) = peer.mount().filter(|mount| !mount.is_raw()) else { return };
    if rustix::fs::statfs(&mount.mountpoint).is_ok_and(|about| about.f_type as u32 == BTRFS) {
        console.note(KEPT_BY_BTRFS);
    }
}

/// Prints the result of a purge.
fn print_purged(location: &str, items: &[Counter], console: Console) -> Result<()> {
    let count = |name: &str| items.iter().find(|item| item.name == name).map_or(0, |item| item.value);
    let gone = purged_text(count("purged_keys"), count("purged_known"), count("purged_key_blocks"));
    console.done(&format!("purged {location}: {gone}"))
}

/// Describes a purge that destroyed `most` keys, `known` of them certainly of deleted blocks.
fn purged_text(most: u64, known: u64, key_blocks: u64) -> String {
    if most == 0 {
        return "nothing was deleted since the last purge".to_owned();
    }
    let deleted = match most.saturating_sub(known) {
        0 => format!("{} gone for good", count_text(known, "deleted block")),
        more => format!("{} gone for good, and {more} more at most", count_text(known, "deleted block")),
    };
    format!("{deleted}; {} of keys replaced", count_text(key_blocks, "block"))
}

/// The UUID of the disk that is at this location now; `None` for a mount point, which means any
/// disk that is open there.
///
/// Errors: a header that cannot be read; then the right server cannot be determined.
fn disk_uuid(location: &Location) -> Result<Option<Uuid>> {
    match location {
        Location::Nand(_) | Location::Ubi(_) => {
            Ok(Some(lacuna_storage::public_info(location, &ClusterOptions::default())?.header.uuid))
        }
        Location::Path(_) | Location::Rados { .. } => Ok(None),
    }
}

/// Asks the server that has the disk open, which checks the UUID. Sends no request if the server
/// has another disk than the expected one.
fn purge_on_server(server: &PeerStatus, uuid: Option<&str>, expect: ExpectArgs) -> Result<Vec<Counter>> {
    let PeerStatus { peer, status } = server;
    if let Some(mount) = peer.mount().filter(|_| status.is_dead()) {
        let at = mount.mountpoint.display();
        return Err(Error::new(Kind::Busy, "cannot purge the disk")
            .found(format!("the mount of a server that died, at {at}"))
            .hint(format!("clear it away with `lacuna close {at}`, then try again")));
    }
    if status.is_silent() {
        return Err(Error::new(Kind::TimedOut, "the disk was not purged")
            .found("a server that does not answer")
            .expected("an answer")
            .hint(format!(
                "if the process was stopped, `kill -CONT {}` lets it go on; then try again",
                peer.record.pid
            )));
    }
    remote_ops::check_status_id(status, expect).map_err(|e| e.context(&peer.record.location))?;
    lacuna_daemon::purge(peer, uuid)
}

/// Opens a disk that no server has open, only for the purge.
fn purge_closed(args: &PurgeArgs, location: &Location, console: Console, what: &str) -> Result<Vec<Counter>> {
    lacuna_storage::check_can_purge(location)?;
    let budget = budget(args.cache)?;
    let ask = |disk: &lacuna_storage::PublicHeader, open: lacuna_storage::HeaderOpener<'_>| {
        let opened =
            crate::terminal::passphrase::open_header(&args.passphrase, &location.to_string(), disk, open)?;
        unlock::check_id(opened, args.expect.expect, location)
    };
    let volume = lacuna_storage::unlock(location, &PoolAccess::default(), Access::Write, &console, ask)?;
    let opening = OpenDiskOptions { budget, purge_policy: None, ..OpenDiskOptions::default() };
    let disk = unlock::open(volume.into_disk(false)?, opening)?;
    let purged = progress::show(console, what, |_| disk.purge());
    let closed = disk.close().map_err(|e| e.context(location));
    let done = console::combine(purged, closed)?;
    Ok(Counter::all(&done.items))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_purged_blocks_are_counted_with_their_uncertainty() {
        assert_eq!(purged_text(0, 0, 0), "nothing was deleted since the last purge");
        assert_eq!(purged_text(200, 200, 1), "200 deleted blocks gone for good; 1 block of keys replaced");
        assert_eq!(
            purged_text(201, 1, 3),
            "1 deleted block gone for good, and 200 more at most; 3 blocks of keys replaced"
        );
    }
}
