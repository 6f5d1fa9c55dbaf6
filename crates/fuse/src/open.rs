//! Opening a disk at a mount point, serving it, and taking it down again.

use crate::control::{Control, Waiting};
use crate::filesystem::DiskFilesystem;
use crate::loop_device::LoopDevice;
use crate::run_directory::{Record, RunDirectory, default_run_base};
use crate::session::{FuseMount, busy_or_failed};
use crate::shell_word::shell_word;
use crate::watch::Watch;
use crate::{close, mkfs, mount_table, tool};
use lacuna_core::{ByteDisk, Disk, Error, Kind, Result};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long the kernel may take to let go of the loop device after its last mount is gone. Longer means that
/// the file system is still mounted elsewhere, in another namespace.
pub(crate) const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// Takes what a server has to say while it runs: requests that failed, and why it could not end when asked.
pub type Log = Arc<dyn Fn(&Error) + Send + Sync>;

/// What to open, where, and how.
pub struct OpenRequest {
    /// The disk. [`Opened`] closes it at the end.
    pub disk: Arc<dyn Disk>,
    /// The location, for the record.
    pub location: String,
    /// An existing directory on which nothing is mounted.
    pub mountpoint: PathBuf,
    /// Type of the file system to make if the disk is blank, such as `ext4`.
    pub mkfs: Option<String>,
    /// Mount a file system that is there already instead of refusing to make one.
    pub keep_existing: bool,
    /// Refuse writes even if the disk takes them.
    pub read_only: bool,
    /// Mount only the FUSE file. Needs neither root nor a loop device.
    pub raw: bool,
    /// More options for `mount -o`, such as `noload` or `discard`.
    pub mount_options: Option<String>,
    /// Directory of the run directories, if not [`default_run_base`].
    pub run_base: Option<PathBuf>,
    /// Where messages of the running server go.
    pub log: Log,
}

impl OpenRequest {
    /// A request with everything else at its default; messages go nowhere.
    pub fn new(disk: Arc<dyn Disk>, location: impl Into<String>, mountpoint: impl Into<PathBuf>) -> Self {
        OpenRequest {
            disk,
            location: location.into(),
            mountpoint: mountpoint.into(),
            mkfs: None,
            keep_existing: false,
            read_only: false,
            raw: false,
            mount_options: None,
            run_base: None,
            log: Arc::new(|_| {}),
        }
    }
}

/// What wakes the server.
pub(crate) enum Event {
    /// A signal or the program's own wish.
    Stop,
    /// A client asked, and waits.
    Close(Waiting),
    /// Nothing has the FUSE file `disk` open any more.
    DiskReleased,
    /// The FUSE connection is over.
    SessionEnded,
}

/// Asks a server to end, from any thread.
#[derive(Clone)]
pub struct Stopper(Sender<Event>);

impl Stopper {
    /// Asks it to unmount and end. If the file system is busy the server says so in its log and goes on.
    pub fn request(&self) {
        let _ = self.0.send(Event::Stop);
    }
}

/// A disk that is mounted and served. [`Opened::wait`] keeps it so; dropping it instead takes down what nobody
/// uses.
pub struct Opened {
    // In the order in which they must go.
    mounted: Option<Mounted>,
    control: Option<Control>,
    fuse: FuseMount,
    run: RunDirectory,
    disk: Arc<dyn Disk>,
    watch: Arc<Watch>,
    events: Receiver<Event>,
    wake: Sender<Event>,
    record: Record,
    log: Log,
}

/// The file system on the loop device. Dropping it unmounts it if nobody uses it.
struct Mounted {
    mountpoint: PathBuf,
    number: Option<String>,
    device: LoopDevice,
    /// Whether the file system was made for this.
    made: bool,
}

impl Opened {
    /// Mounts. On failure everything that was set up is taken down again and the disk is closed.
    pub fn start(request: OpenRequest) -> Result<Self> {
        let disk = Arc::clone(&request.disk);
        let log = Arc::clone(&request.log);
        Self::set_up(request).inspect_err(|_| {
            if let Err(e) = disk.close() {
                log(&e.context("cannot close the disk that was not mounted"));
            }
        })
    }

    fn set_up(request: OpenRequest) -> Result<Self> {
        check_request(&request)?;
        let base = request.run_base.clone().map_or_else(default_run_base, Ok)?;
        let mountpoint = check_mountpoint(&request.mountpoint, Some(&base))?;
        let run = RunDirectory::claim(&base, &mountpoint)?;
        close::clean_up(run.paths(), None)?;
        let read_only = request.read_only || request.disk.read_only();
        let (wake, events) = channel();
        let watch = Arc::new(Watch::default());
        let bytes = ByteDisk::new(Arc::clone(&request.disk));
        let filesystem = DiskFilesystem::new(
            bytes.clone(),
            read_only,
            Arc::clone(&watch),
            wake.clone(),
            Arc::clone(&request.log),
        );
        let fuse_at = if request.raw { mountpoint.clone() } else { run.make_fuse()? };
        let mut record = Record {
            location: request.location.clone(),
            mountpoint: mountpoint.clone(),
            loop_device: None,
            pid: std::process::id(),
            raw: request.raw,
            read_only,
        };
        // Written before there is anything to clean up, and again when the loop device is known.
        run.write_record(&record)?;
        let fuse = FuseMount::start(filesystem, &fuse_at, read_only, Arc::clone(&watch))?;
        let mounted = if request.raw {
            None
        } else {
            let mounted =
                Mounted::set_up(&request, &bytes, &fuse.disk_file(), mountpoint, read_only, &watch)?;
            record.loop_device = Some(mounted.device.node().to_owned());
            run.write_record(&record)?;
            Some(mounted)
        };
        let control = Some(Control::start(&run.paths().control(), bytes, Arc::clone(&watch), wake.clone())?);
        let (disk, log) = (request.disk, request.log);
        Ok(Opened { mounted, control, fuse, run, disk, watch, events, wake, record, log })
    }

    /// What is open where.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether its file system was made now; otherwise it was there already.
    pub fn made_file_system(&self) -> bool {
        self.mounted.as_ref().is_some_and(|mounted| mounted.made)
    }

    /// A handle that ends the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.wake.clone())
    }

    /// Serves until someone closes it: [`Stopper::request`], `lacuna close`, or a plain `umount`. Returns when
    /// everything is unmounted and the disk is closed, with the disk's failure if it had one.
    pub fn wait(mut self) -> Result<()> {
        loop {
            // The sender in `self` keeps the channel alive.
            let Ok(event) = self.events.recv() else { break };
            let ended_by_itself = match &event {
                Event::DiskReleased => self.mounted.is_some() && self.watch.disk_handles() == 0,
                Event::SessionEnded => true,
                Event::Stop | Event::Close(_) => false,
            };
            let asked = matches!(event, Event::Stop | Event::Close(_));
            if !asked && !ended_by_itself {
                continue;
            }
            self.watch.set_closing(true);
            let down = self.take_down();
            self.watch.set_closing(down.is_ok());
            match (down, event) {
                (Ok(()), Event::Close(waiting)) => return self.finish(Some(waiting)),
                (Ok(()), _) => return self.finish(None),
                (Err(e), Event::Close(waiting)) => waiting.answer(&Err(e)),
                (Err(e), _) => {
                    // Whoever sent a signal may not be able to wait: a kill that follows shall cost nothing that
                    // has come this far.
                    let flushed = self.disk.flush();
                    (self.log)(&e.context("still serving"));
                    if let Err(e) = flushed {
                        (self.log)(&e.context("cannot flush the disk"));
                    }
                }
            }
        }
        self.finish(None)
    }

    /// Unmounts everything. What is busy stays, and so does everything below it.
    fn take_down(&mut self) -> Result<()> {
        if let Some(mounted) = &mut self.mounted {
            mounted.unmount()?;
            if !self.watch.wait_released(RELEASE_LIMIT) {
                return Err(Error::new(Kind::Busy, format!("cannot close {}", self.record.mountpoint.display()))
                    .found(format!(
                        "unmounted here, but {} is still in use elsewhere, perhaps in another mount namespace or container",
                        mounted.device.node().display()
                    ))
                    .remedy("unmount it there; the server then ends by itself"));
            }
            self.mounted = None;
        }
        self.fuse.unmount()?;
        // Another mount namespace may keep a copy of the FUSE mount alive. It has no data in flight.
        self.watch.wait_ended(RELEASE_LIMIT);
        Ok(())
    }

    /// Closes the disk, lets the run directory go, and answers whoever waits for that.
    fn finish(self, waiting: Option<Waiting>) -> Result<()> {
        let Opened { mounted, control, fuse, run, disk, events, .. } = self;
        drop((mounted, fuse));
        let result = disk.close();
        drop((control, disk));
        let mut waiting: Vec<Waiting> = waiting.into_iter().collect();
        waiting.extend(events.try_iter().filter_map(|e| match e {
            Event::Close(waiting) => Some(waiting),
            _ => None,
        }));
        for client in waiting {
            client.answer(&result);
        }
        drop(run);
        result
    }
}

impl Mounted {
    fn set_up(
        request: &OpenRequest,
        disk: &ByteDisk,
        file: &Path,
        mountpoint: PathBuf,
        read_only: bool,
        watch: &Watch,
    ) -> Result<Self> {
        let what = format!("cannot mount the disk at {}", mountpoint.display());
        // Programs report what the disk told them as a number at best: prefer the disk's own words.
        let from_disk = |e: Error| match watch.first_failure() {
            Some(failure) => failure.context(&what),
            None => offer_others(e),
        };
        let device = LoopDevice::attach(file, read_only).map_err(from_disk)?;
        let found = mkfs::content(device.node());
        // A disk that could not be read is not a blank disk.
        if let Some(failure) = watch.first_failure() {
            return Err(failure.context(&what));
        }
        let found = found?;
        let keep = request.keep_existing && found.as_ref().is_some_and(|found| found.mountable);
        let wanted = request.mkfs.as_deref().filter(|_| !keep);
        let made =
            mkfs::prepare(device.node(), disk, found, wanted).map_err(|e| from_disk(e).context(&what))?;
        let mut options = vec![if read_only { "ro" } else { "rw" }];
        options.extend(request.mount_options.as_deref());
        let options = options.join(",");
        let args = [
            OsStr::new("-o"),
            OsStr::new(&options),
            OsStr::new("--"),
            device.node().as_os_str(),
            mountpoint.as_os_str(),
        ];
        tool::succeed(&what, "mount", &args).map_err(from_disk)?;
        let number = device.number();
        let mut mounted = Mounted { mountpoint, number, device, made };
        mounted.device.detach_when_unused()?;
        Ok(mounted)
    }

    /// Unmounts, unless someone did already or someone uses it ([`Kind::Busy`]).
    fn unmount(&mut self) -> Result<()> {
        let mine = |e: &mount_table::Entry| {
            e.mountpoint == self.mountpoint
                && self.number.as_ref().is_none_or(|number| e.is_on(self.device.node(), number))
        };
        if !mount_table::entries()?.iter().any(mine) {
            return Ok(());
        }
        if !mount_table::at(&self.mountpoint)?.is_some_and(|top| mine(&top)) {
            return Err(Error::new(Kind::Busy, format!("cannot unmount {}", self.mountpoint.display()))
                .found("another file system mounted over it")
                .remedy("unmount that one first"));
        }
        let finished = tool::run("umount", &[OsStr::new("--"), self.mountpoint.as_os_str()])?;
        let left = mount_table::entries()?.iter().any(mine);
        if finished.success() || !left { Ok(()) } else { Err(busy_or_failed(&self.mountpoint, &finished)) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.unmount();
    }
}

fn check_request(request: &OpenRequest) -> Result<()> {
    let usage = |what: &str, found: &str| Error::new(Kind::Usage, what).found(found);
    if let Some(wanted) = &request.mkfs {
        mkfs::check_type(wanted)?;
        if request.raw {
            return Err(usage("cannot make a file system in raw mode", "--mkfs together with --raw"));
        }
        if request.read_only || request.disk.read_only() {
            return Err(usage("cannot make a file system", "a disk opened read-only"));
        }
    }
    if request.raw && request.mount_options.is_some() {
        return Err(usage("cannot pass mount options in raw mode", "mount options together with --raw"));
    }
    if request.raw {
        return Ok(());
    }
    let refused = |found: &str| {
        Error::new(Kind::Permission, "cannot mount a file system from a loop device").found(found)
    };
    if !rustix::process::geteuid().is_root() {
        return Err(offer_others(refused("a user other than root")));
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err(offer_others(refused("no /dev/loop-control")));
    }
    Ok(())
}

/// Adds the ways that need fewer privileges, if privileges are what was lacking.
fn offer_others(error: Error) -> Error {
    if error.kind() != Kind::Permission {
        return error;
    }
    error.remedy(
        "run as root where loop devices are allowed, or use `lacuna serve --socket PATH` (NBD), \
         or `lacuna open --raw LOCATION MOUNTPOINT` (the disk as a file)",
    )
}

/// The canonical path of `given`, if it is a directory on which nothing is mounted. `run_base` is the directory of
/// the run directories, if not [`default_run_base`].
///
/// Errors: [`Kind::NotFound`], [`Kind::Usage`] if it is no directory, [`Kind::Busy`] if something is mounted there,
/// which a server that died may have left.
pub fn check_mountpoint(given: &Path, run_base: Option<&Path>) -> Result<PathBuf> {
    let word = shell_word(given);
    let what = format!("cannot mount at {}", given.display());
    let path = given.canonicalize().map_err(|e| {
        let error = Error::io(&what, &e);
        match e.raw_os_error() {
            Some(libc::ENOENT) => error.remedy(format!("create the directory: mkdir -p {word}")),
            Some(libc::ENOTCONN) => error
                .with_kind(Kind::Busy)
                .remedy("a FUSE server died on the way there; `lacuna status` says whether it was lacuna's"),
            _ => error,
        }
    })?;
    if let Some(top) = mount_table::at(&path)? {
        if close::left_by_dead(&path, &top, run_base) {
            return Err(Error::new(Kind::Busy, what)
                .found("what a lacuna server left mounted there when it died")
                .remedy(format!("clear it away with `lacuna close {word}`, then open again")));
        }
        return Err(Error::new(Kind::Busy, what)
            .found("something mounted there already")
            .remedy(format!("close it (`lacuna close {word}`), unmount it, or choose another directory")));
    }
    if !fs::metadata(&path).map_err(|e| Error::io(&what, &e))?.is_dir() {
        return Err(Error::new(Kind::Usage, what).found("a file").expected("a directory"));
    }
    Ok(path)
}
