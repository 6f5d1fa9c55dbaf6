//! What disk to mount, where, and how.

use lacuna_contracts::{Disk, Error, Kind, Naming, Result, Term};
use lacuna_daemon::{Identity, JobHandler};
use lacuna_mount::{Cover, MountMethod, ServerLog, check_type, lacking_for_fuse};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What to open, where, and how.
#[allow(clippy::struct_excessive_bools)]
pub struct DiskRequest {
    /// The disk. [`MountedDisk`](crate::MountedDisk) closes it at the end.
    pub disk: Arc<dyn Disk>,
    /// By what others know it.
    pub identity: Identity,
    /// An existing directory on which nothing is mounted.
    pub mountpoint: PathBuf,
    /// Type of the file system to make if the disk is blank, such as `ext4`.
    pub mkfs: Option<String>,
    /// Make it over data of no known kind as well.
    pub overwrite: bool,
    /// Mount a file system that is there already instead of refusing to make one.
    pub keep_existing: bool,
    /// Refuse writes even if the disk takes them.
    pub read_only: bool,
    /// Mount only the FUSE file. Needs neither root nor a loop device.
    pub raw: bool,
    /// The method by which the file system is mounted, if not the one that this process has.
    pub via: Option<MountMethod>,
    /// Whether no log may keep why it is not closed (deniability contract).
    pub private: bool,
    /// More options for `mount -o`, such as `noload` or `discard`.
    pub mount_options: Option<String>,
    /// What the disk has to do with cover, if it is a level.
    pub cover: Cover,
    /// Close it when nothing was asked of it for so long and no process uses it.
    pub idle_timeout: Option<Duration>,
    /// Directory of the run directories, if not [`lacuna_daemon::default_run_base`].
    pub run_base: Option<PathBuf>,
    /// Where messages of the running server go.
    pub log: ServerLog,
    /// What does longer work on it for clients.
    pub jobs: Option<Arc<dyn JobHandler>>,
    /// How clients that close it, or ask for its status, are told of settings.
    pub naming: Naming,
}

impl DiskRequest {
    /// A request with everything else at its default; messages go nowhere.
    pub fn new(disk: Arc<dyn Disk>, location: impl Into<String>, mountpoint: impl Into<PathBuf>) -> Self {
        DiskRequest {
            disk,
            identity: Identity { location: location.into(), ..Identity::default() },
            mountpoint: mountpoint.into(),
            mkfs: None,
            overwrite: false,
            keep_existing: false,
            read_only: false,
            raw: false,
            via: None,
            private: false,
            mount_options: None,
            cover: Cover::Unneeded,
            idle_timeout: None,
            run_base: None,
            log: Arc::new(|_| {}),
            jobs: None,
            naming: Term::quoted,
        }
    }

    /// Refuses what cannot be mounted so.
    pub(crate) fn check(&self) -> Result<()> {
        let usage = |what: &str, found: &str| Error::new(Kind::Usage, what).found(found);
        if let Some(wanted) = &self.mkfs {
            check_type(wanted)?;
            if self.raw {
                return Err(usage("cannot make a file system in raw mode", "a file system to make, too"));
            }
            if self.read_only || self.disk.read_only() {
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
