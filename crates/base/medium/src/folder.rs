//! A directory of files: the seam at which tests put faults, power cuts and adversaries under a
//! vault.

use lacuna_contracts::{Error, Kind, Result};
use rustix::fs::StatVfs;
use std::sync::Arc;

/// What a file system that holds a folder has, in all and free to this user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all that this user may use, so that what is not free is in use: `df` subtracts one
    /// from the other.
    pub total_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Files in all, as far as the file system counts them; zero where it does not.
    pub total_files: u64,
    /// Files that can still be made; zero where the file system does not count them.
    pub free_files: u64,
}

impl From<StatVfs> for Space {
    /// What a file system keeps back for root counts as not being there.
    fn from(about: StatVfs) -> Space {
        let kept_back = about.f_bfree.saturating_sub(about.f_bavail);
        Space {
            total_bytes: about.f_blocks.saturating_sub(kept_back).saturating_mul(about.f_frsize),
            free_bytes: about.f_bavail.saturating_mul(about.f_frsize),
            total_files: about.f_files,
            free_files: about.f_favail,
        }
    }
}

/// A directory of files. Called from many threads at once.
///
/// Names are relative paths of at most one subfolder: `journal`, `ab/cdef0123`; [`check_name`] says
/// which are names.
///
/// A call that is refused ([`Kind::is_refusal`]) has changed nothing, but for a write, which may
/// have changed the first bytes of its range. An error of a sync is never a refusal. Calls that a
/// signal interrupts are made again.
///
/// A power cut may drop, reorder, and tear at 512 bytes whatever was written to files and not
/// synced; creations, removals and renames that were not synced may be lost, each alone. A name
/// that a cut takes back leaves the file it named before.
pub trait Folder: Send + Sync {
    /// Opens a file. Errors: [`Kind::NotFound`] if there is none of this name.
    fn open(&self, name: &str) -> Result<Arc<dyn FolderFile>>;
    /// Makes a new, empty file; an old file of the name is gone. Makes the subfolder if there is
    /// none.
    fn create(&self, name: &str) -> Result<Arc<dyn FolderFile>>;
    /// Removes a file. That there is none is no error.
    fn remove(&self, name: &str) -> Result<()>;
    /// Gives a file another name, at once and whole; an old file of that name is gone. Makes no
    /// subfolder.
    ///
    /// Errors: [`Kind::NotFound`] if there is no file `from`.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Names of the files and subfolders in a subfolder (`""`: of the files and subfolders at the
    /// top), in any order, without the subfolder's own name. A subfolder that does not exist has
    /// none.
    fn list(&self, subfolder: &str) -> Result<Vec<String>>;
    /// Returns when every creation, removal and rename so far in the subfolder (`""`: at the top)
    /// is durable, and so is the subfolder itself.
    fn sync_names(&self, subfolder: &str) -> Result<()>;
    /// Returns when everything so far is durable: names and contents. May wait for other users of
    /// the same file system.
    fn sync_all(&self) -> Result<()>;
    /// What space there is.
    fn space(&self) -> Result<Space>;
    /// How many files may be kept open at once without need.
    fn open_files(&self) -> usize {
        256
    }
    /// Whether it refuses every change.
    fn read_only(&self) -> bool;
}

/// One open file of a [`Folder`]. It stays usable after its name is gone.
pub trait FolderFile: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> Result<u64>;
    /// Whether it holds no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Reads; what lies past the end reads as zeros.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Writes; past the end the file grows, and what lies between reads as zeros.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// Changes the length; new bytes read as zeros.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Takes the space of a range now where the file system can, so that a later write finds it.
    /// Changes neither length nor content.
    ///
    /// Errors: [`Kind::NoSpace`] if there is not as much.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;
    /// Makes a range zeros, and gives its space back. Needs no room for data, where a write of
    /// zeros does on a file system that writes nothing over itself, or with a quota. Does not
    /// change the length.
    ///
    /// Errors: [`Kind::Other`] if the file system cannot do that; then it has changed nothing. With
    /// a quota that is used up, btrfs refuses it as it does a write.
    fn punch(&self, offset: u64, len: u64) -> Result<()>;
    /// Returns when the file's content and length so far are durable. Says nothing of its name.
    fn sync(&self) -> Result<()>;
    /// How long it may become, in bytes, as far as the system tells: its file system has a limit,
    /// and so may the process. Beyond it writes are refused with [`Kind::NoSpace`].
    fn longest(&self) -> Result<u64> {
        Ok(u64::MAX)
    }
    /// Whether it still has its name in some folder. Where nothing can tell, it has.
    ///
    /// Errors: what the system reports.
    fn has_name(&self) -> Result<bool> {
        Ok(true)
    }
    /// From now on reads come from what is durable, as
    /// [`Medium::forget_cached`](crate::Medium::forget_cached) says.
    fn forget_cached(&self) -> Result<()> {
        Ok(())
    }
}

/// The longest part of a name.
const PART_LEN: usize = 255;

/// Splits a name into its subfolder (`""` at the top) and the file's name there.
///
/// Errors: [`Kind::Usage`] for what is no name: parts that are empty, `.`, `..`, longer than 255
/// bytes or with a zero byte, and more than one subfolder.
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
    fn names_stay_inside() {
        assert_eq!(check_name("journal").unwrap(), ("", "journal"));
        assert_eq!(check_name("ab/cdef").unwrap(), ("ab", "cdef"));
        for bad in ["", "/", "/a", "a/", "..", "../a", "a/..", "./a", "a/b/c", "a//b", "a\0b"] {
            assert_eq!(check_name(bad).unwrap_err().kind(), Kind::Usage, "{bad:?}");
        }
    }

    #[test]
    fn what_is_kept_back_for_root_is_not_in_use() {
        let about = rustix::fs::statvfs("/").unwrap();
        let about = StatVfs { f_blocks: 100, f_bfree: 60, f_bavail: 55, f_frsize: 4096, ..about };
        let space = Space::from(about);
        assert_eq!((space.total_bytes, space.free_bytes), (95 * 4096, 55 * 4096));
        assert_eq!((space.total_bytes - space.free_bytes) / 4096, 40);
    }
}
