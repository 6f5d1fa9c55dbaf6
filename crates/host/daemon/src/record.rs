//! What an instance is, for other processes of its user: the record that lies in its run directory.
//!
//! Deniability contract: nothing of it depends on how many levels a disk has.

use crate::file::{FileIdentity, HeldFile};
use lacuna_mount::{MountMethod, Mounted};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// An open disk or vault, by all that others know it by.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// The location as `list` shows it.
    pub location: String,
    /// The name of its format, such as `sealed` or `vault`.
    pub format: String,
    /// The UUID of a disk, as text; none of a vault.
    pub uuid: Option<String>,
    /// By which its owner knows it again, as text.
    pub id: Option<String>,
    /// Which of the disks of its name it is, if it is one in a pool.
    pub in_pool: Option<InPool>,
    /// Its file, device or directory.
    pub file: Arc<HeldFile>,
}

/// What a location in a pool does not say of its disk: which of those of its name it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InPool {
    /// The namespace in the pool, if any.
    pub namespace: Option<String>,
    /// The configuration file of the cluster, if it was named and is not the usual one.
    pub ceph_conf: Option<PathBuf>,
}

/// An instance, for a command that closes, asks or lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The front end.
    pub front: Front,
    /// The location as `list` shows it.
    pub location: String,
    /// The name of its format.
    pub format: String,
    /// The UUID of a disk; none of a vault.
    pub uuid: Option<String>,
    /// Its file, device or directory, whatever its path is; unknown in a pool.
    pub file: FileIdentity,
    /// Which of the disks of its name it is, if it is one in a pool.
    pub in_pool: Option<InPool>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// When it was opened, in seconds since 1970.
    pub since: u64,
    /// The server's process number.
    pub pid: u32,
}

/// The way in which a server gives its disk or vault to clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Front {
    /// At a mount point.
    Fuse(MountRecord),
    /// To clients of NBD.
    Nbd {
        /// What clients are given, one for each place where it listens.
        uris: Vec<String>,
    },
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRecord {
    /// The canonical path.
    #[serde(with = "crate::record_path")]
    pub mountpoint: PathBuf,
    /// What is mounted there.
    pub kind: MountKind,
}

/// What is mounted at a mount point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountKind {
    /// The file system on a disk. FUSE is mounted in the run directory, with the file of the disk.
    FileSystem {
        /// What mounts it; none before it is mounted.
        by: Option<MountedBy>,
    },
    /// The FUSE file of a disk alone (raw mode). FUSE is mounted at the mount point itself.
    Raw,
    /// A vault. FUSE is mounted at the mount point itself, and no disk is behind it.
    Vault,
}

/// What mounts the file system on a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountedBy {
    /// The kernel, from this loop device.
    LoopDevice(PathBuf),
    /// The program of this name, through FUSE.
    Program(String),
}

impl Record {
    /// Of what this process opens now.
    pub fn new(identity: &Identity, front: Front, read_only: bool) -> Record {
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
        }
    }

    /// Where it is mounted, if it is.
    pub fn mount(&self) -> Option<&MountRecord> {
        match &self.front {
            Front::Fuse(mount) => Some(mount),
            Front::Nbd { .. } => None,
        }
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

    /// The loop device that the file system is mounted from, if it is mounted from one.
    pub fn loop_device(&self) -> Option<&Path> {
        match &self.kind {
            MountKind::FileSystem { by: Some(MountedBy::LoopDevice(node)) } => Some(node),
            _ => None,
        }
    }

    /// The method by which the file system is mounted ([`MountMethod::name`]); none before it is
    /// mounted, in raw mode and of a vault.
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
    /// What has mounted this file system.
    pub fn of(mounted: &Mounted) -> MountedBy {
        match mounted.node() {
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

/// Now, as records have it: seconds since 1970.
pub fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_of_one_kind() {
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
