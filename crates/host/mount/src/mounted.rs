//! The file system on a disk: made if that is wanted, mounted by one of the methods, and taken down
//! again.

use crate::cover_retry::CoverRetry;
use crate::loop_device::{self, LoopDevice};
use crate::mkfs::{Content, Making, Owner, Prepared};
use crate::mount_method::{Choice, MountMethod, Program, ProgramChoice};
use crate::program_mount::{ProgramMount, ProgramRequest, check_options};
use crate::unmount::{busy_or_failed, mounted_over};
use crate::watch::{ServerLog, Watch};
use crate::{mkfs, mount_method, mount_table, repair, tool};
use lacuna_contracts::{Advice, ByteDisk, Error, Kind, Result, Setting};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How often it is looked whether a file system is detached that is still being unmounted.
const DETACH_INTERVAL: Duration = Duration::from_millis(200);

/// Tells a front end that the disk may have another length.
pub type Follow = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// How to mount.
pub struct MountRequest<'r> {
    /// Type of the file system to make if the disk is blank, such as `ext4`.
    pub mkfs: Option<&'r str>,
    /// Mount a file system that is there already instead of refusing to make one.
    pub keep_existing: bool,
    /// Make it over data of no known kind as well.
    pub overwrite: bool,
    /// More options for `mount -o`, or for the program that mounts.
    pub mount_options: Option<&'r str>,
    /// Mount it so that nothing can be written.
    pub read_only: bool,
    /// The method; without it, the one that this process has.
    pub via: Option<MountMethod>,
    /// Where it is told what stays mounted when all is given up.
    pub log: &'r ServerLog,
}

/// The mounted file system. Dropping it unmounts it if nobody uses it.
pub struct Mounted {
    mountpoint: PathBuf,
    below: Below,
    /// Whether the file system was made for this.
    made: bool,
    log: ServerLog,
}

/// What serves the file system.
enum Below {
    /// The kernel, from a loop device.
    Loop(LoopDevice),
    /// A program.
    Program(ProgramMount),
}

/// A disk to mount, and the file that a front end serves it as.
#[derive(Clone, Copy)]
pub struct DiskFile<'s> {
    /// The disk.
    pub disk: &'s Arc<CoverRetry>,
    /// Its bytes.
    pub bytes: &'s ByteDisk,
    /// The path of the file.
    pub file: &'s Path,
    /// What the threads of the front end know of it.
    pub watch: &'s Watch,
}

/// The setting up of a mount.
struct SetUp<'s> {
    from: DiskFile<'s>,
    /// What fails if it fails, in words.
    what: String,
}

impl SetUp<'_> {
    /// Programs report what the disk told them as a number at best: prefer the disk's own words.
    fn words(&self, e: Error) -> Error {
        match self.from.watch.first_failure() {
            Some(failure) => failure.context(&self.what),
            None => mount_method::offer_others(e),
        }
    }

    /// What is on the disk, looked for in `place`. A disk that could not be read is not a blank
    /// disk.
    fn content(&self, place: &Path) -> Result<Option<Content>> {
        let found = mkfs::content(place);
        self.from.watch.first_failure().map_or(found, |failure| Err(failure.context(&self.what)))
    }

    /// Makes a file system in `place` if that is wanted, with a root directory of `owner`.
    fn prepare(
        &self,
        place: &Path,
        found: Option<Content>,
        owner: Owner,
        request: &MountRequest<'_>,
    ) -> Result<Prepared> {
        let keep = request.keep_existing && found.as_ref().and_then(Content::file_system).is_some();
        let making = Making { wanted: request.mkfs.filter(|_| !keep), overwrite: request.overwrite, owner };
        mkfs::prepare(place, self.from.bytes, found, making).map_err(|e| self.words(e.context(&self.what)))
    }

    /// The error of a mount that failed: for what `journalled` tells, with the option that leaves
    /// the journal aside.
    fn not_mounted(&self, e: Error, journalled: Option<&'static str>, options: Option<&str>) -> Error {
        match journalled {
            Some(option)
                if self.from.watch.first_failure().is_none()
                    && e.kind() == Kind::Other
                    && !options.is_some_and(|options| options.contains(option)) =>
            {
                let advice = Advice::from("if it was not unmounted, as in a copy of a disk in use, give ");
                let what = format!(
                    " {option}: its journal is then left aside, and what was written last is not seen"
                );
                e.remedy(advice.setting(Setting("mount_options")).text(what))
            }
            _ => self.words(e),
        }
    }
}

impl Mounted {
    /// The loop device, if there is one.
    pub fn node(&self) -> Option<&Path> {
        match &self.below {
            Below::Loop(device) => Some(device.node()),
            Below::Program(_) => None,
        }
    }

    /// The method by which it is mounted.
    pub fn method(&self) -> MountMethod {
        match &self.below {
            Below::Loop(_) => MountMethod::Loop,
            Below::Program(mount) => MountMethod::Program(mount.program()),
        }
    }

    /// Lets the loop device follow a disk that has become larger; it can be kept longer than this.
    /// A program that serves the file system has nothing to be told.
    pub fn follow(&self) -> Follow {
        match &self.below {
            Below::Loop(device) => {
                let (node, backing) = (device.node().to_owned(), device.backing().to_owned());
                Arc::new(move || loop_device::follow(&node, &backing))
            }
            Below::Program(_) => Arc::new(|| Ok(())),
        }
    }

    /// Whether its file system was made now; otherwise it was there already.
    pub fn was_made(&self) -> bool {
        self.made
    }

    /// Makes a file system on a disk, if that is wanted, and mounts it. `released` is called when a
    /// program that serves it has ended.
    ///
    /// Errors: [`Kind::Permission`], [`Kind::NotFound`] if a program is missing, [`Kind::Exists`]
    /// where a file system was to be made and something is there, and whatever the system's tools
    /// say; what the disk itself said, if it failed, as [`DiskFile::watch`] knows it.
    pub fn set_up(
        request: &MountRequest<'_>,
        from: DiskFile<'_>,
        mountpoint: PathBuf,
        released: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let what = format!("cannot mount the disk at {}", mountpoint.display());
        let set_up = SetUp { from, what };
        match Choice::of(request.via) {
            Choice::Loop => Self::by_loop(request, &set_up, mountpoint),
            Choice::Program(choice) => Self::by_program(request, &set_up, mountpoint, &choice, released),
        }
    }

    fn by_loop(request: &MountRequest<'_>, set_up: &SetUp<'_>, mountpoint: PathBuf) -> Result<Self> {
        let read_only = request.read_only;
        let device = LoopDevice::attach(set_up.from.file, read_only).map_err(|e| set_up.words(e))?;
        let found = set_up.content(device.node())?;
        let journalled = found.as_ref().filter(|_| read_only).and_then(Content::without_journal);
        let made = set_up.prepare(device.node(), found, Owner::ROOT, request)?.made;
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
        // Of others than those of systemd's group the kernel makes those wait who come to where it
        // waits for a mount.
        let waits = mount_table::is_automount(&mountpoint)?;
        let run = if waits { tool::succeed_in_our_group } else { tool::succeed };
        run(&set_up.what, "mount", &args)
            .map_err(|e| set_up.not_mounted(e, journalled, request.mount_options))?;
        let (below, log) = (Below::Loop(device), Arc::clone(request.log));
        let mut mounted = Mounted { mountpoint, below, made, log };
        if let Below::Loop(device) = &mut mounted.below {
            device.detach_when_unused()?;
        }
        Ok(mounted)
    }

    fn by_program(
        request: &MountRequest<'_>,
        set_up: &SetUp<'_>,
        mountpoint: PathBuf,
        choice: &ProgramChoice,
        released: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let (file, read_only) = (set_up.from.file, request.read_only);
        let found = set_up.content(file)?;
        let journalled = found.as_ref().filter(|_| read_only).and_then(Content::without_journal);
        let kind = found.as_ref().and_then(Content::file_system).or(request.mkfs);
        // Before anything is made that could not be mounted then.
        let program = choice.for_type(kind).map_err(|e| e.context(&set_up.what))?;
        check_options(program, request.mount_options).map_err(|e| e.context(&set_up.what))?;
        let Prepared { kind, made } = set_up.prepare(file, found, Owner::of_this_process(), request)?;
        if program == Program::Fuse2fs && !made && !read_only {
            repair::repair(file).map_err(|e| set_up.words(e.context(&set_up.what)))?;
        }
        let options = request.mount_options;
        let (disk, kind) = (set_up.from.disk, kind.as_str());
        let how = ProgramRequest { program, disk, file, kind, mountpoint: &mountpoint, options, read_only };
        let mount = ProgramMount::start(&how, released)
            .map_err(|e| set_up.not_mounted(e.context(&set_up.what), journalled, options))?;
        Ok(Mounted { mountpoint, below: Below::Program(mount), made, log: Arc::clone(request.log) })
    }

    /// Whether nobody has it mounted any more, as far as what serves it tells; `handles` are the
    /// open files on the disk. Errors: the program that served it failed. What it served is still
    /// mounted then, and fails.
    pub fn is_gone(&self, handles: u64) -> Result<bool> {
        match &self.below {
            Below::Loop(_) => Ok(handles == 0),
            Below::Program(program) => program.ended().map_or(Ok(false), |how| how.map(|()| true)),
        }
    }

    /// Whether this mount is the one from that loop device.
    fn is_mine(&self, entry: &mount_table::Entry, device: &LoopDevice) -> bool {
        entry.mountpoint == self.mountpoint && entry.is_on(device.node(), device.number())
    }

    /// Whether it is mounted, and nothing over it.
    fn is_on_top(&self) -> Result<bool> {
        match &self.below {
            Below::Loop(device) => {
                Ok(mount_table::at(&self.mountpoint)?.is_some_and(|top| self.is_mine(&top, device)))
            }
            Below::Program(program) => program.is_on_top(),
        }
    }

    /// Begins to write everything that programs wrote to the disk, if the file system is still
    /// mounted. What is given back is closed when that is done, after the error if it failed.
    ///
    /// A program of the system does it, as it unmounts: a thread of the server that waits for the
    /// server's own disk would keep the server from dying when it is killed.
    pub fn sync(&self) -> Result<Receiver<Error>> {
        let (done, waiting) = channel();
        if self.is_on_top()? {
            let at = self.mountpoint.clone();
            let sync = move || {
                let what = "cannot sync the file system";
                let e = match tool::run("sync", &[OsStr::new("-f"), OsStr::new("--"), at.as_os_str()]) {
                    Ok(finished) if finished.success() => return,
                    Ok(finished) => Error::new(Kind::Io, what).found(finished.words()),
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

    /// Unmounts, unless someone did already or someone uses it ([`Kind::Busy`]). Calls `detached`
    /// when nobody can use it any more and the disk still takes what the file system has to write:
    /// as soon as that is seen, perhaps from another thread, and at the latest before this returns
    /// without an error.
    ///
    /// A program that served it has then ended. [`Mounted::is_gone`] tells whether it failed; but
    /// of what the disk refused of its last writes it may say nothing, so the failures of the disk
    /// have to be looked at, too. Until it has ended, the disk must wait for cover as before.
    /// Errors of a program that has not ended: [`Kind::Busy`], and [`Kind::NoCover`] if its writes
    /// wait for cover in vain. It goes on then, and `released` is called when it has ended.
    pub fn unmount(&mut self, detached: impl FnOnce() + Send) -> Result<()> {
        let device = match &self.below {
            Below::Loop(device) => device,
            Below::Program(mount) => return mount.unmount(detached),
        };
        let mine = |e: &mount_table::Entry| self.is_mine(e, device);
        if !mount_table::entries()?.iter().any(mine) {
            detached();
            return Ok(());
        }
        if !self.is_on_top()? {
            return Err(mounted_over(&self.mountpoint));
        }
        let is_gone = || mount_table::entries().is_ok_and(|entries| !entries.iter().any(mine));
        // Taken by the first that sees the mount gone.
        let detached = Mutex::new(Some(detached));
        let tell = || {
            let untold = detached.lock().take();
            if let Some(detached) = untold {
                detached();
            }
        };
        let (done, ended) = channel::<()>();
        let finished = std::thread::scope(|scope| {
            let (is_gone, tell) = (&is_gone, &tell);
            let look = move || {
                while ended.recv_timeout(DETACH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    // A table that cannot be read now is read again; at the end that is an error.
                    if is_gone() {
                        return tell();
                    }
                }
            };
            // Without a thread the unmounting may have to wait for cover that does not come.
            let _ = std::thread::Builder::new().name("lacuna-unmount".into()).spawn_scoped(scope, look);
            let args = ["--internal-only", "--"].map(OsStr::new);
            // Without helpers: umount.lacuna would ask this server, and wait for it.
            let finished = tool::run("umount", &[&args[..], &[self.mountpoint.as_os_str()]].concat());
            drop(done);
            finished
        })?;
        let left = mount_table::entries()?.iter().any(mine);
        if !finished.success() && left {
            return Err(busy_or_failed(&self.mountpoint, &finished));
        }
        tell();
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What was closed in order is unmounted by now.
        if let Err(e) = self.unmount(|| {}) {
            (self.log)(&e.context("cannot take everything down"));
        }
    }
}
