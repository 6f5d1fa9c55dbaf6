//! The trait for a directory of files. Under a vault, tests inject faults, power cuts and
//! adversaries here.

use lacuna_contracts::{Error, Kind, Result};
use rustix::fs::StatVfs;
use std::sync::Arc;

/// The space of the file system that holds a folder: total, and free for this user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsSpace {
    /// Total bytes that this user may use. `df` shows total minus free as used.
    pub total_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Total number of files; zero if the file system does not count them.
    pub total_files: u64,
    /// Files that can still be created; zero if the file system does not count them.
    pub free_files: u64,
}

impl From<StatVfs> for FsSpace {
    /// Space that is reserved for root counts as absent.
    fn from(about: StatVfs) -> FsSpace {
        let kept_back = about.f_bfree.saturating_sub(about.f_bavail);
        FsSpace {
            total_bytes: about.f_blocks.saturating_sub(kept_back).saturating_mul(about.f_frsize),
            free_bytes: about.f_bavail.saturating_mul(about.f_frsize),
            total_files: about.f_files,
            free_files: about.f_favail,
        }
    }
}

/// A directory of files. Called from many threads at once.
///
/// Names are relative paths with at most one subfolder: `journal`, `ab/cdef0123`; [`check_name`]
/// defines the valid names.
///
/// A refused call ([`Kind::is_refusal`]) has changed nothing, except that a refused write may have
/// changed the first bytes of its range. An error of a sync is never a refusal. Calls that a signal
/// interrupts are repeated.
///
/// A power cut may drop, reorder, and tear (at 512 bytes) writes to files that were not synced.
/// Each creation, removal or rename that was not synced may be lost, independently of the rest; the
/// name then refers to its earlier file.
pub trait Folder: Send + Sync {
    /// Opens a file. Errors: [`Kind::NotFound`] if no file has this name.
    fn open(&self, name: &str) -> Result<Arc<dyn FolderFile>>;
    /// Creates an empty file; it replaces an old file of this name. Creates the subfolder if
    /// needed.
    fn create(&self, name: &str) -> Result<Arc<dyn FolderFile>>;
    /// Removes a file. No error if it is absent.
    fn remove(&self, name: &str) -> Result<()>;
    /// Renames a file atomically; it replaces an old file of the new name. Creates no subfolder.
    ///
    /// Errors: [`Kind::NotFound`] if there is no file `from`.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// The names of the files and subfolders in a subfolder (`""`: at the top), in any order,
    /// without the subfolder's own name. An absent subfolder has none.
    fn list(&self, subfolder: &str) -> Result<Vec<String>>;
    /// Returns when every earlier creation, removal and rename in the subfolder (`""`: at the top)
    /// is durable, and the subfolder itself.
    fn sync_names(&self, subfolder: &str) -> Result<()>;
    /// Returns when all earlier changes of names and contents are durable. May wait for other users
    /// of the same file system.
    fn sync_all(&self) -> Result<()>;
    /// The space of the file system.
    fn space(&self) -> Result<FsSpace>;
    /// The number of files that a caller may keep open for later use.
    fn open_files(&self) -> usize {
        256
    }
    /// Whether the folder refuses every change.
    fn read_only(&self) -> bool;
}

/// An open file of a [`Folder`]. It stays usable after its name is removed.
pub trait FolderFile: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> Result<u64>;
    /// Whether the length is zero.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Reads; bytes past the end read as zeros.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Writes. A write past the end grows the file; the gap reads as zeros.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// Changes the length; new bytes read as zeros.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Allocates the space of a range if the file system can, so that a later write does not run
    /// out of space. Changes neither length nor content.
    ///
    /// Errors: [`Kind::NoSpace`] if there is not enough space.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;
    /// Zeroes a range, and frees its space. Needs no free space, whereas a write of zeros does on a
    /// copy-on-write file system or under a quota. Does not change the length.
    ///
    /// Errors: [`Kind::Other`] if the file system cannot do that; it has changed nothing then.
    /// btrfs refuses the call like a write if a quota is used up.
    fn punch(&self, offset: u64, len: u64) -> Result<()>;
    /// Returns when earlier changes of content and length are durable. The name may still be
    /// volatile.
    fn sync(&self) -> Result<()>;
    /// The maximum length in bytes, as far as the system tells: the file system has a limit, and
    /// the process may have one. Writes beyond it are refused with [`Kind::NoSpace`].
    fn max_len(&self) -> Result<u64> {
        Ok(u64::MAX)
    }
    /// Whether the file still has a name in a folder. True if that is unknown.
    ///
    /// Errors: those of the system.
    fn has_name(&self) -> Result<bool> {
        Ok(true)
    }
    /// Makes later reads return the durable content, as
    /// [`Medium::forget_cached`](crate::Medium::forget_cached) does.
    fn forget_cached(&self) -> Result<()> {
        Ok(())
    }
}

/// The most bytes of a part of a name.
const PART_LEN: usize = 255;

/// Splits a name into its subfolder (`""` at the top) and the file's name there.
///
/// Errors: [`Kind::Usage`] for an invalid name: a part that is empty, `.`, `..`, longer than 255
/// bytes or has a zero byte, or more than one subfolder.
pub fn check_name(name: &str) -> Result<(&str, &str)> {
    let (subfolder, file) = name.split_once('/').unwrap_or(("", name));
    let fits = |part: &str| {
        (1..=PART_LEN).contains(&part.len()) && part != "." && part != ".." && !part.contains(['/', '\0'])
    };
    if fits(file) && (fits(subfolder) || subfolder.is_empty() && !name.starts_with('/')) {
        return Ok((subfolder, file));
    }
    Err(Error::new(Kind::Usage, "cannot use a name in a folder")
        .found(format!("{name:?}"))
        .expected("a file name, or a subfolder's and a file's with one slash between"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_folder() {
        assert_eq!(check_name("journal").unwrap(), ("", "journal"));
        assert_eq!(check_name("ab/cdef").unwrap(), ("ab", "cdef"));
        for bad in ["", "/", "/a", "a/", "..", "../a", "a/..", "./a", "a/b/c", "a//b", "a\0b"] {
            assert_eq!(check_name(bad).unwrap_err().kind(), Kind::Usage, "{bad:?}");
        }
    }

    #[test]
    fn space_reserved_for_root_does_not_count_as_used() {
        let about = rustix::fs::statvfs("/").unwrap();
        let about = StatVfs { f_blocks: 100, f_bfree: 60, f_bavail: 55, f_frsize: 4096, ..about };
        let space = FsSpace::from(about);
        assert_eq!((space.total_bytes, space.free_bytes), (95 * 4096, 55 * 4096));
        assert_eq!((space.total_bytes - space.free_bytes) / 4096, 40);
    }
}
