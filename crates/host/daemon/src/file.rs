//! The identity of an open file, device or directory: its path may name another file later.

use crate::json_path::bytes_unless_text;
use lacuna_contracts::{Error, Result};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::Errno;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The identity of a file or device, independent of its path. In JSON it is `file:DEVICE:INODE`,
/// `device:NUMBER`, or empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileIdentity {
    /// A file or a directory, by the numbers of its file system and of its inode.
    File(u64, u64),
    /// A device, by its number.
    Device(u64),
    /// Unknown: a disk in a pool, where the name is the identity, or a path that cannot be
    /// inspected.
    #[default]
    Unknown,
}

impl FileIdentity {
    /// The identity of the file or device at a path; unknown if the path cannot be inspected.
    pub fn at(path: &Path) -> FileIdentity {
        std::fs::metadata(path).map_or(FileIdentity::Unknown, |about| FileIdentity::of(&about))
    }

    /// The identity of a file or device from its metadata.
    pub fn of(about: &Metadata) -> FileIdentity {
        let kind = about.file_type();
        if kind.is_block_device() || kind.is_char_device() {
            FileIdentity::Device(about.rdev())
        } else {
            FileIdentity::File(about.dev(), about.ino())
        }
    }

    /// Whether both are the same known file.
    pub fn is_same(self, other: FileIdentity) -> bool {
        self != FileIdentity::Unknown && self == other
    }

    /// Whether both may be the same file: they are equal, or one is unknown.
    pub fn may_be_same(self, other: FileIdentity) -> bool {
        self == other || self == FileIdentity::Unknown || other == FileIdentity::Unknown
    }

    fn parse(text: &str) -> Option<FileIdentity> {
        if text.is_empty() {
            return Some(FileIdentity::Unknown);
        }
        // The caller refuses text that does not parse.
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
        FileIdentity::parse(&text).ok_or_else(|| D::Error::custom("not a file identity"))
    }
}

/// The state of an open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    /// The identity of the file.
    pub place: FileIdentity,
    /// Its present path and state; `None` if the server does not answer.
    #[serde(flatten)]
    pub now: Option<FileNow>,
}

/// The present path and state of an open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileNow {
    /// Its path, if the system reports one.
    pub path: Option<String>,
    /// The bytes of the path in hex, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Whether the file was deleted: its data is lost when the server ends.
    pub deleted: bool,
    /// Whether it is a device with a removed node, as after hot unplug.
    pub removed: bool,
}

/// A file that is tracked independently of its path. The default holds no file, as for a disk in a
/// pool.
#[derive(Debug, Default)]
pub struct TrackedFile {
    identity: FileIdentity,
    /// Opened with `O_PATH`: it neither reads nor locks.
    file: Option<File>,
}

impl TrackedFile {
    /// Tracks the file or device that was unlocked, opened with `O_PATH`; `None` for a disk in a
    /// pool.
    ///
    /// Errors: the file cannot be inspected, so its deletion would go unnoticed.
    pub fn of(file: Option<OwnedFd>) -> Result<TrackedFile> {
        let file = file.map(File::from);
        let about = file.as_ref().map(File::metadata).transpose();
        let about = about.map_err(|e| Error::io("cannot track the file of the disk", &e))?;
        Ok(TrackedFile { identity: about.as_ref().map_or(FileIdentity::Unknown, FileIdentity::of), file })
    }

    /// Tracks a directory, such as that of a vault. Keys verify the content of a vault, so it does
    /// not matter if another directory has this path by now.
    ///
    /// Errors: those of [`TrackedFile::of`], and a failure to open the directory.
    pub fn of_directory(dir: &Path) -> Result<TrackedFile> {
        let failed = |e: Errno| Error::io(format!("cannot track {}", dir.display()), &e.into());
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        TrackedFile::of(Some(open(dir, flags, Mode::empty()).map_err(failed)?))
    }

    /// The identity of the file.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// The state of the file; `None` if no file is held.
    pub fn state(&self) -> Option<FileState> {
        let file = self.file.as_ref()?;
        // Without a path the file is still known by its identity.
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
        // Use cached attributes: a file system that does not answer must not block this call.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let links = statx(file, c"", flags, StatxFlags::NLINK).map(|about| about.stx_nlink);
        let is_file = matches!(self.identity, FileIdentity::File(..));
        let unlinked = links == Ok(0);
        let now = FileNow {
            path: path.as_ref().map(|path| path.to_string_lossy().into_owned()),
            path_bytes: path.as_ref().and_then(bytes_unless_text),
            deleted: is_file && (unlinked || path.is_some_and(|path| is_nfs_deleted_name(&path))),
            removed: !is_file && unlinked,
        };
        Some(FileState { place: self.identity, now: Some(now) })
    }

    /// Whether the file was deleted: its data is lost when the server ends.
    pub fn is_deleted(&self) -> bool {
        self.state().and_then(|state| state.now).is_some_and(|now| now.deleted)
    }
}

/// Whether this is the name that NFS gives to a deleted file that is still open. NFS removes the
/// file when it is closed.
fn is_nfs_deleted_name(path: &Path) -> bool {
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

    fn now(held: &TrackedFile) -> FileNow {
        held.state().unwrap().now.unwrap()
    }

    #[test]
    fn only_valid_identities_are_parsed() {
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
        assert!(one.is_same(one) && !one.is_same(other) && one.may_be_same(one) && !one.may_be_same(other));
        let unknown = FileIdentity::Unknown;
        assert!(!unknown.is_same(unknown) && unknown.may_be_same(one) && one.may_be_same(unknown));
        // Of a server that does not answer, only the identity is known.
        let state = FileState { place: one, now: None };
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(text, r#"{"place":"file:1:2"}"#);
        assert_eq!(serde_json::from_str::<FileState>(&text).unwrap(), state);
    }

    #[test]
    fn a_tracked_vault_must_be_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(TrackedFile::of_directory(dir.path()).unwrap().identity(), FileIdentity::at(dir.path()));
        assert!(TrackedFile::of_directory(&dir.path().join("file")).is_err());
        assert!(TrackedFile::of_directory(&dir.path().join("none")).is_err());
        let none = TrackedFile::of(None).unwrap();
        assert!(none.identity() == FileIdentity::Unknown && none.state().is_none() && !none.is_deleted());
    }

    #[test]
    fn a_file_is_tracked_through_renames_until_it_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().canonicalize().unwrap().join(name);
        fs::write(path("disk"), "").unwrap();
        let held = TrackedFile::of(Some(opened_as_path(&path("disk")))).unwrap();
        let is = |name: &str, deleted: bool| {
            let now = now(&held);
            assert_eq!((now.deleted, now.removed), (deleted, false), "{now:?}");
            assert!(now.path.as_ref().unwrap().starts_with(path(name).to_str().unwrap()), "{now:?}");
            assert_eq!(held.is_deleted(), deleted);
        };
        is("disk", false);
        fs::rename(path("disk"), path("moved")).unwrap();
        is("moved", false);
        // NFS renames instead of unlinking, because it keeps no file without a name.
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
    fn a_removed_device_does_not_count_as_a_deleted_file() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("null");
        let mode = Mode::RUSR | Mode::WUSR;
        let made =
            rustix::fs::mknodat(rustix::fs::CWD, &node, rustix::fs::FileType::CharacterDevice, mode, 259);
        if made.is_err() {
            eprintln!("skipped: no device node can be made here");
            return;
        }
        let held = TrackedFile::of(Some(opened_as_path(&node))).unwrap();
        fs::remove_file(node).unwrap();
        let now = now(&held);
        assert!(!now.deleted && now.removed, "{now:?}");
    }
}
