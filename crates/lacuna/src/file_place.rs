//! A file as it is reached: the file or device of a disk, or the header of a vault in its directory.

use crate::look::Look;
use crate::vault_place::{HEADER_FILE, is_vault};
use lacuna_core::Result;
use lacuna_medium::{Access, FileMedium, Links};
use std::path::Path;

/// Where the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePlace<'l> {
    /// At a path that the user names.
    Named(&'l Path),
    /// In the directory of a vault, where others may have put it: it is no symbolic link.
    HeaderIn(&'l Path),
}

impl<'l> FilePlace<'l> {
    /// The file with the header of what lies at a path.
    pub(crate) fn of(path: &'l Path) -> Self {
        if is_vault(path) { FilePlace::HeaderIn(path) } else { FilePlace::Named(path) }
    }

    /// Takes hold of it.
    ///
    /// Errors: those of [`FileMedium::open`].
    pub(crate) fn open(self, access: Access) -> Result<FileMedium> {
        match self {
            FilePlace::Named(path) => FileMedium::open(path, access),
            FilePlace::HeaderIn(dir) => {
                FileMedium::open_linked(&dir.join(HEADER_FILE), access, Links::Refused)
            }
        }
    }

    /// Looks at it without taking hold of it.
    pub(crate) fn look(self) -> Result<Look> {
        match self {
            FilePlace::Named(path) => Look::at(path, Links::Followed),
            FilePlace::HeaderIn(dir) => Look::at(&dir.join(HEADER_FILE), Links::Refused),
        }
    }
}
