//! Checks the mount point of `open` before a passphrase is asked for.

use crate::terminal::console::Console;
use lacuna_storage::{Kind, Result, shell_word};
use std::path::{Path, PathBuf};

/// The canonical path of a directory, on which nothing is mounted. Prints a note to `console` if
/// the mount hides files.
pub(crate) fn check(given: &Path, console: Option<Console>) -> Result<PathBuf> {
    let mountpoint = lacuna_daemon::check_mountpoint(given, None).map_err(|e| match e.kind() {
        Kind::Busy => e.remedy(format!(
            "end it with `lacuna close {}` if it is lacuna's, which also clears away what a dead server left; or choose \
             another directory",
            shell_word(given)
        )),
        _ => e,
    })?;
    // Looking into the mount point of an automount would wait for this very mount.
    let waits = lacuna_mount::is_automount(&mountpoint)?;
    let is_full = || std::fs::read_dir(&mountpoint).is_ok_and(|mut entries| entries.next().is_some());
    if let Some(console) = console.filter(|_| !waits && is_full()) {
        let (shown, word) = (mountpoint.display(), shell_word(&mountpoint));
        console.note(&format!("{shown} is not empty: what is in it is hidden until `lacuna close {word}`"));
    }
    Ok(mountpoint)
}
