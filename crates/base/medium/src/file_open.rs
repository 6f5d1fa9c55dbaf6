//! Opening a file or block device: permitted kinds, symbolic links, locks, and errors.

use crate::block_device;
use lacuna_contracts::{Action, Error, Hint, Kind, Result, Setting};
use rustix::fs::{Access as Permission, AtFlags, CWD, OFlags, accessat};
use rustix::io::Errno;
use std::fs::{File, FileType, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// The number of attempts to take a lock that another process holds, and the pause between them.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The purpose for which a medium is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only. Shares the medium with other readers.
    Read,
    /// Reading and writing. Excludes all other processes.
    Write,
}

/// Whether a path may end in a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPolicy {
    /// It may: the user chose the path.
    Followed,
    /// It may not, and for writing the file must have only one name: other users may write to its
    /// directory, and could redirect the path to any file.
    Refused,
}

impl LinkPolicy {
    pub(crate) fn flags(self) -> OFlags {
        if self == LinkPolicy::Refused { OFlags::NOFOLLOW } else { OFlags::empty() }
    }

    pub(crate) fn kind(self, path: &Path) -> io::Result<FileType> {
        let about = match self {
            LinkPolicy::Followed => std::fs::metadata(path),
            LinkPolicy::Refused => std::fs::symlink_metadata(path),
        };
        Ok(about?.file_type())
    }
}

/// Refuses a file with another name: another user with write access to its directory could have
/// linked any file of this file system there.
pub(crate) fn refuse_hard_links(file: &File, path: &Path) -> Result<()> {
    let names = file.metadata().map_err(|e| open_error(path, &e))?.nlink();
    if names <= 1 {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, format!("cannot open {} for writing", path.display()))
        .found(format!("a file with {names} names (hard links)"))
        .expected("a file that no other name leads to")
        .hint("a program or a user linked it; a copy of the directory without hard links can be written"))
}

/// Refuses everything except files and block devices.
pub(crate) fn check_kind(path: &Path, kind: FileType) -> Result<()> {
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    Err(Error::new(Kind::NotFound, format!("cannot open {}", path.display()))
        .found(if kind.is_dir() {
            "a directory"
        } else if kind.is_symlink() {
            "a symbolic link"
        } else {
            "neither a file nor a block device"
        })
        .expected("a file or a block device"))
}

/// Takes the lock of a file that was opened at `path`: exclusive for writing, shared for reading.
pub(crate) fn lock(file: &File, path: &Path, access: Access) -> Result<()> {
    let lock = || if access == Access::Write { file.try_lock() } else { file.try_lock_shared() };
    match retry_while_busy(lock, |e| matches!(e, TryLockError::WouldBlock)) {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(Error::new(Kind::Busy, format!("cannot open {}", path.display()))
                .found("it is in use by another process")
                .hint(close_first()))
        }
        Err(TryLockError::Error(e)) => Err(open_error(path, &e)),
    }
}

/// Retries for a short time while a program holds the medium only briefly (`lacuna info`, a program
/// that a server has just started).
pub(crate) fn retry_while_busy<T, E>(
    mut attempt: impl FnMut() -> std::result::Result<T, E>,
    busy: impl Fn(&E) -> bool,
) -> std::result::Result<T, E> {
    for _ in 0..LOCK_TRIES {
        match attempt() {
            Err(e) if busy(&e) => std::thread::sleep(LOCK_PAUSE),
            done => return done,
        }
    }
    attempt()
}

/// Opens a file for inspection, without a lock, and keeps its access time if the system permits.
pub fn open_for_inspection(path: &Path, links: LinkPolicy) -> io::Result<File> {
    let kind = links.kind(path)?;
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "neither a file nor a block device"));
    }
    open_noatime(OpenOptions::new().read(true), path, links.flags()).map(|(file, _)| file)
}

/// Opens a file so that reads keep its access time, if the system permits: it does for the owner
/// and for root. The second value tells whether it refused. `flags` are additional flags.
pub(crate) fn open_noatime(
    options: &mut OpenOptions,
    path: &Path,
    flags: OFlags,
) -> io::Result<(File, bool)> {
    match options.custom_flags((flags | OFlags::NOATIME).bits() as i32).open(path) {
        Err(e) if e.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            options.custom_flags(flags.bits() as i32).open(path).map(|file| (file, true))
        }
        opened => opened.map(|file| (file, false)),
    }
}

/// The advice for a medium or directory that another process has open.
pub(crate) fn close_first() -> Hint {
    Hint::from("close it there first: ").action(Action("close"))
}

/// Whether this user may make files in a directory, and its file system takes writes. Errors: those
/// of the system for a new file there.
pub fn check_takes_files(folder: &Path) -> io::Result<()> {
    match accessat(CWD, folder, Permission::WRITE_OK | Permission::EXEC_OK, AtFlags::EACCESS) {
        // An old system cannot tell: making the file shows it.
        Ok(()) | Err(Errno::NOSYS) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Refuses a path at which no new file can be made, before anything else is done for it. Writes
/// nothing. Errors: those of making the file, and [`Kind::Usage`] for a symbolic link to a missing
/// file, at which no new file is made either.
pub fn check_can_create(path: &Path) -> Result<()> {
    if std::fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink()) {
        return Err(Error::new(Kind::Usage, format!("cannot make the file {}", path.display()))
            .found("a symbolic link to a missing file")
            .expected("a path where nothing exists")
            .hint("remove the link, or name the file that it leads to"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_takes_files(folder).map_err(|e| create_error(path, &e))
}

/// The error of a call that failed to make a new file.
pub(crate) fn create_error(path: &Path, e: &io::Error) -> Error {
    let error = Error::io(format!("cannot make the file {}", path.display()), e);
    match e.kind() {
        ErrorKind::AlreadyExists => {
            error.with_kind(Kind::Usage).expected("a path where nothing exists").hint(
                Hint::from("choose another path, or overwrite the file there with ")
                    .setting(Setting("force")),
            )
        }
        ErrorKind::NotFound => error.hint("make its directory first"),
        ErrorKind::ReadOnlyFilesystem => error.hint("choose a place that can be written"),
        ErrorKind::PermissionDenied => error.hint("use sudo, or choose a directory that you may write to"),
        _ => error,
    }
}

/// The advice for a file or device that this user may not open.
fn access_advice(path: &Path) -> &'static str {
    if std::fs::metadata(path).is_ok_and(|about| about.file_type().is_block_device()) {
        "use sudo; a user in the group of the device, which `ls -l` shows, may open it too"
    } else {
        "use sudo, or ask its owner to give you access"
    }
}

/// Refuses a block device that takes no writes.
pub(crate) fn check_takes_writes(device: &File, path: &Path) -> Result<()> {
    match block_device::is_read_only(device) {
        Ok(false) => Ok(()),
        Ok(true) => Err(open_error(path, &Errno::ROFS.into()).found(
            "a block device that takes no writes: it is write-protected, or was set so (`blockdev --setro`)",
        )),
        Err(e) => Err(open_error(path, &e)),
    }
}

/// The error of a call that failed to open an existing file or device.
pub(crate) fn open_error(path: &Path, e: &io::Error) -> Error {
    let error = Error::io(format!("cannot open {}", path.display()), e);
    match e.kind() {
        ErrorKind::NotFound => {
            error.hint(Hint::from("check the path, or make a disk there with ").action(Action("create")))
        }
        ErrorKind::ReadOnlyFilesystem => error
            .hint(Hint::from("make it writable, or open it for reading with ").setting(Setting("read_only"))),
        ErrorKind::PermissionDenied if e.raw_os_error() == Some(Errno::PERM.raw_os_error()) => error.hint(
            Hint::from("it may be immutable (`lsattr` shows it): open it for reading with ")
                .setting(Setting("read_only")),
        ),
        ErrorKind::PermissionDenied => error.hint(access_advice(path)),
        ErrorKind::ResourceBusy => error
            .with_kind(Kind::Busy)
            .found(
                "a block device that is in use: mounted, part of another device, or open in another program",
            )
            .hint("`lsblk DEVICE` and `fuser -v DEVICE` show by what; end that first"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_for_a_device_names_its_group() {
        assert!(access_advice(Path::new("/dev/null")).contains("owner"));
        let paths = std::fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap().path());
        let is_device = |path: &std::path::PathBuf| {
            std::fs::metadata(path).is_ok_and(|about| about.file_type().is_block_device())
        };
        for device in paths.filter(is_device) {
            assert!(access_advice(&device).contains("group"), "{}", device.display());
        }
    }
}
