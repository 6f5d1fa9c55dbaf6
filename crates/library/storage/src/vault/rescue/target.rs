//! The directory that a rescue copies to.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::check_takes_files;
use std::fs::ReadDir;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Refuses a target that [`rescue`](super::rescue) refuses, before a passphrase is asked for.
/// Writes nothing.
///
/// Errors: [`Kind::Exists`] if the target is not empty, and those of the system if this user cannot
/// make it or write to it.
pub fn check_rescue_target(target: &Path) -> Result<()> {
    let folder = match std::fs::read_dir(target) {
        Ok(mut entries) => {
            refuse_entries(target, &mut entries)?;
            target
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
        }
        Err(e) => return Err(target_error(target, &e)),
    };
    check_takes_files(folder).map_err(|e| target_error(target, &e))
}

/// Makes the target, unless it is an empty directory. Errors: as for [`check_rescue_target`].
pub(super) fn make_target(target: &Path) -> Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(target) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let entries = std::fs::read_dir(target);
            refuse_entries(target, &mut entries.map_err(|e| target_error(target, &e))?)
        }
        Err(e) => Err(target_error(target, &e)),
    }
}

fn refuse_entries(target: &Path, entries: &mut ReadDir) -> Result<()> {
    if entries.next().is_none() {
        return Ok(());
    }
    Err(Error::new(Kind::Exists, format!("cannot rescue to {}", target.display()))
        .found("a directory that is not empty")
        .expected("an empty directory, or a path where nothing exists"))
}

fn target_error(target: &Path, e: &std::io::Error) -> Error {
    Error::io(format!("cannot rescue to {}", target.display()), e)
}
