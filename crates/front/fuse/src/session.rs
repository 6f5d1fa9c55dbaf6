//! A FUSE mount and the threads that serve it.

use crate::device::{self, FuseOptions};
use fuser::{BackgroundSession, Config, Filesystem, Notifier, Session, SessionACL};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_daemon::become_io_flusher;
use lacuna_mount::{RELEASE_LIMIT, SessionMonitor, unmount_fuse};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Minimum and maximum number of threads that serve one mount; in between, two per processor.
const FEWEST_THREADS: usize = 4;
pub(crate) const MOST_THREADS: usize = 16;

/// A mounted FUSE file system. Dropping it unmounts it if no process uses it.
pub(crate) struct FuseMount {
    mountpoint: PathBuf,
    session: Arc<SessionMonitor>,
    mounted: bool,
}

impl FuseMount {
    /// Mounts `filesystem` at the directory `mountpoint` and serves it. `begun` gets the notifier
    /// of the kernel before the first request is served.
    ///
    /// Errors: [`Kind::Permission`] where mounting, or access for other users, is not allowed;
    /// [`Kind::NotFound`] without FUSE.
    pub(crate) fn start(
        filesystem: impl Filesystem,
        mountpoint: &Path,
        access: FuseOptions<'_>,
        watch: Arc<SessionMonitor>,
        begun: impl FnOnce(Notifier) + Send + 'static,
    ) -> Result<Self> {
        let device = device::mount(mountpoint, access)?;
        // After this point a failure must unmount.
        let mount = FuseMount { mountpoint: mountpoint.to_owned(), session: watch, mounted: true };
        let config = config();
        // The flusher flag belongs to a thread and is inherited by the threads that it starts. The
        // serving threads need it even if the program has not set it for all its threads, because
        // the kernel writes its cache back through them.
        let starter = std::thread::Builder::new().name("lacuna-fuse".to_owned()).spawn(move || {
            become_io_flusher();
            // The kernel alone checks access.
            let session = Session::from_fd(filesystem, device, SessionACL::All, config)?;
            begun(session.notifier());
            session.spawn()
        });
        let failed = |e: &std::io::Error| {
            Error::io(format!("cannot serve the FUSE mount at {}", mountpoint.display()), e)
        };
        match starter.map_err(|e| failed(&e))?.join() {
            // The session does not own the mount, so that its end unmounts nothing; its threads end
            // with the mount.
            Ok(session) => drop::<BackgroundSession>(session.map_err(|e| failed(&e))?),
            Err(_) => {
                return Err(Error::new(Kind::Other, "the thread that mounts FUSE ended unexpectedly"));
            }
        }
        Ok(mount)
    }

    /// The directory of the mount.
    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Unmounts, if it is still mounted. Errors: [`Kind::Busy`], naming the users, if it is in use.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        if self.mounted {
            unmount_fuse(&self.mountpoint)?;
            self.mounted = false;
        }
        Ok(())
    }

    /// Unmounts as dropping does.
    pub(crate) fn end(&mut self) {
        if !self.mounted {
            return;
        }
        // A loop device that was just detached may hold a file of the mount open for another
        // moment.
        self.session.wait_released(RELEASE_LIMIT);
        if self.unmount().is_ok() {
            self.session.wait_ended(RELEASE_LIMIT);
        }
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        self.end();
    }
}

fn config() -> Config {
    let mut config = Config::default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.n_threads = Some((cores * 2).clamp(FEWEST_THREADS, MOST_THREADS));
    config.clone_fd = device::can_open_device();
    config
}
