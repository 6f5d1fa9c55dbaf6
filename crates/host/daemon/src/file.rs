//! Which file, device or directory is open: a path can name another one later.

use lacuna_contracts::{Error, Result};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::Errno;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The file or device itself, whatever its path is. In JSON it is `file:DEVICE:INODE`,
/// `device:NUMBER`, or empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileIdentity {
    /// A file or a directory, by the number of its file system and its own there.
    File(u64, u64),
    /// A device, by its number.
    Device(u64),
    /// In a pool, where a name says it all, or at a path where nothing can be seen.
    #[default]
    Unknown,
}

impl FileIdentity {
    /// Of the file or device at a path; unknown where nothing can be seen.
    pub fn at(path: &Path) -> FileIdentity {
        std::fs::metadata(path).map_or(FileIdentity::Unknown, |about| FileIdentity::of(&about))
    }

    /// Of the file or device that the system describes so.
    pub fn of(about: &Metadata) -> FileIdentity {
        let kind = about.file_type();
        if kind.is_block_device() || kind.is_char_device() {
            FileIdentity::Device(about.rdev())
        } else {
            FileIdentity::File(about.dev(), about.ino())
        }
    }

    /// Whether both are the same known file.
    pub fn is(self, other: FileIdentity) -> bool {
        self != FileIdentity::Unknown && self == other
    }

    /// Whether both can be the same file: they are, or one of them is unknown.
    pub fn may_be(self, other: FileIdentity) -> bool {
        self == other || self == FileIdentity::Unknown || other == FileIdentity::Unknown
    }

    fn parse(text: &str) -> Option<FileIdentity> {
        if text.is_empty() {
            return Some(FileIdentity::Unknown);
        }
        // Text that is no such number names no file: the caller refuses it.
        let number = |text: &str| text.parse::<u64>().ok();
        match text.split_once(':')? {
            ("file", rest) => {
                let (device, inode) = rest.split_once(':')?;
                Some(FileIdentity::File(number(device)?, number(inode)?))
            }
            ("device", rest) => Some(FileIdentity::Device(number(rest)?)),
            _ => None,
        }
    }
}

impl Serialize for FileIdentity {
    fn serialize<S: Serializer>(&self, out: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            FileIdentity::File(device, inode) => out.collect_str(&format_args!("file:{device}:{inode}")),
            FileIdentity::Device(number) => out.collect_str(&format_args!("device:{number}")),
            FileIdentity::Unknown => out.serialize_str(""),
        }
    }
}

impl<'d> Deserialize<'d> for FileIdentity {
    fn deserialize<D: Deserializer<'d>>(from: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        FileIdentity::parse(&text).ok_or_else(|| D::Error::custom("a file that has no such name"))
    }
}

/// What became of a file that is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    /// Which file it is.
    pub place: FileIdentity,
    /// Where it is; none of a server that does not answer.
    #[serde(flatten)]
    pub now: Option<FileNow>,
}

/// Where a file that is open is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileNow {
    /// The path that it has, if the system tells.
    pub path: Option<String>,
    /// Whether it was deleted: it is gone with the server.
    pub deleted: bool,
    /// Whether it is a device whose node was removed, as when it is pulled out.
    pub removed: bool,
}

/// A file that is followed whatever becomes of its path. By default it holds none, as of a disk in
/// a pool.
#[derive(Debug, Default)]
pub struct HeldFile {
    identity: FileIdentity,
    /// Opened as a path alone: it neither reads nor locks.
    file: Option<File>,
}

impl HeldFile {
    /// The file or device that was unlocked, opened as a path alone; none in a pool.
    ///
    /// Errors: it cannot be followed, so its deletion would go unnoticed.
    pub fn of(file: Option<OwnedFd>) -> Result<HeldFile> {
        let file = file.map(File::from);
        let about = file.as_ref().map(File::metadata).transpose();
        let about = about.map_err(|e| Error::io("cannot keep an eye on the file of the disk", &e))?;
        Ok(HeldFile { identity: about.as_ref().map_or(FileIdentity::Unknown, FileIdentity::of), file })
    }

    /// A directory, as of a vault. Its content is verified by keys, whatever directory has its name
    /// by now.
    ///
    /// Errors: as of [`HeldFile::of`].
    pub fn of_directory(dir: &Path) -> Result<HeldFile> {
        let failed = |e: Errno| Error::io(format!("cannot keep an eye on {}", dir.display()), &e.into());
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        HeldFile::of(Some(open(dir, flags, Mode::empty()).map_err(failed)?))
    }

    /// Which file it is.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// What became of it; none where no file is held.
    pub fn state(&self) -> Option<FileState> {
        let file = self.file.as_ref()?;
        // A path that the system does not tell is unknown, and the file is known by its identity.
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
        // What the system knows already: a file system that does not answer is not waited for.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let links = statx(file, c"", flags, StatxFlags::NLINK).map(|about| about.stx_nlink);
        let is_file = matches!(self.identity, FileIdentity::File(..));
        let unlinked = links == Ok(0);
        let now = FileNow {
            path: path.as_ref().map(|path| path.to_string_lossy().into_owned()),
            deleted: is_file && (unlinked || path.is_some_and(|path| is_name_of_deleted(&path))),
            removed: !is_file && unlinked,
        };
        Some(FileState { place: self.identity, now: Some(now) })
    }

    /// Whether it was deleted: the disk is gone with the server.
    pub fn is_deleted(&self) -> bool {
        self.state().and_then(|state| state.now).is_some_and(|now| now.deleted)
    }
}

/// Whether NFS gave an open file this name when it was deleted: it deletes it when it is closed.
fn is_name_of_deleted(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    name.strip_prefix(b".nfs").is_some_and(|rest| rest.len() >= 16 && rest.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn opened_as_path(path: &Path) -> OwnedFd {
        open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn now(held: &HeldFile) -> FileNow {
        held.state().unwrap().now.unwrap()
    }

    #[test]
    fn an_identity_crosses_as_text_and_nothing_else_does() {
        for (identity, text) in [
            (FileIdentity::File(u64::MAX, 7), r#""file:18446744073709551615:7""#),
            (FileIdentity::Device(2049), r#""device:2049""#),
            (FileIdentity::Unknown, r#""""#),
        ] {
            assert_eq!(serde_json::to_string(&identity).unwrap(), text);
            assert_eq!(serde_json::from_str::<FileIdentity>(text).unwrap(), identity);
        }
        for bad in [r#""file:1""#, r#""file:1:2:3""#, r#""file:-1:2""#, r#""device:""#, r#""x""#, "7", "null"]
        {
            assert!(serde_json::from_str::<FileIdentity>(bad).is_err(), "{bad}");
        }
        let (one, other) = (FileIdentity::File(1, 2), FileIdentity::Device(1));
        assert!(one.is(one) && !one.is(other) && one.may_be(one) && !one.may_be(other));
        let unknown = FileIdentity::Unknown;
        assert!(!unknown.is(unknown) && unknown.may_be(one) && one.may_be(unknown));
        // Of a server that does not answer the identity is known alone.
        let state = FileState { place: one, now: None };
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(text, r#"{"place":"file:1:2"}"#);
        assert_eq!(serde_json::from_str::<FileState>(&text).unwrap(), state);
    }

    #[test]
    fn a_vault_is_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(HeldFile::of_directory(dir.path()).unwrap().identity(), FileIdentity::at(dir.path()));
        assert!(HeldFile::of_directory(&dir.path().join("file")).is_err());
        assert!(HeldFile::of_directory(&dir.path().join("none")).is_err());
        let none = HeldFile::of(None).unwrap();
        assert!(none.identity() == FileIdentity::Unknown && none.state().is_none() && !none.is_deleted());
    }

    #[test]
    fn a_file_is_followed_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().canonicalize().unwrap().join(name);
        fs::write(path("disk"), "").unwrap();
        let held = HeldFile::of(Some(opened_as_path(&path("disk")))).unwrap();
        let is = |name: &str, deleted: bool| {
            let now = now(&held);
            assert_eq!((now.deleted, now.removed), (deleted, false), "{now:?}");
            assert!(now.path.as_ref().unwrap().starts_with(path(name).to_str().unwrap()), "{now:?}");
            assert_eq!(held.is_deleted(), deleted);
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
        let held = HeldFile::of(Some(opened_as_path(&node))).unwrap();
        fs::remove_file(node).unwrap();
        let now = now(&held);
        assert!(!now.deleted && now.removed, "{now:?}");
    }
}
