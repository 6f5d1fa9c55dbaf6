//! A FUSE mount and the threads that serve it.

use crate::device::{self, Access};
use crate::filesystem::VaultFilesystem;
use crate::seek::Way;
use fuser::{BackgroundSession, Config, Session, SessionACL};
use lacuna_core::{Error, Kind, Result};
use lacuna_daemon::become_io_flusher;
use lacuna_mount::{RELEASE_LIMIT, Watch, unmount_fuse};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How far the kernel may read ahead, in KiB: one request of the largest size. Only root can set it.
const READ_AHEAD_KIB: &str = "1024";

/// A mounted FUSE file system. Dropping it unmounts it if nobody uses it.
pub(crate) struct FuseMount {
    mountpoint: PathBuf,
    watch: Arc<Watch>,
    mounted: bool,
}

impl FuseMount {
    /// Mounts `filesystem` at the directory `mountpoint` and serves it.
    pub(crate) fn start(
        filesystem: VaultFilesystem,
        way: &Way,
        mountpoint: &Path,
        access: Access,
        watch: Arc<Watch>,
    ) -> Result<Self> {
        let device = device::mount(mountpoint, access)?;
        // From here on there is something to unmount, whatever fails.
        let mount = FuseMount { mountpoint: mountpoint.to_owned(), watch, mounted: true };
        let config = config();
        let way = Arc::clone(way);
        // The flusher flag belongs to a thread, and to the threads that it starts. The serving threads need it even
        // where the program has not set it for all that it does: the kernel writes its cache back through them.
        let starter = std::thread::Builder::new().name("lacuna-fuse".to_owned()).spawn(move || {
            become_io_flusher();
            let session = Session::from_fd(filesystem, device, SessionACL::All, config)?;
            let _ = way.set(session.notifier());
            session.spawn()
        });
        let failed = |e: &std::io::Error| {
            Error::io(format!("cannot serve the FUSE mount at {}", mountpoint.display()), e)
        };
        match starter.map_err(|e| failed(&e))?.join() {
            // The session does not own the mount, so that its end unmounts nothing; its threads end with the mount.
            Ok(session) => drop::<BackgroundSession>(session.map_err(|e| failed(&e))?),
            Err(_) => {
                return Err(Error::new(Kind::Other, "the thread that mounts FUSE ended unexpectedly"));
            }
        }
        read_further_ahead(mountpoint);
        Ok(mount)
    }

    /// Unmounts, unless someone did already or someone uses it ([`Kind::Busy`], naming who).
    pub(crate) fn unmount(&mut self) -> Result<()> {
        if self.mounted {
            unmount_fuse(&self.mountpoint)?;
            self.mounted = false;
        }
        Ok(())
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if self.unmount().is_ok() {
            self.watch.wait_ended(RELEASE_LIMIT);
        }
    }
}

/// The kernel reads at most 128 KiB ahead unless someone tells it otherwise, which only root can.
fn read_further_ahead(mountpoint: &Path) {
    if let Ok(meta) = fs::metadata(mountpoint) {
        let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
        let _ = fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB);
    }
}

fn config() -> Config {
    let mut config = Config::default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.n_threads = Some((cores * 2).clamp(4, 16));
    config.clone_fd = device::device_opens();
    config
}
