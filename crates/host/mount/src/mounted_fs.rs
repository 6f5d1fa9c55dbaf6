//! The mounted file system of a disk: makes it if wanted, mounts it by one of the methods, and
//! unmounts it.

use crate::cover_retry::CoverRetry;
use crate::loop_device::{self, LoopDevice};
use crate::mkfs::{DiskContent, MkfsRequest, Owner, PreparedFs};
use crate::mount_method::{MethodChoice, MountMethod, Program, ProgramChoice};
use crate::program_mount::{ProgramMount, ProgramRequest, check_options};
use crate::session_monitor::{ServerLog, SessionMonitor};
use crate::unmount::{busy_or_failed, covered_error};
use crate::{command, fsck, mkfs, mount_method, mount_table};
use lacuna_contracts::{ByteDisk, Error, Hint, Kind, Result, Setting, Term};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How often to check during an unmount whether the mount is gone.
const DETACH_INTERVAL: Duration = Duration::from_millis(200);

/// Tells a front end that the length of the disk may have changed.
pub type ResizeHook = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// The options of a mount.
pub struct MountRequest<'r> {
    /// Type of the file system to make if the disk is blank, such as `ext4`.
    pub mkfs: Option<&'r str>,
    /// Mount an existing file system instead of refusing to make one.
    pub keep_existing: bool,
    /// Make a file system over unrecognized data as well.
    pub overwrite: bool,
    /// Further options for `mount -o`, or for the program that mounts.
    pub mount_options: Option<&'r str>,
    /// Mount it read-only.
    pub read_only: bool,
    /// The method; `None` chooses one that this process can use.
    pub via: Option<MountMethod>,
    /// The log for failures to unmount on drop.
    pub log: &'r ServerLog,
}

/// The mounted file system. Dropping it unmounts it, unless it is in use.
pub struct MountedFs {
    mountpoint: PathBuf,
    backend: MountBackend,
    /// Whether the file system was made for this mount.
    was_made: bool,
    log: ServerLog,
}

/// The server of the file system.
enum MountBackend {
    /// The kernel, from a loop device.
    Loop(LoopDevice),
    /// A FUSE program.
    Program(ProgramMount),
}

/// A disk to mount, and its file in the front end.
#[derive(Clone, Copy)]
pub struct DiskFile<'s> {
    /// The disk.
    pub disk: &'s Arc<CoverRetry>,
    /// The disk as bytes.
    pub bytes: &'s ByteDisk,
    /// The path of the file.
    pub file: &'s Path,
    /// The session events of the front end's threads.
    pub session: &'s SessionMonitor,
}

/// The state of a mount in preparation.
struct MountSetup<'s> {
    from: DiskFile<'s>,
    /// The first part of errors.
    what: String,
}

impl MountSetup<'_> {
    /// Prefers the first error of the disk: programs report an error of the disk as a number at
    /// best. `kind` is the type of the file system, if it is known.
    fn prefer_disk_error(&self, e: Error, kind: Option<&str>) -> Error {
        match self.from.session.first_failure() {
            Some(failure) => failure.context(&self.what),
            None => mount_method::offer_others(e, kind),
        }
    }

    /// Detects the content of the disk through `place`. A disk that cannot be read does not count
    /// as blank.
    fn content(&self, place: &Path) -> Result<Option<DiskContent>> {
        let found = mkfs::probe_content(place);
        self.from.session.first_failure().map_or(found, |failure| Err(failure.context(&self.what)))
    }

    /// Makes a file system in `place`, if one is wanted, with a root directory of `owner`.
    fn prepare(
        &self,
        place: &Path,
        found: Option<DiskContent>,
        owner: Owner,
        request: &MountRequest<'_>,
    ) -> Result<PreparedFs> {
        let keep = request.keep_existing && found.as_ref().and_then(DiskContent::file_system).is_some();
        let making =
            MkfsRequest { fs_type: request.mkfs.filter(|_| !keep), overwrite: request.overwrite, owner };
        mkfs::prepare(&self.what, place, self.from.bytes, found, making)
            .map_err(|e| self.prefer_disk_error(e, making.fs_type))
    }

    /// The error of a failed mount of `content`. If its journal could not be replayed and can be
    /// skipped, advises the option for that.
    fn mount_error(&self, e: Error, content: &Mountable, options: Option<&str>) -> Error {
        match content.without_journal {
            Some(option)
                if self.from.session.first_failure().is_none()
                    && e.kind() == Kind::Other
                    && is_of_journal(&e)
                    && !options.is_some_and(|options| options.contains(option)) =>
            {
                let advice = Hint::from("if it was not unmounted, as in a copy of a disk in use, give ");
                let what =
                    format!(" {option}: its journal is then left aside, and the last writes are not seen");
                e.hint(advice.setting(Setting("mount_options")).text(what))
            }
            _ => self.prefer_disk_error(e, Some(&content.kind)),
        }
    }
}

/// The content of a disk that is mounted next.
struct Mountable {
    /// The type of the file system.
    kind: String,
    /// The option that skips the replay of its journal, if it is mounted read-only and has one.
    without_journal: Option<&'static str>,
}

/// Whether an error of a read-only mount may come from a journal that has to be replayed. The
/// kernel refuses it as a write (EROFS), fuse2fs names the recovery. The journal alone proves
/// nothing: fuse2fs mentions it at every mount.
fn is_of_journal(e: &Error) -> bool {
    e.text(Term::quoted).found.is_some_and(|found| {
        let found = found.to_lowercase();
        ["read-only", "recover"].iter().any(|word| found.contains(word))
    })
}

impl MountedFs {
    /// The loop device, if there is one.
    pub fn loop_device(&self) -> Option<&Path> {
        match &self.backend {
            MountBackend::Loop(device) => Some(device.node()),
            MountBackend::Program(_) => None,
        }
    }

    /// The mount method.
    pub fn method(&self) -> MountMethod {
        match &self.backend {
            MountBackend::Loop(_) => MountMethod::Loop,
            MountBackend::Program(mount) => MountMethod::Program(mount.program()),
        }
    }

    /// A callback that makes the loop device take over a new length of the disk; it may outlive
    /// this value. It does nothing if a program serves the file system.
    pub fn resize_hook(&self) -> ResizeHook {
        match &self.backend {
            MountBackend::Loop(device) => {
                let (node, backing) = (device.node().to_owned(), device.backing().to_owned());
                Arc::new(move || loop_device::refresh_capacity(&node, &backing))
            }
            MountBackend::Program(_) => Arc::new(|| Ok(())),
        }
    }

    /// Whether the file system was made for this mount.
    pub fn was_made(&self) -> bool {
        self.was_made
    }

    /// Makes a file system on a disk, if one is wanted, and mounts it. `before` is called when
    /// nothing but the mount itself remains to be done; its error ends the set-up. `released` is
    /// called when a program that serves it has ended.
    ///
    /// Errors: [`Kind::Permission`], [`Kind::NotFound`] if a program is missing or the disk has no
    /// file system, [`Kind::Usage`] if the disk has other content or a file system was to be made
    /// and the disk is not blank, and errors of the system's tools; the error of the disk itself,
    /// if it failed, as [`DiskFile::session`] recorded it.
    pub fn set_up(
        request: &MountRequest<'_>,
        from: DiskFile<'_>,
        mountpoint: PathBuf,
        before: impl FnOnce() -> Result<()>,
        released: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let what = format!("cannot mount the disk at {}", mountpoint.display());
        let set_up = MountSetup { from, what };
        match MethodChoice::of(request.via) {
            MethodChoice::Loop => Self::by_loop(request, &set_up, mountpoint, before),
            MethodChoice::Program(choice) => {
                Self::by_program(request, &set_up, mountpoint, &choice, before, released)
            }
        }
    }

    fn by_loop(
        request: &MountRequest<'_>,
        set_up: &MountSetup<'_>,
        mountpoint: PathBuf,
        before: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let read_only = request.read_only;
        let device = LoopDevice::attach(set_up.from.file, read_only)
            .map_err(|e| set_up.prefer_disk_error(e.context(&set_up.what), request.mkfs))?;
        let found = set_up.content(device.node())?;
        let without_journal = found.as_ref().filter(|_| read_only).and_then(DiskContent::skip_journal_option);
        let PreparedFs { kind, made } = set_up.prepare(device.node(), found, Owner::ROOT, request)?;
        before()?;
        let mut options = vec![if read_only { "ro" } else { "rw" }];
        options.extend(request.mount_options);
        let options = options.join(",");
        let args = [
            OsStr::new("-o"),
            OsStr::new(&options),
            OsStr::new("--"),
            device.node().as_os_str(),
            mountpoint.as_os_str(),
        ];
        // At an automount, the kernel blocks every process outside of systemd's process group.
        let waits = mount_table::is_automount(&mountpoint)?;
        let run = if waits { command::run_checked_in_our_group } else { command::run_checked };
        run(&set_up.what, "mount", &args).map_err(|e| {
            set_up.mount_error(e, &Mountable { kind, without_journal }, request.mount_options)
        })?;
        let (below, log) = (MountBackend::Loop(device), Arc::clone(request.log));
        let mut mounted = MountedFs { mountpoint, backend: below, was_made: made, log };
        if let MountBackend::Loop(device) = &mut mounted.backend {
            device.detach_when_unused()?;
        }
        Ok(mounted)
    }

    fn by_program(
        request: &MountRequest<'_>,
        set_up: &MountSetup<'_>,
        mountpoint: PathBuf,
        choice: &ProgramChoice,
        before: impl FnOnce() -> Result<()>,
        released: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let (file, read_only) = (set_up.from.file, request.read_only);
        let found = set_up.content(file)?;
        let without_journal = found.as_ref().filter(|_| read_only).and_then(DiskContent::skip_journal_option);
        let kind = found.as_ref().and_then(DiskContent::file_system).or(request.mkfs);
        // Check the method before anything is made that could not be mounted.
        let program = choice.for_type(kind).map_err(|e| e.context(&set_up.what))?;
        check_options(&set_up.what, program, request.mount_options)?;
        let PreparedFs { kind, made } = set_up.prepare(file, found, Owner::of_this_process(), request)?;
        if program == Program::Fuse2fs && !made && !read_only {
            fsck::repair(file).map_err(|e| set_up.prefer_disk_error(e.context(&set_up.what), Some(&kind)))?;
        }
        before()?;
        let content = Mountable { kind, without_journal };
        let how = ProgramRequest {
            what: &set_up.what,
            program,
            disk: set_up.from.disk,
            file,
            kind: &content.kind,
            mountpoint: &mountpoint,
            options: request.mount_options,
            read_only,
        };
        let mount = ProgramMount::start(&how, released)
            .map_err(|e| set_up.mount_error(e, &content, request.mount_options))?;
        Ok(MountedFs {
            mountpoint,
            backend: MountBackend::Program(mount),
            was_made: made,
            log: Arc::clone(request.log),
        })
    }

    /// Whether the file system is not mounted any more, as far as its server reports; `handles` is
    /// the number of open files on the disk. Errors: the program that served it failed. The mount
    /// then still exists, and fails all requests.
    pub fn is_unmounted(&self, handles: u64) -> Result<bool> {
        match &self.backend {
            MountBackend::Loop(_) => Ok(handles == 0),
            MountBackend::Program(program) => {
                program.exit_result().map_or(Ok(false), |how| how.map(|()| true))
            }
        }
    }

    /// Whether this mount table entry is our mount from that loop device.
    fn is_our_mount(&self, entry: &mount_table::MountEntry, device: &LoopDevice) -> bool {
        entry.mountpoint == self.mountpoint && entry.is_mounted_from(device.node(), device.number())
    }

    /// Whether it is mounted and not covered by another mount.
    fn is_on_top(&self) -> Result<bool> {
        match &self.backend {
            MountBackend::Loop(device) => {
                Ok(mount_table::at(&self.mountpoint)?.is_some_and(|top| self.is_our_mount(&top, device)))
            }
            MountBackend::Program(program) => program.is_on_top(),
        }
    }

    /// Starts a sync of the file system, if it is still mounted. The channel is closed when the
    /// sync is done; it carries the error if the sync failed.
    ///
    /// A child process syncs and unmounts: a server thread that waits for the server's own disk
    /// would keep the server from dying when it is killed.
    pub fn sync(&self) -> Result<Receiver<Error>> {
        let (done, waiting) = channel();
        if self.is_on_top()? {
            let at = self.mountpoint.clone();
            let sync = move || {
                let what = "cannot sync the file system";
                let e = match command::run("sync", &[OsStr::new("-f"), OsStr::new("--"), at.as_os_str()]) {
                    Ok(finished) if finished.success() => return,
                    Ok(finished) => Error::new(Kind::Io, what).found(finished.message()),
                    Err(e) => e.context(what),
                };
                let _ = done.send(e);
            };
            std::thread::Builder::new()
                .name("lacuna-sync".into())
                .spawn(sync)
                .map_err(|e| Error::io("cannot sync the file system", &e))?;
        }
        Ok(waiting)
    }

    /// Unmounts, unless it is unmounted already. Errors: [`Kind::Busy`] if it is in use. Calls
    /// `detached` when it cannot be used any more and the disk still accepts the file system's
    /// remaining writes: as soon as this is detected, perhaps on another thread, and at the latest
    /// before this returns without an error.
    ///
    /// On success a program that served it has ended. [`MountedFs::is_unmounted`] reports whether
    /// it failed; but the program may not report that the disk refused some of its last writes, so
    /// the caller must check the failures of the disk as well. Until the program has ended, the
    /// disk must wait for cover as before. Errors if the program has not ended: [`Kind::Busy`], and
    /// [`Kind::NoCover`] if its writes wait for cover in vain. It then goes on, and `released` is
    /// called when it has ended.
    pub fn unmount(&mut self, detached: impl FnOnce() + Send) -> Result<()> {
        let device = match &self.backend {
            MountBackend::Loop(device) => device,
            MountBackend::Program(mount) => return mount.unmount(detached),
        };
        let mine = |e: &mount_table::MountEntry| self.is_our_mount(e, device);
        if !mount_table::entries()?.iter().any(mine) {
            detached();
            return Ok(());
        }
        if !self.is_on_top()? {
            return Err(covered_error(&self.mountpoint));
        }
        let is_gone = || mount_table::entries().is_ok_and(|entries| !entries.iter().any(mine));
        // Taken by the first thread that sees the mount gone.
        let detached = Mutex::new(Some(detached));
        let report_detached = || {
            let untold = detached.lock().take();
            if let Some(detached) = untold {
                detached();
            }
        };
        let (done, ended) = channel::<()>();
        let finished = std::thread::scope(|scope| {
            let (is_gone, tell) = (&is_gone, &report_detached);
            let watch_table = move || {
                while ended.recv_timeout(DETACH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    // A failure to read the table is retried here; at the end it is an error.
                    if is_gone() {
                        return tell();
                    }
                }
            };
            // Without this thread the unmount may wait for cover that does not come.
            let thread = std::thread::Builder::new().name("lacuna-unmount".into());
            let _ = thread.spawn_scoped(scope, watch_table);
            let args = ["--internal-only", "--"].map(OsStr::new);
            // Without mount helpers: umount.lacuna would ask this server, and wait for it.
            let finished = command::run("umount", &[&args[..], &[self.mountpoint.as_os_str()]].concat());
            drop(done);
            finished
        })?;
        let left = mount_table::entries()?.iter().any(mine);
        if !finished.success() && left {
            return Err(busy_or_failed(&self.mountpoint, &finished));
        }
        report_detached();
        Ok(())
    }
}

impl Drop for MountedFs {
    fn drop(&mut self) {
        // After an orderly close this does nothing.
        if let Err(e) = self.unmount(|| {}) {
            (self.log)(&e.context("cannot remove all parts of the mount"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_blamed_only_where_it_can_be_the_reason() {
        let refused = |found: &str| Error::new(Kind::Other, "cannot mount the disk at /mnt").found(found);
        for found in [
            "mount: /mnt: cannot mount /dev/loop0 read-only.",
            "mount: /mnt: fsconfig() failed: Read-only file system.",
            "fuse2fs: Journal needs recovery; running `e2fsck -E journal_only' is required.",
        ] {
            assert!(is_of_journal(&refused(found)), "{found}");
        }
        let full = "fuse: mountpoint is not empty / fuse2fs: Writing to the journal is not supported.";
        for found in [full, "mount: /mnt: wrong fs type, bad option, bad superblock on /dev/loop0."] {
            assert!(!is_of_journal(&refused(found)), "{found}");
        }
    }
}
