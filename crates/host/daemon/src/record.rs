//! What an instance is, for other processes of its user: the record that lies in its run directory.
//!
//! Deniability contract: nothing of it depends on how many levels a disk has.

use crate::file::{FileIdentity, HeldFile};
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
    /// The loop device below the mounted file system; none in raw mode.
    pub loop_device: Option<PathBuf>,
    /// Whether only the FUSE file is mounted.
    pub raw: bool,
    /// Whether it is a vault: then FUSE is mounted at the mount point itself, and no disk is behind it.
    pub vault: bool,
    /// The way in which the file system is mounted ([`Way::name`](lacuna_mount::Way::name)); none in raw mode, and of a vault.
    pub via: Option<String>,
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
    /// Whether FUSE is mounted at the mount point itself.
    pub(crate) fn fuse_at_mountpoint(&self) -> bool {
        self.raw || self.vault
    }
}

/// Now, as records have it: seconds since 1970.
pub fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}
