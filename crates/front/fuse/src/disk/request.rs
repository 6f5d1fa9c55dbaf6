//! A request to mount a disk.

use lacuna_contracts::{Disk, Error, Kind, Result, Term, TermRenderer};
use lacuna_daemon::{Identity, JobHandler};
use lacuna_mount::{CoverRole, MountMethod, ServerLog, check_type, lacking_for_fuse};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The disk, the mount point and the settings.
#[allow(clippy::struct_excessive_bools)]
pub struct DiskRequest {
    /// The disk. [`MountedDisk`](crate::MountedDisk) closes it at the end.
    pub disk: Arc<dyn Disk>,
    /// The names of the disk for clients, and whether errors about it are private.
    pub identity: Identity,
    /// A directory on which nothing is mounted, except the mount of a dead server.
    pub mountpoint: PathBuf,
    /// Make the directory if it is missing. It has no permissions below the mount, and is removed
    /// with it.
    pub make_mountpoint: bool,
    /// Type of the file system to make if the disk is blank, such as `ext4`.
    pub mkfs: Option<String>,
    /// Make the file system even if the disk holds data of an unknown kind.
    pub overwrite: bool,
    /// Mount an existing file system instead of refusing to make one.
    pub keep_existing: bool,
    /// Refuse writes even if the disk takes them.
    pub read_only: bool,
    /// Mount only the FUSE file. Needs neither root nor a loop device.
    pub raw: bool,
    /// How the file system is mounted, if not by the default method of this process.
    pub via: Option<MountMethod>,
    /// More options for `mount -o`, such as `noload` or `discard`.
    pub mount_options: Option<String>,
    /// How the disk depends on cover, if it is a level.
    pub cover: CoverRole,
    /// Close it after this time without requests, if no process uses it.
    pub idle_timeout: Option<Duration>,
    /// Directory of the run directories, if not [`lacuna_daemon::default_run_base`].
    pub run_base: Option<PathBuf>,
    /// Receives messages of the running server.
    pub log: ServerLog,
    /// Performs jobs on the disk for clients.
    pub jobs: Option<Arc<dyn JobHandler>>,
    /// How messages to clients that close it, or ask for its status, name settings.
    pub naming: TermRenderer,
}

impl DiskRequest {
    /// A request with everything else at its default; messages are discarded.
    pub fn new(disk: Arc<dyn Disk>, location: impl Into<String>, mountpoint: impl Into<PathBuf>) -> Self {
        DiskRequest {
            disk,
            identity: Identity { location: location.into(), ..Identity::default() },
            mountpoint: mountpoint.into(),
            make_mountpoint: false,
            mkfs: None,
            overwrite: false,
            keep_existing: false,
            read_only: false,
            raw: false,
            via: None,
            mount_options: None,
            cover: CoverRole::Unneeded,
            idle_timeout: None,
            run_base: None,
            log: Arc::new(|_| {}),
            jobs: None,
            naming: Term::quoted,
        }
    }

    /// Refuses requests that cannot be mounted.
    pub(crate) fn check(&self) -> Result<()> {
        let usage = |what: &str, found: &str| Error::new(Kind::Usage, what).found(found);
        if let Some(wanted) = &self.mkfs {
            check_type(wanted)?;
            if self.raw {
                return Err(usage("cannot make a file system in raw mode", "a file system to make, too"));
            }
            if self.read_only || self.disk.is_read_only() {
                return Err(usage("cannot make a file system", "a disk opened read-only"));
            }
        }
        if self.raw && self.mount_options.is_some() {
            return Err(usage("cannot pass mount options in raw mode", "mount options, too"));
        }
        if let Some(lacking) = lacking_for_fuse() {
            return Err(lacking);
        }
        if self.raw { Ok(()) } else { MountMethod::check(self.via, self.mkfs.as_deref()) }
    }
}
