//! `snapshot create|list|remove|rollback`: manages snapshots of a disk in RADOS.
//!
//! Only the client that holds the disk changes the disk or its metadata, so that no other client
//! has stale caches; `list` reads only data that every reader of the pool can see.

use crate::args::{SnapshotArgs, SnapshotListArgs};
use crate::terminal::console::{self, Console};
use crate::terminal::utc::utc;
use crate::verbs::unlock;
use lacuna_storage::snapshots::{self, SnapshotRecord, SnapshotState, Snapshots};
use lacuna_storage::{Access, BLOCK_SIZE, Disk, OpenDiskOptions, Result, human_size};
use serde_json::json;

/// `lacuna snapshot create`.
pub(crate) fn create(args: &SnapshotArgs, console: Console) -> Result<()> {
    with_open_disk(args, console, |disk| disk.create_snapshot(&args.name))?;
    let at = format!("{}@{}", args.location, args.name);
    console.done(&format!("keeping {at}; `lacuna open {at} MOUNTPOINT` opens it read-only"))
}

/// `lacuna snapshot remove`.
pub(crate) fn remove(args: &SnapshotArgs, console: Console) -> Result<()> {
    check_exists(args)?;
    with_open_disk(args, console, |disk| disk.remove_snapshot(&args.name))?;
    console.done(&format!("removed {}@{}", args.location, args.name))
}

/// `lacuna snapshot rollback`.
pub(crate) fn rollback(args: &SnapshotArgs, console: Console) -> Result<()> {
    check_exists(args)?;
    with_open_disk(args, console, |disk| disk.rollback(&args.name))?;
    console.done(&format!(
        "{} has the content of the snapshot {} again; its size stays",
        args.location, args.name
    ))
}

/// `lacuna snapshot list`.
pub(crate) fn list(args: &SnapshotListArgs) -> Result<()> {
    lacuna_storage::refuse_snapshot(&args.location, "list the snapshots of")?;
    let snapshots = snapshots::list(&args.location, &args.cluster.options_for(&args.location)?)?;
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
    snapshots.iter().try_for_each(|snapshot| console::line(&to_text(snapshot)))
}

fn to_text(snapshot: &SnapshotRecord) -> String {
    let state = match snapshot.state {
        SnapshotState::Ready => String::new(),
        other => format!("  ({})", other.name()),
    };
    let size = human_size(snapshot.blocks.saturating_mul(BLOCK_SIZE as u64));
    format!("{:<24} {}  {size}{state}", snapshot.name, utc(snapshot.time))
}

/// Refuses the name of a missing snapshot before a passphrase is asked for, or the disk is taken
/// over from another client.
fn check_exists(args: &SnapshotArgs) -> Result<()> {
    lacuna_storage::refuse_snapshot(&args.location, "take or change snapshots of")?;
    snapshots::find(&args.location, &args.pool_access.access_for(&args.location)?.cluster, &args.name)
        .map(drop)
}

/// Opens the disk, calls `what`, and closes it.
fn with_open_disk(
    args: &SnapshotArgs,
    console: Console,
    what: impl FnOnce(&dyn Snapshots) -> Result<()>,
) -> Result<()> {
    if args.location.path().is_some() {
        return Err(snapshots::not_in_rados(&args.location));
    }
    lacuna_storage::refuse_snapshot(&args.location, "take or change snapshots of")?;
    let volume = unlock::unlock(&args.location, &args.pool_access, Access::Write, &args.passphrase, console)?;
    let disk = unlock::open(volume.into_disk(false)?, OpenDiskOptions::default())?;
    let done = disk.snapshots().and_then(what).map_err(|e| e.context(&args.location));
    let closed = disk.close();
    console::combine(done, closed)
}
