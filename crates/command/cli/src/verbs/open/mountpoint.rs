//! Checks the mount point of `open` before a passphrase is asked for.

use crate::terminal::console::Console;
use lacuna_daemon::{IfMissing, check_mountpoint};
use lacuna_mount::{MountMethod, Program};
use lacuna_storage::{Error, Kind, Result, shell_word};
use rustix::fs::statfs;
use std::path::{Path, PathBuf};

/// The types of file systems that have no medium (statfs(2)): tmpfs and ramfs.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// The planned mount, as far as its mount point depends on it.
#[derive(Clone, Copy, Default)]
pub(crate) struct MountPlan {
    /// Whether it is a disk with levels.
    pub has_levels: bool,
    /// The program that mounts the file system, if one does.
    pub program: Option<Program>,
}

impl MountPlan {
    /// The plan for a disk that is mounted by this method, or without one by the method that this
    /// process would choose. In raw mode no program mounts it.
    pub(crate) fn of_disk(has_levels: bool, raw: bool, via: Option<MountMethod>) -> MountPlan {
        let program = match via {
            _ if raw || MountMethod::is_loop(via) => None,
            Some(MountMethod::Program(program)) => Some(program),
            _ => Some(Program::Fuse2fs),
        };
        MountPlan { has_levels, program }
    }
}

/// The canonical path of a directory on which nothing is mounted, or of one that the server can
/// make. Prints a note to `console` if the mount hides files.
pub(crate) fn check(given: &Path, plan: MountPlan, console: Option<Console>) -> Result<PathBuf> {
    let if_missing = if may_be_made(given, plan.has_levels) { IfMissing::Make } else { IfMissing::Refuse };
    let mountpoint = check_mountpoint(given, None, if_missing).map_err(|e| match e.kind() {
        Kind::Busy => e.hint(format!(
            "end it with `lacuna close {}` if it is lacuna's; or choose another directory",
            shell_word(given)
        )),
        _ => e,
    })?;
    // Looking into the mount point of an automount would wait for this very mount.
    let waits = lacuna_mount::is_automount(&mountpoint)?;
    let is_full = || std::fs::read_dir(&mountpoint).is_ok_and(|mut entries| entries.next().is_some());
    if waits || !is_full() {
        return Ok(mountpoint);
    }
    if let Some(program) = plan.program {
        return Err(Error::new(Kind::Usage, format!("cannot mount at {}", given.display()))
            .found("a directory with files in it")
            .expected(format!("an empty one, which {} needs", program.name()))
            .hint("choose another directory"));
    }
    if let Some(console) = console {
        let (shown, word) = (mountpoint.display(), shell_word(&mountpoint));
        console.note(&format!("{shown} is not empty: its files are hidden until `lacuna close {word}`"));
    }
    Ok(mountpoint)
}

/// Whether the server may make this mount point if it is missing, and remove it at the end.
///
/// Deniability contract: on a medium, the names and the number of directories that were removed can
/// be found later, and tell which levels were mounted. So a disk with levels makes them only in a
/// file system in memory, such as /run.
pub(crate) fn may_be_made(mountpoint: &Path, has_levels: bool) -> bool {
    let is_in_memory = |dir: &Path| statfs(dir).is_ok_and(|about| IN_MEMORY.contains(&(about.f_type as u32)));
    // The check of the mount point reports a path that does not lead anywhere.
    !has_levels
        || std::path::absolute(mountpoint).is_ok_and(|absolute| absolute.parent().is_some_and(is_in_memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_with_levels_makes_directories_in_memory_alone() {
        let is_tmpfs = |dir: &Path| statfs(dir).is_ok_and(|about| about.f_type as u32 == IN_MEMORY[0]);
        if is_tmpfs(Path::new("/dev/shm")) {
            assert!(may_be_made(Path::new("/dev/shm/mnt"), true));
        }
        for elsewhere in ["/proc/mnt", "/no such/mnt"] {
            let elsewhere = Path::new(elsewhere);
            assert!(!may_be_made(elsewhere, true) && may_be_made(elsewhere, false));
        }
    }

    #[test]
    fn only_a_program_needs_an_empty_directory() {
        let place = tempfile::tempdir().unwrap();
        let full = place.path().canonicalize().unwrap();
        std::fs::write(full.join("file"), "").unwrap();
        let check = |program| check(&full, MountPlan { has_levels: false, program }, None);
        assert_eq!(check(None).unwrap(), full);
        let refused = check(Some(Program::Fuse2fs)).unwrap_err();
        assert_eq!(refused.kind(), Kind::Usage);
        assert!(refused.to_string().contains("expected: an empty one, which fuse2fs needs"), "{refused}");
        let program = |raw, via| MountPlan::of_disk(false, raw, via).program;
        let lklfuse = Some(MountMethod::Program(Program::Lklfuse));
        assert_eq!(program(false, lklfuse), Some(Program::Lklfuse));
        assert_eq!((program(true, lklfuse), program(false, Some(MountMethod::Loop))), (None, None));
    }
}
