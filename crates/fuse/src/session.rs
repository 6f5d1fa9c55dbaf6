//! A FUSE mount and the threads that serve it.

use crate::filesystem::DiskFilesystem;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use lacuna_core::{Error, Kind, Result};
use lacuna_daemon::{DISK_NAME, become_io_flusher};
use lacuna_mount::{FUSE_SOURCE, RELEASE_LIMIT, Watch, unmount_fuse};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where FUSE is reached.
const DEVICE: &str = "/dev/fuse";

/// A mounted FUSE file system. Dropping it unmounts it if nobody uses it.
pub(crate) struct FuseMount {
    mountpoint: PathBuf,
    watch: Arc<Watch>,
    /// Taken when the mount is gone.
    session: Option<BackgroundSession>,
}

impl FuseMount {
    /// Mounts `filesystem` at the directory `mountpoint` and serves it.
    pub(crate) fn start(
        filesystem: DiskFilesystem,
        mountpoint: &Path,
        read_only: bool,
        watch: Arc<Watch>,
    ) -> Result<Self> {
        let device = File::options().read(true).write(true).open(DEVICE);
        if let Err(e) = &device
            && e.kind() == std::io::ErrorKind::NotFound
        {
            return Err(Error::io(format!("cannot use {DEVICE}"), e)
                .remedy("load it with `modprobe fuse`, or serve the disk to NBD clients"));
        }
        let config = config(read_only, device.is_ok());
        let at = mountpoint.to_owned();
        // The flusher flag belongs to a thread, and to the threads and processes that it starts. It is set here
        // for the serving threads, which need it even where the program has not set it for all that it does.
        let starter = std::thread::Builder::new().name("lacuna-fuse".to_owned()).spawn(move || {
            become_io_flusher();
            Session::new(filesystem, at, &config).and_then(Session::spawn)
        });
        let failed = |e: &std::io::Error| {
            // What fusermount3 says comes without a number, and ends with a line end.
            let words = e.to_string();
            let denied = ["not permitted", "Permission denied"].iter().any(|said| words.contains(said));
            let error = Error::io(format!("cannot mount FUSE at {}", mountpoint.display()), e);
            let error = if denied { error.with_kind(Kind::Permission) } else { error };
            error
                .found(words.trim())
                .remedy("check that /dev/fuse may be used here (without root: that fusermount3 is installed; in a user namespace: that there is a mount namespace with it), or serve the disk to NBD clients")
        };
        let session = starter.map_err(|e| failed(&e))?.join();
        match session {
            Ok(Ok(session)) => {
                Ok(FuseMount { mountpoint: mountpoint.to_owned(), watch, session: Some(session) })
            }
            Ok(Err(e)) => Err(failed(&e)),
            Err(_) => Err(Error::new(Kind::Other, "the thread that mounts FUSE ended unexpectedly")),
        }
    }

    /// The path of the file that is the disk.
    pub(crate) fn disk_file(&self) -> PathBuf {
        self.mountpoint.join(DISK_NAME)
    }

    /// Unmounts, unless someone did already or someone uses it ([`Kind::Busy`], naming who).
    pub(crate) fn unmount(&mut self) -> Result<()> {
        if self.session.is_none() {
            return Ok(());
        }
        unmount_fuse(&self.mountpoint)?;
        // The session's own unmount on drop would hit whatever is mounted here next. Forgetting it costs one
        // file descriptor of a dead connection; the threads end by themselves.
        if let Some(session) = self.session.take() {
            std::mem::forget(session);
        }
        Ok(())
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if self.session.is_some() {
            // A loop device that was just detached may rest on the file for another moment.
            self.watch.wait_released(RELEASE_LIMIT);
        }
        // If this fails, the session's drop closes the connection after a last attempt.
        let _ = self.unmount();
    }
}

fn config(read_only: bool, device_opens: bool) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(FUSE_SOURCE.to_owned()),
        MountOption::Subtype(FUSE_SOURCE.to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    if read_only {
        config.mount_options.push(MountOption::RO);
    }
    // For root, requests of the loop device may bear the name of the user who caused them; the file's mode and
    // the directory above keep strangers out.
    let root = rustix::process::geteuid().is_root();
    config.acl = if root { SessionACL::All } else { SessionACL::Owner };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.n_threads = Some((cores * 2).clamp(4, 16));
    config.clone_fd = device_opens;
    config
}
