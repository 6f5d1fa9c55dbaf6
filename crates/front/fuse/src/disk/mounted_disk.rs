//! A mounted disk: setting the mount up, and taking it down again.

use crate::device::FuseOptions;
use crate::disk::changes::DiskChanges;
use crate::disk::filesystem::DiskFilesystem;
use crate::disk::request::DiskRequest;
use crate::server::{MountRegistration, MountServer, ServeOptions, ServedMount, free_mountpoint};
use crate::session::FuseMount;
use crate::session_reporter::SessionReporter;
use lacuna_contracts::{ByteDisk, Disk, Error, Kind, Result};
use lacuna_daemon::{ControlServer, DISK_NAME, Jobs, MountEvent, MountKind, MountRecord, MountedBy};
use lacuna_mount::{
    CoverRetry, CoverRole, DiskFile, FUSE_SOURCE, MountMethod, MountRequest, MountedFs, RELEASE_LIMIT,
    ResizeHook,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often a waiting sync checks whether cover has been refused.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long a sync may keep a server that could not end from handling other events.
const SYNC_LIMIT: Duration = Duration::from_secs(30);
/// The remedy where FUSE cannot be mounted for a disk.
const WITHOUT_FUSE: &str = "check that /dev/fuse may be used here (without root: that fusermount3 is installed; in a user namespace: that there is a mount namespace with it), or serve the disk to NBD clients";

/// A disk that is mounted and served.
pub type MountedDisk = MountServer<DiskFuseMount>;

/// The parts of a mounted disk.
pub struct DiskFuseMount {
    // In drop order.
    mounted: Option<MountedFs>,
    /// The sync of an abandoned close, if it is still running.
    syncing: Option<Receiver<Error>>,
    fuse: FuseMount,
    disk: Arc<CoverRetry>,
    location: String,
    mountpoint: PathBuf,
    /// How the file system is mounted; none in raw mode.
    method: Option<MountMethod>,
    reporter: SessionReporter,
    /// Why the program that served the file system failed, or which writes it could not complete.
    failed: Option<Error>,
    /// The number of failed requests at the begin of the close that unmounted.
    failures_before: Option<u64>,
}

impl MountedDisk {
    /// Mounts. On failure everything that was set up is taken down again and the disk is closed.
    pub fn start(request: DiskRequest) -> Result<Self> {
        let (disk, log) = (Arc::clone(&request.disk), Arc::clone(&request.log));
        set_up(request).inspect_err(|_| {
            if let Err(e) = disk.close() {
                log(&e.context("cannot close the disk that was not mounted"));
            }
        })
    }

    /// Whether its file system was made by this mount; otherwise it existed already.
    pub fn made_file_system(&self) -> bool {
        self.served.mounted.as_ref().is_some_and(MountedFs::was_made)
    }
}

fn set_up(request: DiskRequest) -> Result<MountedDisk> {
    request.check()?;
    let (raw, makes, run_base) = (request.raw, request.make_mountpoint, request.run_base.as_deref());
    let read_only = request.read_only || request.disk.is_read_only();
    let mountpoint = free_mountpoint(&request.mountpoint, run_base, makes)?;
    let kind = if raw { MountKind::Raw } else { MountKind::FileSystem { by: None } };
    let mount = MountRecord { mountpoint: mountpoint.clone(), kind };
    let (location, private) = (request.identity.location.clone(), request.identity.private);
    let mut claim = MountRegistration::new(mount, request.identity, read_only, run_base, &request.log)?;
    let reports = claim.reporter.clone();
    let disk = Arc::new(CoverRetry::new(request.disk, request.cover));
    let bytes = ByteDisk::new(Arc::clone(&disk) as Arc<dyn Disk>);
    let changes = DiskChanges::new(bytes.clone(), reports.clone(), private && !read_only);
    let filesystem = DiskFilesystem::new(changes?, read_only);
    let fuse_at = if raw { mountpoint.clone() } else { claim.make_fuse()? };
    if raw {
        claim.make_mountpoint(makes)?;
    }
    // Deniability contract: the mounts of a disk with levels all look alike.
    let source = if raw && !private { location.as_str() } else { FUSE_SOURCE };
    // For root, requests of the loop device may carry the name of the user that caused them; the
    // file's mode and the directory above deny access to other users.
    let allow_other = rustix::process::geteuid().is_root();
    let access = FuseOptions { source: OsStr::new(source), allow_other, read_only, no_exec: false };
    let fuse = FuseMount::start(filesystem, &fuse_at, access, Arc::clone(&reports.session), |_| {})
        .map_err(|e| e.hint(WITHOUT_FUSE))?;
    let mounted = if raw {
        None
    } else {
        let how = MountRequest {
            mkfs: request.mkfs.as_deref(),
            overwrite: request.overwrite,
            keep_existing: request.keep_existing,
            mount_options: request.mount_options.as_deref(),
            read_only,
            via: request.via,
            log: &request.log,
        };
        let file = fuse.mountpoint().join(DISK_NAME);
        let waking = reports.clone();
        let released = move || waking.send_event(MountEvent::DiskReleased);
        let from = DiskFile { disk: &disk, bytes: &bytes, file: &file, session: &reports.session };
        let before = || claim.make_mountpoint(makes);
        let mounted = MountedFs::set_up(&how, from, mountpoint.clone(), before, released)?;
        claim.record_method(MountedBy::of(&mounted))?;
        Some(mounted)
    };
    let follow = mounted.as_ref().map_or_else(|| Arc::new(|| Ok(())) as ResizeHook, MountedFs::resize_hook);
    let (naming, idle_timeout) = (request.naming, request.idle_timeout);
    let terms = ServeOptions { jobs: Jobs::new(request.jobs, follow, naming), naming, idle_timeout };
    let method = mounted.as_ref().map(MountedFs::method);
    let served = DiskFuseMount {
        mounted,
        syncing: None,
        fuse,
        disk,
        location,
        mountpoint,
        method,
        reporter: reports,
        failed: None,
        failures_before: None,
    };
    let server = claim.serve(served, Arc::new(bytes), terms)?;
    // Up to this point a request without cover fails the opening, and the user can repeat it. After
    // it, requests of the file system are retried until cover comes. In raw mode the program that
    // uses the disk as a file gets the error, and can retry itself.
    server.served.disk.set_retrying(method.is_some());
    Ok(server)
}

impl ServedMount for DiskFuseMount {
    /// Level 0 stays open as long as deeper levels are in use and need its cover.
    fn close_refusal(&self) -> Option<Error> {
        self.disk.cover().is_needed().then(|| self.cover_needed_error())
    }

    /// Whether the file system is not mounted anywhere any more. If the program that served it
    /// failed, it stays mounted and its requests fail: without the mount, programs would continue
    /// to write into the directory below.
    fn is_unmounted(&mut self) -> bool {
        let Some(mounted) = &self.mounted else { return false };
        match mounted.is_unmounted(self.reporter.session.disk_handles()) {
            Ok(gone) => gone,
            Err(e) => {
                if self.failed.is_none() {
                    self.record_failure(e);
                }
                false
            }
        }
    }

    fn is_in_use(&self, server: &ControlServer) -> bool {
        server.is_needed()
    }

    fn take_down(&mut self) -> Result<()> {
        self.sync_before_unmount()?;
        self.unmount()
    }

    fn flush(&self) {
        // A patient disk was synced before the unmount was tried (`sync_before_unmount`).
        if let Some(mounted) = self.mounted.as_ref().filter(|_| !self.disk.is_retrying())
            && let Err(e) = sync(mounted)
        {
            (self.reporter.log)(&e);
        }
        if let Err(e) = self.disk.flush_once() {
            (self.reporter.log)(&e.context("cannot flush the disk"));
        }
    }

    fn close(&mut self) -> Result<()> {
        self.mounted = None;
        self.fuse.end();
        let closed = self.disk.close().map_err(|e| match (e.kind(), self.disk.cover(), self.method) {
            (Kind::NoCover, CoverRole::Needs(_), Some(MountMethod::Loop)) => e.hint(
                "it is closed, without the mark of a clean unmount: data written before the closing began is \
                 on the disk, and the file system repairs itself when it is mounted again",
            ),
            (Kind::NoCover, CoverRole::Needs(_), Some(_)) => {
                e.hint("it is closed; the last writes may be lost; the next opening checks the file system")
            }
            _ => e,
        });
        if let (Err(_), Some(failed)) = (&closed, &self.failed) {
            (self.reporter.log)(failed);
        }
        self.disk.mark_closed();
        closed.and(self.failed.take().map_or(Ok(()), Err))
    }
}

impl DiskFuseMount {
    /// Keeps the error of the failed program, for clients that ask for the status and for the
    /// client that closes it, and makes the program's writes durable.
    fn record_failure(&mut self, e: Error) {
        let flushed = self.disk.flush_once();
        self.reporter.session.record_failure(&e);
        (self.reporter.log)(&e);
        if let Err(e) = flushed {
            (self.reporter.log)(&e.context("cannot flush the disk"));
        }
        self.failed = Some(e);
    }

    /// Writes all data of programs to the disk while it is still mounted. If no cover comes, the
    /// file system stays mounted and no data is lost.
    ///
    /// A sync does not reach a program that serves the file system: the program writes the
    /// remaining data at the unmount, and waits for cover then.
    fn sync_before_unmount(&mut self) -> Result<()> {
        let by_kernel =
            |mounted: &&MountedFs| mounted.method() == MountMethod::Loop && self.disk.is_retrying();
        let Some(mounted) = self.mounted.as_ref().filter(by_kernel) else { return Ok(()) };
        let begun = Instant::now();
        // A sync that began before is not enough: more may have been written since.
        for before in [true, false] {
            let syncing = if before { self.syncing.take() } else { Some(mounted.sync()?) };
            let Some(syncing) = syncing else { continue };
            // The unmount reports a failure of the sync.
            while matches!(syncing.recv_timeout(LOOK_AGAIN), Err(RecvTimeoutError::Timeout)) {
                if let Some(e) = self.disk.refused_since(begun) {
                    self.syncing = Some(syncing);
                    let shown = self.mountpoint.display();
                    return Err(e.context(format!("cannot close {shown}")).hint(
                        "it stays open, and nothing is lost: write to level 0 while it is being closed",
                    ));
                }
                if !self.disk.is_retrying() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The reason why level 0 is not closed yet.
    fn cover_needed_error(&self) -> Error {
        Error::new(Kind::Busy, format!("cannot close {}", self.mountpoint.display()))
            .found("a deeper level that is still mounted, and gets no cover without this one")
            .expected("deeper levels to be closed first")
            .hint(format!(
                "close that first, or {}: that closes all its levels in the right order",
                self.location
            ))
    }

    /// Unmounts the file system and the FUSE file below it.
    fn unmount(&mut self) -> Result<()> {
        if let Some(mounted) = &mut self.mounted {
            let by_program = mounted.method() != MountMethod::Loop;
            let before = *self.failures_before.get_or_insert_with(|| self.reporter.session.failures());
            let detached = AtomicBool::new(false);
            let unmounted = mounted.unmount(|| {
                detached.store(true, Ordering::Release);
                // With a loop device all data of programs is on the disk at this point. Only the
                // mark of a clean unmount remains to be written.
                self.disk.set_retrying(by_program);
            });
            if let Err(e) = unmounted {
                self.disk.set_retrying(true);
                // An unmount that waits for cover ends as soon as cover comes.
                if !detached.into_inner() && e.kind() != Kind::NoCover {
                    self.failures_before = None;
                }
                return Err(e);
            }
            self.disk.set_retrying(false);
            if by_program && self.failed.is_none() {
                // A program may find only now that it cannot write the remaining data, and not
                // report it.
                let last = || {
                    self.reporter.session.last_failure().filter(|_| self.reporter.session.failures() > before)
                };
                self.failed = mounted
                    .is_unmounted(0)
                    .err()
                    .or_else(|| last().map(|e| not_written(e, &self.mountpoint)));
            }
            if !self.reporter.session.wait_released(RELEASE_LIMIT) {
                self.disk.set_retrying(true);
                return Err(Error::new(Kind::Busy, format!("cannot close {}", self.mountpoint.display()))
                    .found(format!(
                        "unmounted here, but {} is still in use elsewhere, perhaps in another mount namespace or container",
                        mounted.loop_device().unwrap_or(&self.mountpoint).display()
                    ))
                    .hint("unmount it there; the server then ends by itself"));
            }
            self.mounted = None;
        }
        self.fuse.unmount()?;
        // Another mount namespace may keep a copy of the FUSE mount alive. The copy has no data in
        // flight.
        self.reporter.session.wait_ended(RELEASE_LIMIT);
        Ok(())
    }
}

/// Writes the data of programs to the disk. Errors: that of the failed sync, and [`Kind::TimedOut`]
/// after [`SYNC_LIMIT`].
fn sync(mounted: &MountedFs) -> Result<()> {
    match mounted.sync()?.recv_timeout(SYNC_LIMIT) {
        Ok(e) => Err(e),
        Err(RecvTimeoutError::Disconnected) => Ok(()),
        Err(RecvTimeoutError::Timeout) => Err(Error::new(Kind::TimedOut, "cannot sync the file system")
            .found(format!("a sync that takes longer than {} s", SYNC_LIMIT.as_secs()))),
    }
}

/// The error for a program that could not write all remaining data at the unmount.
fn not_written(e: Error, mountpoint: &Path) -> Error {
    e.context(format!("cannot write everything that was written at {}", mountpoint.display()))
        .hint("it is closed; writes without an fsync may be lost; the next opening checks the file system")
}
