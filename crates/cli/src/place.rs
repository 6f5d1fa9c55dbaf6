//! Which file or device a location names at the moment: a path can name another one later.

use lacuna::{Error, Location, Result};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fmt;
use std::fs::{File, Metadata};
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
        Place::told(&about)
    }

    /// The file or device of which the system tells this.
    pub(crate) fn told(about: &Metadata) -> Place {
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

    /// Whether what is open has this identity.
    pub(crate) fn is(self, identity: &str) -> bool {
        self != Place::Elsewhere && self.identity() == identity
    }

    /// Whether what was opened under the name of this place can be what is there now: it is, or nobody can tell.
    pub(crate) fn may_be(self, identity: &str) -> bool {
        self == Place::Elsewhere || identity.is_empty() || self.is(identity)
    }
}

/// A place whose file is followed whatever becomes of its path.
pub(crate) struct HeldPlace {
    place: Place,
    /// Opened as a path alone: it neither reads nor locks.
    file: Option<File>,
}

impl HeldPlace {
    /// The file or device that was unlocked, as a path alone; none in a pool. Errors: it cannot be followed, so its deletion would go
    /// unnoticed.
    pub(crate) fn of(file: Option<OwnedFd>) -> Result<HeldPlace> {
        let file = file.map(File::from);
        let about = file.as_ref().map(File::metadata).transpose();
        let about = about.map_err(|e| Error::io("cannot keep an eye on the file of the disk", &e))?;
        Ok(HeldPlace { place: about.as_ref().map_or(Place::Elsewhere, Place::told), file })
    }

    /// The directory of a vault. What it holds is verified by keys, whatever directory has its name by now.
    ///
    /// Errors: as before.
    pub(crate) fn of_vault(dir: &Path) -> Result<HeldPlace> {
        let failed = |e: Errno| Error::io(format!("cannot keep an eye on {}", dir.display()), &e.into());
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        HeldPlace::of(Some(open(dir, flags, Mode::empty()).map_err(failed)?))
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// What became of it: `place`, the `path` that it has now, whether it is `deleted`, and whether it is a device of which the
    /// node was `removed`, as when it is pulled out.
    pub(crate) fn to_json(&self) -> Value {
        let Some(file) = &self.file else { return Value::Null };
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
        // What the system knows already: a file system that does not answer is not waited for.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let links = statx(file, c"", flags, StatxFlags::NLINK).map(|about| about.stx_nlink);
        let is_file = matches!(self.place, Place::File(..));
        let unlinked = links == Ok(0);
        json!({
            "place": self.place.identity(),
            "path": path.as_ref().map(|path| path.to_string_lossy()),
            "deleted": is_file && (unlinked || path.is_some_and(|path| is_name_of_deleted(&path))),
            "removed": !is_file && unlinked,
        })
    }
}

/// Whether NFS gave an open file this name when it was deleted: it deletes it when it is closed.
fn is_name_of_deleted(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    name.strip_prefix(b".nfs").is_some_and(|rest| rest.len() >= 16 && rest.iter().all(u8::is_ascii_hexdigit))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn held(path: &Path) -> OwnedFd {
        open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn a_vault_is_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(HeldPlace::of_vault(dir.path()).unwrap().place(), Place::at(dir.path()));
        assert!(HeldPlace::of_vault(&dir.path().join("file")).is_err());
        assert!(HeldPlace::of_vault(&dir.path().join("none")).is_err());
        assert_eq!(HeldPlace::of(None).unwrap().place(), Place::Elsewhere);
    }

    #[test]
    fn a_file_is_followed_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().canonicalize().unwrap().join(name);
        fs::write(path("disk"), "").unwrap();
        let held = HeldPlace::of(Some(held(&path("disk")))).unwrap();
        let is = |name: &str, deleted: bool| {
            let now = held.to_json();
            assert_eq!((&now["deleted"], &now["removed"]), (&json!(deleted), &json!(false)), "{now}");
            assert!(now["path"].as_str().unwrap().starts_with(path(name).to_str().unwrap()), "{now}");
        };
        is("disk", false);
        fs::rename(path("disk"), path("moved")).unwrap();
        is("moved", false);
        // As a file system does that keeps no file without a name.
        fs::rename(path("moved"), path(".nfs0000000000000001")).unwrap();
        is(".nfs0000000000000001", true);
        fs::rename(path(".nfs0000000000000001"), path("moved")).unwrap();
        fs::hard_link(path("moved"), path("second")).unwrap();
        fs::remove_file(path("moved")).unwrap();
        is("moved", false);
        fs::remove_file(path("second")).unwrap();
        is("moved", true);
    }

    #[test]
    fn a_device_that_was_pulled_out_is_no_deleted_file() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("null");
        let mode = Mode::RUSR | Mode::WUSR;
        let made =
            rustix::fs::mknodat(rustix::fs::CWD, &node, rustix::fs::FileType::CharacterDevice, mode, 259);
        if made.is_err() {
            eprintln!("skipped: no device node can be made here");
            return;
        }
        let held = HeldPlace::of(Some(held(&node))).unwrap();
        fs::remove_file(node).unwrap();
        let now = held.to_json();
        assert_eq!((&now["deleted"], &now["removed"]), (&json!(false), &json!(true)), "{now}");
    }
}
