//! A FUSE mount and the threads that serve it.

use crate::filesystem::{DISK_NAME, DiskFilesystem};
use crate::open::RELEASE_LIMIT;
use crate::system_call::become_io_flusher;
use crate::watch::Watch;
use crate::{mount_table, tool, users};
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use lacuna_core::{Error, Kind, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where FUSE is reached.
const DEVICE: &str = "/dev/fuse";
/// What mount tables show as the source of every FUSE mount of lacuna.
pub(crate) const SOURCE: &str = "lacuna";

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
                .remedy("load it with `modprobe fuse`, or use `lacuna serve --socket PATH`"));
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
            Error::io(format!("cannot mount FUSE at {}", mountpoint.display()), e)
                .remedy("check that /dev/fuse may be used here (without root: that fusermount3 is installed), or use `lacuna serve --socket PATH`")
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
        unmount(&self.mountpoint)?;
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

/// Unmounts the FUSE file system at `mountpoint` if there is one.
fn unmount(mountpoint: &Path) -> Result<()> {
    if !mounted(mountpoint)? {
        return Ok(());
    }
    let finished = unmount_tool(mountpoint, false)?;
    if finished.success() || !mounted(mountpoint)? {
        return Ok(());
    }
    Err(busy_or_failed(mountpoint, &finished))
}

/// Removes the mount that a server left when it died: nothing behind it can be read or written any more, so
/// here, and only here, the unmount may be lazy.
pub(crate) fn unmount_dead(mountpoint: &Path) -> Result<()> {
    if !mounted(mountpoint)? || unmount_tool(mountpoint, false)?.success() {
        return Ok(());
    }
    let finished = unmount_tool(mountpoint, true)?;
    if finished.success() { Ok(()) } else { Err(busy_or_failed(mountpoint, &finished)) }
}

/// The error for an unmount that did not work.
pub(crate) fn busy_or_failed(mountpoint: &Path, finished: &tool::Finished) -> Error {
    let what = format!("cannot unmount {}", mountpoint.display());
    let users = users::describe(mountpoint);
    if users.is_none() && !finished.stderr.contains("busy") {
        let kind = if tool::denied(&finished.stderr) { Kind::Permission } else { Kind::Other };
        return Error::new(kind, what).found(finished.words());
    }
    Error::new(Kind::Busy, what)
        .found(match users {
            Some(users) => format!("in use by {users}"),
            None => format!("in use by something that cannot be seen from here ({})", finished.words()),
        })
        .remedy("end what uses it, or leave the directory, then close it again")
}

fn mounted(mountpoint: &Path) -> Result<bool> {
    Ok(mount_table::at(mountpoint)?.is_some_and(|e| e.is_our_fuse()))
}

fn unmount_tool(mountpoint: &Path, lazy: bool) -> Result<tool::Finished> {
    let (program, mut args): (_, Vec<&OsStr>) = match (rustix::process::geteuid().is_root(), lazy) {
        (true, false) => ("umount", vec![]),
        (true, true) => ("umount", vec![OsStr::new("--lazy")]),
        (false, false) => ("fusermount3", vec![OsStr::new("-u")]),
        (false, true) => ("fusermount3", vec![OsStr::new("-u"), OsStr::new("-z")]),
    };
    args.extend([OsStr::new("--"), mountpoint.as_os_str()]);
    tool::run(program, &args)
}

fn config(read_only: bool, device_opens: bool) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(SOURCE.to_owned()),
        MountOption::Subtype(SOURCE.to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    if read_only {
        config.mount_options.push(MountOption::RO);
    }
    // For root, requests of the loop device may bear the name of whoever caused them; the file's mode and
    // the directory above keep strangers out.
    let root = rustix::process::geteuid().is_root();
    config.acl = if root { SessionACL::All } else { SessionACL::Owner };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.n_threads = Some((cores * 2).clamp(4, 16));
    config.clone_fd = device_opens;
    config
}
