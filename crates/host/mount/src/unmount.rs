//! Unmounting: what is busy stays, and the error names who uses it.
//!
//! Programs unmount, here and in `mounted.rs`: a thread of a server must not wait for the server's
//! own file system; umount(8) also forgets what mount(8) has noted of options; and only fusermount3
//! may do it for users.

use crate::{mount_table, tool, users};
use lacuna_contracts::{Error, Kind, Result};
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// How long the kernel may take to let go of the loop device after its last mount is gone. Longer
/// means that the file system is still mounted elsewhere, in another namespace.
pub const RELEASE_LIMIT: Duration = Duration::from_secs(10);
/// How often the mount table is looked at whether a lazy unmount has taken a mount out of it.
const TABLE_INTERVAL: Duration = Duration::from_millis(5);

/// Unmounts the FUSE file system of lacuna at `mountpoint` if there is one. Errors: [`Kind::Busy`],
/// naming who uses it.
pub fn unmount_fuse(mountpoint: &Path) -> Result<()> {
    if !mounted(mountpoint)? {
        return Ok(());
    }
    let finished = unmount_gently(mountpoint)?;
    if finished.success() || !mounted(mountpoint)? {
        return Ok(());
    }
    Err(busy_or_failed(mountpoint, &finished))
}

/// Removes the mount that a server left when it died: nothing behind it can be read or written any
/// more, so here, and only here, the unmount may be lazy. Returns when the mount is gone from the
/// table: what the kernel had cached of a million files takes it seconds to forget, which nobody
/// needs to wait for.
pub fn unmount_dead(mountpoint: &Path) -> Result<()> {
    if !mounted(mountpoint)? {
        return Ok(());
    }
    unmount_lazily(mountpoint, || mounted(mountpoint))
}

/// Removes a FUSE mount that is there as long as `mounted` says so, and whose program ended or has
/// lost its disk; as lazily as [`unmount_dead`].
pub fn unmount_lazily(mountpoint: &Path, mounted: impl Fn() -> Result<bool>) -> Result<()> {
    let (program, args) = unmount_words(mountpoint, true);
    let mut running = tool::start(program, &args)?;
    loop {
        if let Some(finished) = running.finished()? {
            let done = finished.success() || !mounted()?;
            return if done { Ok(()) } else { Err(busy_or_failed(mountpoint, &finished)) };
        }
        if !mounted()? {
            return Ok(());
        }
        std::thread::sleep(TABLE_INTERVAL);
    }
}

/// The error for an unmount that did not work: [`Kind::Busy`], naming who uses what is at
/// `mountpoint`, or what the program said that was to unmount it.
pub fn busy_or_failed(mountpoint: &Path, finished: &tool::Finished) -> Error {
    let what = format!("cannot unmount {}", mountpoint.display());
    let users = users::describe(mountpoint);
    if users.is_none() && !finished.stderr.contains("busy") {
        let kind = if tool::denied(&finished.stderr) { Kind::Permission } else { Kind::Other };
        return Error::new(kind, what).found(finished.words());
    }
    Error::new(Kind::Busy, what)
        .found(match users {
            Some(users) => format!("in use by {users}"),
            None => format!("in use by something that cannot be seen from here ({})", finished.words()),
        })
        .remedy("end what uses it, or leave the directory, then close it again")
}

/// The error for an unmount where another file system lies over what is to be unmounted
/// ([`Kind::Busy`]).
pub(crate) fn mounted_over(mountpoint: &Path) -> Error {
    Error::new(Kind::Busy, format!("cannot unmount {}", mountpoint.display()))
        .found("another file system mounted over it")
        .remedy("unmount that one first")
}

fn mounted(mountpoint: &Path) -> Result<bool> {
    Ok(mount_table::at(mountpoint)?.is_some_and(|e| e.is_our_fuse()))
}

/// Unmounts a FUSE mount that nobody uses, with the program that this user needs for that.
pub(crate) fn unmount_gently(mountpoint: &Path) -> Result<tool::Finished> {
    let (program, args) = unmount_words(mountpoint, false);
    tool::run(program, &args)
}

/// Begins the same. It waits for the program that serves the mount.
pub(crate) fn start_unmounting(mountpoint: &Path) -> Result<tool::Running> {
    let (program, args) = unmount_words(mountpoint, false);
    tool::start(program, &args)
}

fn unmount_words(mountpoint: &Path, lazy: bool) -> (&'static str, Vec<&OsStr>) {
    let (program, mut args): (_, Vec<&OsStr>) = match (rustix::process::geteuid().is_root(), lazy) {
        // Without helpers: umount.lacuna would ask the server that does this, and wait for it.
        (true, false) => ("umount", vec![OsStr::new("--internal-only")]),
        (true, true) => ("umount", vec![OsStr::new("--internal-only"), OsStr::new("--lazy")]),
        (false, false) => ("fusermount3", vec![OsStr::new("-u")]),
        (false, true) => ("fusermount3", vec![OsStr::new("-u"), OsStr::new("-z")]),
    };
    args.extend([OsStr::new("--"), mountpoint.as_os_str()]);
    (program, args)
}
