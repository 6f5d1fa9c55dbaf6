//! The record in the run directory, which describes an instance to other processes of its user.
//!
//! Deniability contract: no field depends on the number of levels of a disk.

use crate::file::{FileIdentity, TrackedFile};
use lacuna_contracts::Error;
use lacuna_mount::{MountMethod, MountedFs, proc};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The names and IDs of an open disk or vault.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// The location as `list` shows it.
    pub location: String,
    /// The name of its format, such as `sealed` or `vault`.
    pub format: String,
    /// The UUID of a disk, as text; none of a vault.
    pub uuid: Option<String>,
    /// The ID that its owner recognizes, as text.
    pub id: Option<String>,
    /// The namespace and cluster of a disk in a pool.
    pub in_pool: Option<PoolScope>,
    /// Its file, device or directory.
    pub file: Arc<TrackedFile>,
    /// Whether errors about it are private: its format has levels, whichever exist.
    pub private: bool,
}

/// The namespace and cluster of a disk in a pool. The location does not contain them, so it is
/// ambiguous without them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolScope {
    /// The namespace in the pool, if any.
    pub namespace: Option<String>,
    /// The configuration file of the cluster, if the user gave one other than the default.
    pub ceph_conf: Option<PathBuf>,
}

/// The description of an instance for commands that list, query or close it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The front end.
    pub front: FrontEnd,
    /// The location as `list` shows it.
    pub location: String,
    /// The name of its format.
    pub format: String,
    /// The UUID of a disk; none of a vault.
    pub uuid: Option<String>,
    /// The identity of its file, device or directory; unknown in a pool.
    pub file: FileIdentity,
    /// The namespace and cluster of a disk in a pool.
    pub in_pool: Option<PoolScope>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// When it was opened, in seconds since 1970.
    pub since: u64,
    /// The server's process number.
    pub pid: u32,
    /// When the server was started, in clock ticks since boot. It tells whether a process with this
    /// number is the server: the number may be used again, and in another PID namespace, such as
    /// that of a container, it is the number of another process. `None` without /proc.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    /// Its keeper, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<KeeperId>,
    /// Of a dead server: the obstacle that keeps the next one from the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// Whether errors about it are private: logs must not tell the number or the names of its
    /// mounts.
    pub private: bool,
    /// The directory of the mount point, if the server made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_mountpoint: Option<FileIdentity>,
}

/// The process of a keeper. Both numbers together are never those of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperId {
    /// Its process number.
    pub pid: u32,
    /// When it was started, in clock ticks since boot.
    pub start: u64,
}

impl KeeperId {
    /// The running process with this number; `None` if it has ended. Errors: it cannot be looked
    /// at.
    pub(crate) fn of(pid: u32) -> io::Result<Option<KeeperId>> {
        Ok(proc::start_of(pid)?.map(|start| KeeperId { pid, start }))
    }

    /// Whether the keeper lives. If `/proc` hides its process from this user, its number decides: a
    /// process with it that takes signals of this user and is hidden is hardly another one. A
    /// keeper that cannot be looked at otherwise counts as dead: then no command waits for it.
    pub fn is_alive(self) -> bool {
        proc::start_of(self.pid).is_ok_and(|start| start == Some(self.start))
            || proc::is_hidden(self.pid).is_ok_and(|is_hidden| is_hidden)
    }
}

/// The front end of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrontEnd {
    /// A mount.
    Fuse(MountRecord),
    /// An NBD server.
    Nbd {
        /// The URIs for clients, one for each address where it listens.
        uris: Vec<String>,
    },
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRecord {
    /// The canonical path of the mount point.
    #[serde(with = "crate::record_path")]
    pub mountpoint: PathBuf,
    /// The kind of mount.
    pub kind: MountKind,
}

/// The kind of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountKind {
    /// The file system on a disk. FUSE is mounted in the run directory, with the file of the disk.
    FileSystem {
        /// How it is mounted; `None` before it is mounted.
        by: Option<MountedBy>,
    },
    /// The FUSE file of a disk alone (raw mode). FUSE is mounted at the mount point itself.
    Raw,
    /// A vault. FUSE is mounted at the mount point itself, without a disk.
    Vault,
}

/// How the file system on a disk is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountedBy {
    /// By the kernel, from this loop device.
    LoopDevice(PathBuf),
    /// By the program of this name, through FUSE.
    Program(String),
}

impl Record {
    /// The record of an instance that this process opens now.
    pub fn new(identity: &Identity, front: FrontEnd, read_only: bool) -> Record {
        Record {
            front,
            location: identity.location.clone(),
            format: identity.format.clone(),
            uuid: identity.uuid.clone(),
            file: identity.file.identity(),
            in_pool: identity.in_pool.clone(),
            read_only,
            since: seconds_now(),
            pid: std::process::id(),
            start: proc::start_of(std::process::id()).unwrap_or(None),
            keeper: None,
            obstacle: None,
            private: identity.private,
            made_mountpoint: None,
        }
    }

    /// Its mount, if it has one.
    pub fn mount(&self) -> Option<&MountRecord> {
        match &self.front {
            FrontEnd::Fuse(mount) => Some(mount),
            FrontEnd::Nbd { .. } => None,
        }
    }

    /// Whether a living keeper starts the server again if it dies.
    pub fn is_kept(&self) -> bool {
        self.keeper.is_some_and(KeeperId::is_alive)
    }

    /// An error about it, marked as private if necessary.
    ///
    /// Deniability contract: the text that a log gets then, and the exit code, do not depend on the
    /// mount that the error is about.
    pub fn mark_confidential(&self, e: Error) -> Error {
        if self.private { e.confidential() } else { e }
    }

    /// Whether it is mounted at this canonical path.
    pub(crate) fn is_mounted_at(&self, mountpoint: &Path) -> bool {
        self.mount().is_some_and(|mount| mount.mountpoint == mountpoint)
    }
}

impl MountRecord {
    /// Whether the FUSE file of a disk alone is mounted.
    pub fn is_raw(&self) -> bool {
        self.kind == MountKind::Raw
    }

    /// Whether a vault is mounted.
    pub fn is_vault(&self) -> bool {
        self.kind == MountKind::Vault
    }

    /// The loop device of the file system, if it is mounted from one.
    pub fn loop_device(&self) -> Option<&Path> {
        match &self.kind {
            MountKind::FileSystem { by: Some(MountedBy::LoopDevice(node)) } => Some(node),
            _ => None,
        }
    }

    /// The name of the mount method ([`MountMethod::name`]); `None` before the file system is
    /// mounted, in raw mode and for a vault.
    pub fn method(&self) -> Option<&str> {
        match &self.kind {
            MountKind::FileSystem { by } => by.as_ref().map(MountedBy::method),
            MountKind::Raw | MountKind::Vault => None,
        }
    }

    /// Whether FUSE is mounted at the mount point itself.
    pub(crate) fn fuse_at_mountpoint(&self) -> bool {
        match self.kind {
            MountKind::FileSystem { .. } => false,
            MountKind::Raw | MountKind::Vault => true,
        }
    }
}

impl MountedBy {
    /// How this file system is mounted.
    pub fn of(mounted: &MountedFs) -> MountedBy {
        match mounted.loop_device() {
            Some(node) => MountedBy::LoopDevice(node.to_owned()),
            None => MountedBy::Program(mounted.method().name().to_owned()),
        }
    }

    fn method(&self) -> &str {
        match self {
            MountedBy::LoopDevice(_) => MountMethod::Loop.name(),
            MountedBy::Program(name) => name,
        }
    }
}

/// The present time in seconds since 1970, as in records.
pub fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::Kind;

    #[test]
    fn each_kind_of_mount_has_its_record() {
        let by_loop = MountedBy::LoopDevice("/dev/loop3".into());
        let by_program = MountedBy::Program("fuse2fs".into());
        for (kind, written, shown) in [
            (MountKind::FileSystem { by: None }, r#"{"file_system":{"by":null}}"#, (false, false, None)),
            (
                MountKind::FileSystem { by: Some(by_loop) },
                r#"{"file_system":{"by":{"loop_device":"/dev/loop3"}}}"#,
                (false, false, Some("loop")),
            ),
            (
                MountKind::FileSystem { by: Some(by_program) },
                r#"{"file_system":{"by":{"program":"fuse2fs"}}}"#,
                (false, false, Some("fuse2fs")),
            ),
            (MountKind::Raw, r#""raw""#, (true, false, None)),
            (MountKind::Vault, r#""vault""#, (false, true, None)),
        ] {
            let record = MountRecord { mountpoint: "/mnt".into(), kind };
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(text, format!(r#"{{"mountpoint":"/mnt","kind":{written}}}"#));
            assert_eq!(serde_json::from_str::<MountRecord>(&text).unwrap(), record);
            assert_eq!((record.is_raw(), record.is_vault(), record.method()), shown);
            assert_eq!(record.loop_device().is_some(), shown.2 == Some("loop"));
            assert_eq!(record.fuse_at_mountpoint(), shown.0 || shown.1);
        }
    }

    #[test]
    fn a_record_names_the_mount_point_that_its_server_made() {
        let mount = MountRecord { mountpoint: "/mnt".into(), kind: MountKind::Raw };
        let record = Record::new(&Identity::default(), FrontEnd::Fuse(mount), false);
        let text = serde_json::to_string(&record).unwrap();
        assert!(!text.contains("made_mountpoint"), "{text}");
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
        let record = Record { made_mountpoint: Some(FileIdentity::File(1, 2)), ..record };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#""made_mountpoint":"file:1:2""#), "{text}");
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }

    #[test]
    fn errors_are_as_private_as_the_record_says() {
        let front = || FrontEnd::Nbd { uris: Vec::new() };
        for private in [false, true] {
            let record = Record::new(&Identity { private, ..Identity::default() }, front(), false);
            let text = serde_json::to_string(&record).unwrap();
            let read: Record = serde_json::from_str(&text).unwrap();
            let marked = read.mark_confidential(Error::new(Kind::Busy, "in use"));
            assert!(read == record && marked.is_confidential() == private && marked.kind() == Kind::Busy);
            // A record that does not say it is refused: its errors might have to be private.
            let silent = text.replace(&format!(",\"private\":{private}"), "");
            assert!(silent != text && serde_json::from_str::<Record>(&silent).is_err(), "{silent}");
        }
    }

    #[test]
    fn a_record_of_a_mount_of_two_kinds_or_none_is_refused() {
        for rest in [
            r#""raw":true,"vault":true,"loop_device":null,"via":null"#,
            r#""kind":["raw","vault"]"#,
            r#""kind":{"raw":null,"vault":null}"#,
            r#""kind":{"vault":{"by":{"loop_device":"/dev/loop3"}}}"#,
            r#""kind":{"file_system":{"by":{"loop_device":"/dev/loop3","program":"fuse2fs"}}}"#,
            r#""kind":"file""#,
            r#""kind":null"#,
        ] {
            let text = format!(r#"{{"mountpoint":"/mnt",{rest}}}"#);
            assert!(serde_json::from_str::<MountRecord>(&text).is_err(), "{text}");
        }
    }
}
