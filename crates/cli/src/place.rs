//! Which file or device a location names at the moment: a path can name another one later.

use lacuna::Location;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use serde_json::{Value, json};
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

impl Place {
    /// What tells it from others; empty where the location says it all.
    pub(crate) fn identity(self) -> String {
        if self == Place::Elsewhere { String::new() } else { self.to_string() }
    }
}

/// A place whose file is followed whatever becomes of its path.
pub(crate) struct HeldPlace {
    place: Place,
    /// Opened as a path alone: it neither reads nor locks.
    file: Option<OwnedFd>,
}

impl HeldPlace {
    /// What is at a location now.
    pub(crate) fn of(location: &Location) -> HeldPlace {
        let place = Place::of(location);
        let path = location.path().filter(|_| place != Place::Elsewhere);
        let file = path.and_then(|path| open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok());
        HeldPlace { place, file }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// What became of it: `place`, the `path` that it has now, and whether it is `deleted`.
    pub(crate) fn to_json(&self) -> Value {
        let Some(file) = &self.file else { return Value::Null };
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        // What the system knows already: a file system that does not answer is not waited for.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let links = statx(file, c"", flags, StatxFlags::NLINK).map(|about| about.stx_nlink);
        json!({
            "place": self.place.identity(),
            "path": path.ok().map(|path| path.to_string_lossy().into_owned()),
            "deleted": links == Ok(0),
        })
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
