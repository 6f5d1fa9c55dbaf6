//! Checks a mount point: a directory on which nothing is mounted yet.

use crate::registry::{is_left_by_dead, left_by_dead};
use lacuna_contracts::{Error, Kind, Result, shell_word};
use lacuna_mount::mount_table;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the canonical path of `given`, if it is a directory on which nothing is mounted.
/// `run_base` limits the search for dead servers to one directory of run directories; without it,
/// all of this user are searched.
///
/// Errors: [`Kind::NotFound`], [`Kind::Usage`] if it is no directory, [`Kind::Busy`] if something
/// is mounted there, such as the mount of a dead server.
pub fn check_mountpoint(given: &Path, run_base: Option<&Path>) -> Result<PathBuf> {
    let word = shell_word(given);
    let what = format!("cannot mount at {}", given.display());
    let dead = || {
        Error::new(Kind::Busy, &what)
            .found("what a lacuna server left mounted there when it died")
            .remedy("close it, which clears it away, then open again")
    };
    let path = given.canonicalize().map_err(|e| {
        let error = Error::io(&what, &e);
        // If that check fails, report the error of the path itself.
        if is_left_by_dead(given, run_base).is_ok_and(|left| left) {
            return dead();
        }
        match e.raw_os_error() {
            Some(libc::ENOENT) => error.remedy(format!("create the directory: mkdir -p {word}")),
            Some(libc::ENOTCONN) => error.with_kind(Kind::Busy).remedy(
                "a FUSE server died on the way there, perhaps one of lacuna: look at the status of all",
            ),
            _ => error,
        }
    })?;
    if let Some(top) = mount_table::at(&path)? {
        if top.is_automount() {
            return Ok(path);
        }
        if left_by_dead(&path, &top, run_base)? {
            return Err(dead());
        }
        return Err(Error::new(Kind::Busy, what)
            .found("something mounted there already")
            .remedy("close or unmount it, or choose another directory"));
    }
    if !fs::metadata(&path).map_err(|e| Error::io(&what, &e))?.is_dir() {
        return Err(Error::new(Kind::Usage, what).found("a file").expected("a directory"));
    }
    Ok(path)
}
