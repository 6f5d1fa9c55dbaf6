//! Unmounting: what is busy stays, and the error names who uses it.

use crate::{mount_table, tool, users};
use lacuna_core::{Error, Kind, Result};
use std::ffi::OsStr;
use std::path::Path;

/// Unmounts the FUSE file system of lacuna at `mountpoint` if there is one. Errors: [`Kind::Busy`], naming who uses it.
pub fn unmount_fuse(mountpoint: &Path) -> Result<()> {
    if !mounted(mountpoint)? {
        return Ok(());
    }
    let finished = unmount_tool(mountpoint, false)?;
    if finished.success() || !mounted(mountpoint)? {
        return Ok(());
    }
    Err(busy_or_failed(mountpoint, &finished))
}

/// Removes the mount that a server left when it died: nothing behind it can be read or written any more, so
/// here, and only here, the unmount may be lazy.
pub(crate) fn unmount_dead(mountpoint: &Path) -> Result<()> {
    if !mounted(mountpoint)? || unmount_tool(mountpoint, false)?.success() {
        return Ok(());
    }
    let finished = unmount_tool(mountpoint, true)?;
    if finished.success() { Ok(()) } else { Err(busy_or_failed(mountpoint, &finished)) }
}

/// The error for an unmount that did not work.
pub(crate) fn busy_or_failed(mountpoint: &Path, finished: &tool::Finished) -> Error {
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

fn mounted(mountpoint: &Path) -> Result<bool> {
    Ok(mount_table::at(mountpoint)?.is_some_and(|e| e.is_our_fuse()))
}

fn unmount_tool(mountpoint: &Path, lazy: bool) -> Result<tool::Finished> {
    let (program, mut args): (_, Vec<&OsStr>) = match (rustix::process::geteuid().is_root(), lazy) {
        (true, false) => ("umount", vec![]),
        (true, true) => ("umount", vec![OsStr::new("--lazy")]),
        (false, false) => ("fusermount3", vec![OsStr::new("-u")]),
        (false, true) => ("fusermount3", vec![OsStr::new("-u"), OsStr::new("-z")]),
    };
    args.extend([OsStr::new("--"), mountpoint.as_os_str()]);
    tool::run(program, &args)
}
