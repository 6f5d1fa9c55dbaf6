//! Clears away mounts that dead servers left, before a disk or vault is opened again.

use crate::terminal::console::{self, Console};
use crate::verbs::status;
use lacuna_daemon::{MountRecord, Peer, Registry, await_dying};
use lacuna_mount::{RELEASE_LIMIT, is_automount, is_mounted, is_mounted_for};
use lacuna_storage::{Error, Result, shell_word};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval between two looks at a server that is closing.
const PAUSE: Duration = Duration::from_millis(20);
/// A wait that takes longer than this is told.
const TOLD_AFTER: Duration = Duration::from_secs(1);

/// Clears away the mounts that dead servers left at these mount points, and those of the disk or
/// vault at this location elsewhere. First waits for servers of these mount points that were killed
/// a moment ago. Prints a note to `console` for each mount.
///
/// Errors: a mount at one of these mount points is in use. One elsewhere stays, with a note.
pub(crate) fn clear(location: &str, mountpoints: &[PathBuf], console: Option<Console>) -> Result<()> {
    for mountpoint in mountpoints {
        await_dying(mountpoint, None)?;
    }
    await_unmounted(location, console)?;
    let here: Vec<PathBuf> = mountpoints.iter().map(|at| status::canonical_path(at)).collect();
    for left in Registry::open(None)?.all()? {
        let Some(mount) = left.mount().filter(|_| !left.alive) else { continue };
        let is_here = here.contains(&mount.mountpoint);
        if !is_here && left.record.location != location {
            continue;
        }
        let of = &left.record.location;
        let text = match left.clear_dead() {
            Ok(true) => cleared(mount, of),
            // Another process was quicker, and may have opened something there.
            Ok(false) => continue,
            Err(e) if is_here => return Err(e),
            Err(e) => stays(mount, of, &e),
        };
        // Deniability contract: the mount may be that of a hidden level, also of another disk.
        let may_tell = console::is_terminal() || !left.record.private;
        if let Some(console) = console.filter(|_| may_tell) {
            console.note(&text);
        }
    }
    Ok(())
}

/// Waits while a server of this location has no mount, for at most [`RELEASE_LIMIT`]: after
/// umount(8) it is closing. One that is starting has no mount yet, and is waited for as well. A
/// wait of more than [`TOLD_AFTER`] is told.
fn await_unmounted(location: &str, console: Option<Console>) -> Result<()> {
    let (start, mut told) = (Instant::now(), false);
    while start.elapsed() < RELEASE_LIMIT
        && let Some(server) = unmounted_server(location)?
    {
        if !told && start.elapsed() >= TOLD_AFTER {
            told = true;
            let may_tell = console::is_terminal() || !server.record.private;
            console.filter(|_| may_tell).into_iter().for_each(|console| {
                console.note(&format!(
                    "the server that has {location} open (process {}) has no mount: it is closing, or still \
                     mounting; waiting for it for at most {} seconds",
                    server.record.pid,
                    RELEASE_LIMIT.as_secs()
                ));
            });
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// A living server of this location without a mount at its mount point. A server in another mount
/// namespace has a mount that is not seen here, and need not be about to end.
fn unmounted_server(location: &str) -> Result<Option<Peer>> {
    for peer in Registry::open(None)?.all()? {
        let is_meant = peer.alive && peer.record.location == location;
        let Some(mount) = peer.mount().filter(|_| is_meant) else { continue };
        let has_mount = is_mounted(&mount.mountpoint)? && !is_automount(&mount.mountpoint)?;
        if !has_mount && !is_mounted_for(peer.record.pid, &mount.mountpoint) {
            return Ok(Some(peer));
        }
    }
    Ok(None)
}

fn cleared(mount: &MountRecord, location: &str) -> String {
    let at = mount.mountpoint.display();
    format!(
        "the server that had {location} open at {at} had died; its mount is cleared away, and data that was not flushed or fsynced \
         may be lost"
    )
}

fn stays(mount: &MountRecord, location: &str, e: &Error) -> String {
    let (at, word, why) = (mount.mountpoint.display(), shell_word(&mount.mountpoint), e.summary());
    format!(
        "the server that had {location} open at {at} died, and its mount stays for now: {why}; `lacuna close {word}` clears it away"
    )
}
