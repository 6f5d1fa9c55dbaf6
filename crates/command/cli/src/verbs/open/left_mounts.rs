//! Clears away mounts that dead servers left, before a disk or vault is opened again.

use crate::terminal::console::{self, Console};
use crate::verbs::status;
use lacuna_daemon::{MountRecord, Registry, await_dying};
use lacuna_mount::{RELEASE_LIMIT, is_automount, is_mounted};
use lacuna_storage::{Error, Result, shell_word};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval between two looks at a server that is closing.
const PAUSE: Duration = Duration::from_millis(20);

/// Clears away the mounts that dead servers left at these mount points, and those of the disk or
/// vault at this location elsewhere. First waits for servers of these mount points that were killed
/// a moment ago. Prints a note to `console` for each mount.
///
/// Errors: a mount at one of these mount points is in use. One elsewhere stays, with a note.
pub(crate) fn clear(location: &str, mountpoints: &[PathBuf], console: Option<Console>) -> Result<()> {
    for mountpoint in mountpoints {
        await_dying(mountpoint, None)?;
    }
    await_unmounted(location)?;
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
/// umount(8) it is closing. One that is starting has no mount yet, and is waited for as well.
fn await_unmounted(location: &str) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < RELEASE_LIMIT && has_unmounted_server(location)? {
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Whether a living server of this location has no mount at its mount point.
fn has_unmounted_server(location: &str) -> Result<bool> {
    for peer in Registry::open(None)?.all()? {
        let is_meant = peer.alive && peer.record.location == location;
        let Some(mount) = peer.mount().filter(|_| is_meant) else { continue };
        if !is_mounted(&mount.mountpoint)? || is_automount(&mount.mountpoint)? {
            return Ok(true);
        }
    }
    Ok(false)
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
