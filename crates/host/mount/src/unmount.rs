//! Unmounts: a busy mount stays, and the error names its users.
//!
//! Child processes unmount, here and in `mounted_fs.rs`: a server thread must not wait for the
//! server's own file system; umount(8) also removes the options that mount(8) recorded; and an
//! unprivileged user needs fusermount3.

use crate::{command, mount_table, mount_users};
use lacuna_contracts::{Error, Kind, Result};
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the kernel may take to release the loop device after its last mount is gone. If it
/// takes longer, the file system is still mounted in another mount namespace.
pub const RELEASE_LIMIT: Duration = Duration::from_secs(10);
/// How often to check whether a lazy unmount has removed the mount from the table.
const TABLE_INTERVAL: Duration = Duration::from_millis(5);
/// How long an unmount is repeated while no process that holds the mount can be found: `df` and
/// monitoring programs ask every mount for its free space, and hold it while they wait for the
/// answer. The kernel shows no such use.
const PASSING_USE: Duration = Duration::from_secs(2);
/// How often.
const PASSING_USE_INTERVAL: Duration = Duration::from_millis(20);

/// Unmounts the FUSE file system of lacuna at `mountpoint` if there is one. Waits for the end of a
/// passing use. Errors: [`Kind::Busy`], naming its users.
pub fn unmount_fuse(mountpoint: &Path) -> Result<()> {
    let until = Instant::now() + PASSING_USE;
    while is_our_fuse_mounted(mountpoint)? {
        let finished = unmount_if_unused(mountpoint)?;
        if finished.success() || !is_our_fuse_mounted(mountpoint)? {
            break;
        }
        let passing = finished.stderr.contains("busy") && mount_users::describe(mountpoint).is_none();
        if !passing || Instant::now() >= until {
            return Err(busy_or_failed(mountpoint, &finished));
        }
        std::thread::sleep(PASSING_USE_INTERVAL);
    }
    Ok(())
}

/// Removes the mount of a dead server. Nothing can be read or written through it, so here, and only
/// here, the unmount may be lazy. Returns when the mount is gone from the table, without waiting
/// until the kernel has dropped its cache, which takes seconds for a million files.
pub fn unmount_dead(mountpoint: &Path) -> Result<()> {
    if !is_our_fuse_mounted(mountpoint)? {
        return Ok(());
    }
    unmount_lazily(mountpoint, || is_our_fuse_mounted(mountpoint))
}

/// Lazily removes a FUSE mount whose program ended or lost its disk. `mounted` reports whether it
/// is still in the table. Returns like [`unmount_dead`].
pub fn unmount_lazily(mountpoint: &Path, mounted: impl Fn() -> Result<bool>) -> Result<()> {
    let (program, args) = unmount_command(mountpoint, true);
    let mut running = command::spawn(program, &args)?;
    loop {
        if let Some(finished) = running.try_finish()? {
            let done = finished.success() || !mounted()?;
            return if done { Ok(()) } else { Err(busy_or_failed(mountpoint, &finished)) };
        }
        if !mounted()? {
            return Ok(());
        }
        std::thread::sleep(TABLE_INTERVAL);
    }
}

/// The error for a failed unmount: [`Kind::Busy`], naming the users of `mountpoint`, or the output
/// of the program that was to unmount it.
pub fn busy_or_failed(mountpoint: &Path, finished: &command::ProgramOutput) -> Error {
    let what = format!("cannot unmount {}", mountpoint.display());
    let users = mount_users::describe(mountpoint);
    if users.is_none() && !finished.stderr.contains("busy") {
        let kind =
            if command::is_permission_error(&finished.stderr) { Kind::Permission } else { Kind::Other };
        return Error::new(kind, what).found(finished.message());
    }
    Error::new(Kind::Busy, what)
        .found(match users {
            Some(users) => format!("in use by {users}"),
            None => format!("in use by a process that is not visible here ({})", finished.message()),
        })
        .hint("end what uses it, or leave the directory, then close it again")
}

/// The error for an unmount of a covered mount ([`Kind::Busy`]).
pub(crate) fn covered_error(mountpoint: &Path) -> Error {
    Error::new(Kind::Busy, format!("cannot unmount {}", mountpoint.display()))
        .found("another file system mounted over it")
        .hint("unmount that one first")
}

fn is_our_fuse_mounted(mountpoint: &Path) -> Result<bool> {
    Ok(mount_table::at(mountpoint)?.is_some_and(|e| e.is_our_fuse()))
}

/// Unmounts a FUSE mount that is not in use, with the program that this user needs for it.
pub(crate) fn unmount_if_unused(mountpoint: &Path) -> Result<command::ProgramOutput> {
    let (program, args) = unmount_command(mountpoint, false);
    command::run(program, &args)
}

/// Like [`unmount_if_unused`], without waiting. The unmount waits for the program that serves the
/// mount.
pub(crate) fn start_unmounting(mountpoint: &Path) -> Result<command::BackgroundChild> {
    let (program, args) = unmount_command(mountpoint, false);
    command::spawn(program, &args)
}

fn unmount_command(mountpoint: &Path, lazy: bool) -> (&'static str, Vec<&OsStr>) {
    let (program, mut args): (_, Vec<&OsStr>) = match (rustix::process::geteuid().is_root(), lazy) {
        // Without mount helpers: umount.lacuna would ask this very server, and wait for it.
        (true, false) => ("umount", vec![OsStr::new("--internal-only")]),
        (true, true) => ("umount", vec![OsStr::new("--internal-only"), OsStr::new("--lazy")]),
        (false, false) => ("fusermount3", vec![OsStr::new("-u")]),
        (false, true) => ("fusermount3", vec![OsStr::new("-u"), OsStr::new("-z")]),
    };
    args.extend([OsStr::new("--"), mountpoint.as_os_str()]);
    (program, args)
}
