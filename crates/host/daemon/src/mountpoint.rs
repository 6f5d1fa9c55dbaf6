//! Checks a mount point: a directory on which nothing is mounted, or a place for one. Clears away
//! the mount of a dead server there.

pub(crate) mod made_mountpoint;

use crate::client::peer::PROBED_WITHIN;
use crate::instance::Instance;
use crate::registry::{await_dying, clear_dead, has_mount_of_dead_server, is_mount_of_dead_server};
use crate::run_dir::run_base::default_run_base;
use lacuna_contracts::{Error, Kind, Result, shell_word};
use lacuna_mount::{RELEASE_LIMIT, mount_table, unmount_fuse};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The treatment of a mount point that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// It is refused.
    Refuse,
    /// It is accepted in a directory that exists: the server makes it
    /// ([`MadeMountpoint`](crate::MadeMountpoint)).
    Make,
}

/// Returns the canonical path of `given`, if it is a directory on which nothing is mounted, or may
/// be made. `run_base` limits the search for dead servers to one directory of run directories;
/// without it, all of this user are searched.
///
/// Errors: [`Kind::NotFound`], [`Kind::Usage`] if it is no directory, [`Kind::Busy`] if something
/// is mounted there, such as the mount of a dead server.
pub fn check_mountpoint(given: &Path, run_base: Option<&Path>, if_missing: IfMissing) -> Result<PathBuf> {
    let what = format!("cannot mount at {}", given.display());
    let dead = || {
        Error::new(Kind::Busy, &what)
            .found("the mount of a dead lacuna server")
            .hint("close it, which removes the mount, then open again")
    };
    let refused = |e: &io::Error| {
        let error = Error::io(&what, e);
        // If that check fails, report the error of the path itself.
        if has_mount_of_dead_server(given, run_base).is_ok_and(|left| left) {
            return dead();
        }
        match e.raw_os_error() {
            Some(libc::ENOENT) => {
                error.hint(format!("create the directory: mkdir -p {}", shell_word(given)))
            }
            Some(libc::ENOTCONN) => error.with_kind(Kind::Busy).hint(
                "a directory on the path is the mount of a dead FUSE server, perhaps of lacuna: see the status of all",
            ),
            _ => error,
        }
    };
    let path = match given.canonicalize() {
        Ok(path) => path,
        Err(e) if e.kind() == ErrorKind::NotFound && if_missing == IfMissing::Make => {
            return missing(given).map_err(|e| refused(&e));
        }
        Err(e) => return Err(refused(&e)),
    };
    if let Some(top) = mount_table::at(&path)? {
        if top.is_automount() {
            return Ok(path);
        }
        if is_mount_of_dead_server(&path, &top, run_base)? {
            return Err(dead());
        }
        return Err(Error::new(Kind::Busy, what)
            .found("something mounted there already")
            .hint("close or unmount it, or choose another directory"));
    }
    if !fs::metadata(&path).map_err(|e| Error::io(&what, &e))?.is_dir() {
        return Err(Error::new(Kind::Usage, what).found("a file").expected("a directory"));
    }
    Ok(path)
}

/// The canonical path of a mount point that does not exist. Errors: the directory that it would lie
/// in does not exist, or there is a symbolic link to nothing.
fn missing(given: &Path) -> io::Result<PathBuf> {
    let not_found = || io::Error::from_raw_os_error(libc::ENOENT);
    let absolute = std::path::absolute(given)?;
    let (parent, name) = absolute.parent().zip(absolute.file_name()).ok_or_else(not_found)?;
    let path = parent.canonicalize()?.join(name);
    match fs::symlink_metadata(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(path),
        Err(e) => Err(e),
        Ok(_) => Err(not_found()),
    }
}

/// Clears away the mount that a dead server left at `given`, if there is one. First waits while a
/// server of it is dying, for at most [`RELEASE_LIMIT`]. The mount of a living server stays, such
/// as that of a server that another process has started there meanwhile.
///
/// Errors: [`Kind::Busy`], naming the users, if it is in use; a failure to inspect the server.
pub fn clear_mountpoint(given: &Path, run_base: Option<&Path>) -> Result<()> {
    let absolute =
        std::path::absolute(given).map_err(|e| Error::io(format!("cannot find {}", given.display()), &e))?;
    // Every access to an automount waits for this very mount.
    if mount_table::at(&absolute)?.is_some_and(|top| top.is_automount()) {
        return Ok(());
    }
    await_dying(given, run_base)?;
    // A program that the server was starting may hold the lock for a moment longer.
    clear_dead(given, run_base, if is_disconnected(given) { RELEASE_LIMIT } else { PROBED_WITHIN })?;
    let is_left = mount_table::at(&absolute)?.is_some_and(|top| top.is_our_fuse());
    if is_left && is_disconnected(&absolute) { clear_unrecorded(&absolute, run_base) } else { Ok(()) }
}

/// Whether a path leads to a FUSE mount that has lost its server.
fn is_disconnected(path: &Path) -> bool {
    match fs::metadata(path) {
        // A program that asks while the connection ends gets ECONNABORTED.
        Err(e) => matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)),
        Ok(_) => false,
    }
}

/// Unmounts the FUSE mount of a dead server at this canonical path. Its record is gone or
/// elsewhere. Meanwhile this process has the mount point, as a server has it, so that no other
/// server mounts there.
fn clear_unrecorded(mountpoint: &Path, run_base: Option<&Path>) -> Result<()> {
    let base = run_base.map_or_else(default_run_base, |base| Ok(base.to_owned()))?;
    let instance = match Instance::of_mount(&base, mountpoint) {
        // Another process has it. The check of the mount point reports what is there.
        Err(e) if e.kind() == Kind::Busy => return Ok(()),
        claimed => claimed?,
    };
    let cleared = if is_disconnected(mountpoint) { unmount_fuse(mountpoint) } else { Ok(()) };
    cleared.and(instance.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_missing_mount_point_is_accepted_where_it_can_be_made() {
        let place = tempfile::tempdir().unwrap();
        let (dir, base) = (place.path().canonicalize().unwrap(), place.path().join("run"));
        let check = |name: &str, if_missing| check_mountpoint(&dir.join(name), Some(&base), if_missing);
        assert_eq!(check("mnt/", IfMissing::Make).unwrap(), dir.join("mnt"));
        symlink("nowhere", dir.join("link")).unwrap();
        for (name, if_missing) in
            [("mnt", IfMissing::Refuse), ("none/mnt", IfMissing::Make), ("link", IfMissing::Make)]
        {
            let refused = check(name, if_missing).unwrap_err();
            assert_eq!(refused.kind(), Kind::NotFound, "{name}: {refused}");
            assert!(refused.to_string().contains("create the directory: mkdir -p "), "{refused}");
        }
        fs::create_dir(dir.join("mnt")).unwrap();
        fs::write(dir.join("file"), "").unwrap();
        for if_missing in [IfMissing::Refuse, IfMissing::Make] {
            assert_eq!(check("mnt", if_missing).unwrap(), dir.join("mnt"));
            assert_eq!(check("file", if_missing).unwrap_err().kind(), Kind::Usage);
        }
        clear_mountpoint(&dir.join("mnt"), Some(&base)).unwrap();
        clear_mountpoint(&dir.join("none/mnt"), Some(&base)).unwrap();
        assert!(dir.join("mnt").exists());
    }
}
