//! Which file or device a location names at the moment: a path can name another one later.

use lacuna::Location;
use std::fmt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The file or device itself, whatever its path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A file, by the number of its file system and its own there.
    File(u64, u64),
    /// A device, by its number.
    Device(u64),
    /// In a pool, where a name says it all, or a path at which nothing can be seen.
    Elsewhere,
}

impl Place {
    /// What is at a location now.
    pub(crate) fn of(location: &Location) -> Place {
        match location {
            Location::Path(path) | Location::Nand(path) | Location::Ubi(path) => Place::at(path),
            Location::Rados { .. } => Place::Elsewhere,
        }
    }

    fn at(path: &Path) -> Place {
        let Ok(about) = std::fs::metadata(path) else { return Place::Elsewhere };
        let kind = about.file_type();
        if kind.is_block_device() || kind.is_char_device() {
            Place::Device(about.rdev())
        } else {
            Place::File(about.dev(), about.ino())
        }
    }
}

impl fmt::Display for Place {
    /// A word for requests.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(device, inode) => write!(f, "file:{device}:{inode}"),
            Place::Device(number) => write!(f, "device:{number}"),
            Place::Elsewhere => f.write_str("elsewhere"),
        }
    }
}
