//! `snapshot create|list|remove|rollback`: states of a disk in RADOS.
//!
//! What changes the disk or its books is done by the one client that holds the disk, so that nobody's caches are
//! left behind; `list` reads what anyone who can read the pool may know.

use crate::args::{SnapshotArgs, SnapshotListArgs};
use crate::cluster::{self, Connection, Site};
use crate::console::{self, Console};
use crate::size::human;
use crate::unlock::{self, Opening};
use crate::utc::utc;
use lacuna_core::{BLOCK_SIZE, Budget, Disk, Error, Kind, Result};
use lacuna_header::Location;
use lacuna_medium::Access;
use lacuna_sealed_objects::{ObjectDisk, SnapshotRecord, SnapshotState, list_snapshots};
use serde_json::json;
use std::time::Duration;

/// `lacuna snapshot create`.
pub fn create(args: &SnapshotArgs, console: Console) -> Result<()> {
    change(args, console, |disk| disk.create_snapshot(&args.name))?;
    let at = format!("{}@{}", args.location, args.name);
    console.done(&format!("keeping {at}; `lacuna open {at} MOUNTPOINT` opens it read-only"))
}

/// `lacuna snapshot remove`.
pub fn remove(args: &SnapshotArgs, console: Console) -> Result<()> {
    check_exists(args)?;
    change(args, console, |disk| disk.remove_snapshot(&args.name))?;
    console.done(&format!("removed {}@{}", args.location, args.name))
}

/// `lacuna snapshot rollback`.
pub fn rollback(args: &SnapshotArgs, console: Console) -> Result<()> {
    check_exists(args)?;
    change(args, console, |disk| disk.rollback(&args.name))?;
    console.done(&format!("{} holds again what it held at {}; its size stays", args.location, args.name))
}

/// `lacuna snapshot list`.
pub fn list(args: &SnapshotListArgs) -> Result<()> {
    cluster::refuse_snapshot(&args.location, "list the snapshots of")?;
    let Site::Pool(target) = Site::of(&args.location, &args.cluster)? else {
        return Err(not_in_rados(&args.location));
    };
    let connection = Connection::open(&target)?;
    let naming = |e: Error| e.context(&args.location);
    let (header, _) = lacuna_header::read_public(&*connection.header()?).map_err(naming)?;
    let snapshots = list_snapshots(&*connection.stores(header.uuid)?.book).map_err(naming)?;
    if args.json {
        let facts = |s: &SnapshotRecord| {
            json!({
                "name": s.name,
                "number": s.number,
                "time": s.time,
                "size": s.blocks.saturating_mul(BLOCK_SIZE as u64),
                "state": s.state.name(),
            })
        };
        let listed: Vec<_> = snapshots.iter().map(facts).collect();
        return console::json(&json!({ "location": args.location.to_string(), "snapshots": listed }));
    }
    snapshots.iter().try_for_each(|snapshot| console::line(&words(snapshot)))
}

fn words(snapshot: &SnapshotRecord) -> String {
    let state = match snapshot.state {
        SnapshotState::Ready => String::new(),
        other => format!("  ({})", other.name()),
    };
    let size = human(snapshot.blocks.saturating_mul(BLOCK_SIZE as u64));
    format!("{:<24} {}  {size}{state}", snapshot.name, utc(snapshot.time))
}

/// Refuses a name that no snapshot has, before anything is asked for or taken from another client.
fn check_exists(args: &SnapshotArgs) -> Result<()> {
    let Site::Pool(target) = Site::held(&args.location, &args.holder)? else { return Ok(()) };
    cluster::refuse_snapshot(&args.location, "take or change snapshots of")?;
    let connection = Connection::open(&target)?;
    let found = lacuna_header::read_public(&*connection.header()?)
        .and_then(|(header, _)| cluster::snapshot(&connection, header.uuid, &args.name));
    found.map(drop).map_err(|e| e.context(&args.location))
}

/// Opens the disk, does `what`, and closes it.
fn change(args: &SnapshotArgs, console: Console, what: impl FnOnce(&ObjectDisk) -> Result<()>) -> Result<()> {
    if args.location.path().is_some() {
        return Err(not_in_rados(&args.location));
    }
    cluster::refuse_snapshot(&args.location, "take or change snapshots of")?;
    let volume = unlock::unlock(&args.location, &args.holder, Access::Write, &args.passphrase, console)?;
    let opening = Opening {
        read_only: false,
        budget: Budget::default(),
        write_through: false,
        cover_timeout: Duration::ZERO,
    };
    let disk = volume.into_key(false)?.open(opening)?;
    let done = disk.on_objects().and_then(what).map_err(|e| e.context(&args.location));
    let closed = disk.close();
    done.and(closed)
}

fn not_in_rados(location: &Location) -> Error {
    Error::new(Kind::Usage, format!("{location} keeps no snapshots"))
        .found("the path of a file or block device")
        .expected("a location rados:POOL/NAME")
        .remedy("close the disk, and copy the file or use the snapshots of its file system")
}
