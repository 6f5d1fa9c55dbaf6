//! Dead servers: detects them and cleans up their mounts.

use crate::mountpoint::made_mountpoint;
use crate::record::{KeeperId, MountRecord, Record};
use crate::run_dir::{DISK_NAME, RunPaths, lock_past_probes};
use lacuna_contracts::{Error, Result};
use lacuna_mount::mount_table::MountEntry;
use lacuna_mount::unmount::{busy_or_failed, unmount_dead, unmount_lazily};
use lacuna_mount::{RELEASE_LIMIT, command, loop_device, mount_table, proc};
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fs::TryLockError;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between two looks at a dying process.
const PAUSE: Duration = Duration::from_millis(20);

/// Whether the server of a run directory is alive; `None` if there is no such run directory.
pub(crate) fn is_alive(paths: &RunPaths) -> Result<Option<bool>> {
    let Some(lock) = paths.lock_file()? else { return Ok(None) };
    let failed = |e: &io::Error| Error::io("cannot tell whether a server lives", e);
    match lock.try_lock_shared() {
        Ok(()) => {
            // A server that ended meanwhile has removed its directory, and a new server may have
            // made one of the same name.
            let removed = lock.metadata().map_err(|e| failed(&e))?.nlink() == 0;
            Ok((!removed).then_some(false))
        }
        Err(TryLockError::WouldBlock) => Ok(Some(true)),
        Err(TryLockError::Error(e)) => Err(failed(&e)),
    }
}

/// Cleans up after a dead server: unmounts the file system, detaches its loop device, and removes
/// the FUSE mount and a mount point that the server made. The caller holds the lock. `mountpoint`
/// is used if there is no record of a mount; without both, only the run directory and the loop
/// devices on its disk file are touched.
pub(crate) fn clean_up(paths: &RunPaths, mountpoint: Option<&Path>) -> Result<()> {
    let record = paths.record()?;
    let mount = record.as_ref().and_then(Record::mount);
    let at = mount.map(|mount| mount.mountpoint.as_path()).or(mountpoint);
    let backing = paths.fuse().join(DISK_NAME);
    let devices = loop_device::devices_backed_by(&backing)?;
    if let Some(at) = at
        && let Some(top) = mount_table::at(at)?
    {
        if is_mounted_from(&top, &devices)? {
            let finished =
                command::run("umount", &["--internal-only".as_ref(), OsStr::new("--"), at.as_os_str()])?;
            if !finished.success() {
                return Err(busy_or_failed(at, &finished));
            }
        } else if top.is_served_from(&backing) {
            // Lazy unmount: a process that still uses the file system can neither read nor write
            // any more.
            unmount_lazily(at, || Ok(mount_table::at(at)?.is_some_and(|top| top.is_served_from(&backing))))?;
        } else if mount.is_some_and(MountRecord::fuse_at_mountpoint) && may_be_own(&top) {
            unmount_dead(at)?;
        }
    }
    for device in devices {
        loop_device::detach_from(&device, &backing)?;
    }
    if let Some(record) = &record
        && let (Some(mount), Some(made)) = (record.mount(), record.made_mountpoint)
    {
        // A directory that cannot be removed stays without permissions, and takes no files.
        let _stays = made_mountpoint::remove(&mount.mountpoint, made);
    }
    unmount_dead(&paths.fuse())
}

/// Removes the run directory of a dead server that had no mount point.
///
/// Errors: a file that cannot be removed, and a failure to inspect the directory.
pub(crate) fn remove_served(paths: &RunPaths) -> Result<()> {
    let Some(lock) = paths.lock_file()? else { return Ok(()) };
    // Another process is probing or claiming the directory.
    if lock.try_lock().is_err() {
        return Ok(());
    }
    let about = lock.metadata().map_err(|e| Error::io("cannot look at the lock of a server", &e))?;
    // The directory may belong to another instance by now.
    if about.nlink() == 0 || paths.record()?.is_none_or(|record| record.mount().is_some()) {
        return Ok(());
    }
    paths.remove()
}

/// Notes in the record of a dead server the obstacle that keeps the next server of its keeper from
/// the disk. Does nothing if another process has the run directory.
///
/// Errors: the record cannot be read or written.
pub(crate) fn note_obstacle(paths: &RunPaths, keeper: KeeperId, obstacle: &str) -> Result<()> {
    let Some(lock) = paths.lock_file()? else { return Ok(()) };
    match lock_past_probes(&lock) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(()),
        Err(TryLockError::Error(e)) => return Err(Error::io("cannot lock the run directory", &e)),
    }
    let about = lock.metadata().map_err(|e| Error::io("cannot look at the lock of a server", &e))?;
    match paths.record()? {
        Some(record) if about.nlink() > 0 && record.keeper == Some(keeper) => {
            paths.write_record(&Record { obstacle: Some(obstacle.to_owned()), ..record })
        }
        _ => Ok(()),
    }
}

/// Whether `top` is a mount that the dead server of this run directory left.
pub(crate) fn is_mount_of_dead_server(paths: &RunPaths, top: &MountEntry) -> Result<bool> {
    if is_alive(paths)? != Some(false) {
        return Ok(false);
    }
    if is_file_system_of_disk(paths, top)? {
        return Ok(true);
    }
    let record = if may_be_own(top) { paths.record()? } else { None };
    let mount = record.as_ref().and_then(Record::mount);
    Ok(mount.is_some_and(|mount| mount.fuse_at_mountpoint() && mount.mountpoint == top.mountpoint))
}

/// Whether a mount is the file system of the disk of this run directory: served from its file, or
/// from a loop device on that file.
pub(crate) fn is_file_system_of_disk(paths: &RunPaths, top: &MountEntry) -> Result<bool> {
    let backing = paths.fuse().join(DISK_NAME);
    Ok(top.is_served_from(&backing) || is_mounted_from(top, &loop_device::devices_backed_by(&backing)?)?)
}

/// Whether a mount may be the FUSE mount of a server of this user. Another user may have mounted at
/// the place of a dead server of root.
fn may_be_own(top: &MountEntry) -> bool {
    top.is_our_fuse() && top.user.is_none_or(|user| user == geteuid().as_raw())
}

/// Whether `top` is mounted from one of these loop devices.
fn is_mounted_from(top: &MountEntry, devices: &[PathBuf]) -> Result<bool> {
    for device in devices {
        if loop_device::number(device)?.is_some_and(|number| top.is_mounted_from(device, &number)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Waits while the server of a run directory, with this process number, is dying, for at most
/// [`RELEASE_LIMIT`]. A dying server was killed a moment ago: it still holds its lock and its
/// mount, and answers no request.
///
/// Errors: a failure to inspect the process or the lock.
pub(crate) fn wait_while_dying(paths: &RunPaths, pid: u32) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < RELEASE_LIMIT && is_dying(pid)? && is_alive(paths)? == Some(true) {
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Whether a process is ending, or has a pending fatal signal. False for a process that is gone.
fn is_dying(pid: u32) -> Result<bool> {
    proc::is_dying(pid).map_err(|e| Error::io(format!("cannot look at the process {pid}"), &e))
}
