//! Opening a disk at a mount point, serving it, and taking it down again.

use crate::filesystem::DiskFilesystem;
use crate::session::FuseMount;
use lacuna_core::{ByteDisk, Disk, Error, Kind, Naming, Result, Term};
use lacuna_daemon::{
    Attendance, Attendant, Control, Event, Idle, InPool, Record, RunDirectory, Waiting, check_mountpoint,
    clean_up, default_run_base, ends_later, seconds_now,
};
use lacuna_mount::{
    Cover, CoverRetry, Follow, Log, MountRequest, Mounted, RELEASE_LIMIT, Watch, Way, check_type, is_mounted,
    is_mounted_elsewhere, lacking_for_fuse,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often it is looked whether a sync waits in vain.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long a sync may keep a server, which could not end, from hearing others.
const SYNC_LIMIT: Duration = Duration::from_secs(30);

/// What to open, where, and how.
#[allow(clippy::struct_excessive_bools)]
pub struct OpenRequest {
    /// The disk. [`Opened`] closes it at the end.
    pub disk: Arc<dyn Disk>,
    /// The location, for the record.
    pub location: String,
    /// The name of the format of the disk, for the record.
    pub format: String,
    /// Which of the disks of its name it is, if it is one in a pool.
    pub in_pool: Option<InPool>,
    /// What tells its file or device from others, whatever its path is.
    pub place: String,
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
    /// The way in which the file system is mounted, if not the one that this process has.
    pub via: Option<Way>,
    /// Whether no log may keep why it is not closed (deniability contract).
    pub private: bool,
    /// More options for `mount -o`, such as `noload` or `discard`.
    pub mount_options: Option<String>,
    /// What the disk has to do with cover, if it is a level.
    pub cover: Cover,
    /// Close it when nothing was asked of it for so long and nobody uses it.
    pub idle_timeout: Option<Duration>,
    /// Directory of the run directories, if not [`default_run_base`].
    pub run_base: Option<PathBuf>,
    /// Where messages of the running server go.
    pub log: Log,
    /// What does longer work on it for clients.
    pub attendant: Option<Arc<dyn Attendant>>,
    /// How clients that close it, or ask for its status, are told of settings.
    pub naming: Naming,
}

impl OpenRequest {
    /// A request with everything else at its default; messages go nowhere.
    pub fn new(disk: Arc<dyn Disk>, location: impl Into<String>, mountpoint: impl Into<PathBuf>) -> Self {
        OpenRequest {
            disk,
            location: location.into(),
            format: String::new(),
            in_pool: None,
            place: String::new(),
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
            attendant: None,
            naming: Term::quoted,
        }
    }
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
    /// The sync that a close began which was given up, if it is still going on.
    syncing: Option<Receiver<Error>>,
    control: Option<Control>,
    fuse: FuseMount,
    run: RunDirectory,
    disk: Arc<CoverRetry>,
    watch: Arc<Watch>,
    events: Receiver<Event>,
    wake: Sender<Event>,
    idle: Idle,
    record: Record,
    log: Log,
    private: bool,
    /// Why the program failed that served the file system, or what it could not write.
    failed: Option<Error>,
    /// How many requests had failed when the closing began that unmounted.
    failures_before: Option<u64>,
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
        let mountpoint = check_mountpoint(&request.mountpoint, request.run_base.as_deref())?;
        let run = RunDirectory::claim(&base, &mountpoint)?;
        clean_up(run.paths(), None)?;
        let read_only = request.read_only || request.disk.read_only();
        let (wake, events) = channel();
        let watch = Arc::new(Watch::default());
        let disk = Arc::new(CoverRetry::new(request.disk, request.cover));
        let bytes = ByteDisk::new(Arc::clone(&disk) as Arc<dyn Disk>);
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
            format: request.format.clone(),
            since: seconds_now(),
            vault: false,
            via: None,
            in_pool: request.in_pool.clone(),
            place: request.place.clone(),
        };
        // Written before there is anything to clean up, and again when the loop device is known.
        run.write_record(&record)?;
        let fuse = FuseMount::start(filesystem, &fuse_at, read_only, Arc::clone(&watch))?;
        let mounted = if request.raw {
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
            let file = fuse.disk_file();
            let released = wake.clone();
            let released = move || _ = released.send(Event::DiskReleased);
            let mounted = Mounted::set_up(&how, (&disk, &bytes, &file), mountpoint, &watch, released)?;
            record.loop_device = mounted.node().map(ToOwned::to_owned);
            record.via = Some(mounted.way().name().to_owned());
            run.write_record(&record)?;
            Some(mounted)
        };
        let (at, naming) = (run.paths().control(), request.naming);
        let follow = mounted.as_ref().map_or_else(|| Arc::new(|| Ok(())) as Follow, Mounted::follow);
        let attendance = Attendance::of(request.attendant, follow, naming);
        let control = Control::start(&at, bytes, Arc::clone(&watch), wake.clone(), (attendance, naming))?;
        let control = Some(control);
        let (log, private) = (request.log, request.private);
        // A program that uses the disk as a file can try again itself; until here the one who opens can.
        disk.hold(mounted.is_some());
        Ok(Opened {
            mounted,
            syncing: None,
            control,
            fuse,
            run,
            disk,
            watch,
            events,
            wake,
            idle: Idle::new(request.idle_timeout),
            record,
            log,
            private,
            failed: None,
            failures_before: None,
        })
    }

    /// What is open where.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether its file system was made now; otherwise it was there already.
    pub fn made_file_system(&self) -> bool {
        self.mounted.as_ref().is_some_and(Mounted::was_made)
    }

    /// Whether it is being closed, for who waits for that elsewhere.
    pub fn closing(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let watch = Arc::clone(&self.watch);
        move || watch.closing()
    }

    /// A handle that ends the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.wake.clone())
    }

    /// Serves until someone closes it: [`Stopper::request`], [`lacuna_daemon::close`], or a plain `umount`. Returns when
    /// everything is unmounted and the disk is closed, with the disk's failure if it had one.
    pub fn wait(mut self) -> Result<()> {
        loop {
            // The sender in `self` keeps the channel alive.
            let Some(event) = self.idle.next(&self.events, &self.watch) else { break };
            let ended_by_itself = match &event {
                Event::DiskReleased => self.is_gone(),
                Event::Stop | Event::Close(_) => false,
                // Deeper levels need its cover, and are in use.
                Event::Idle if self.disk.cover().is_needed() || self.is_used_unseen() => continue,
                Event::Idle | Event::SessionEnded => true,
            };
            let asked = matches!(event, Event::Stop | Event::Close(_));
            if !asked && !ended_by_itself {
                continue;
            }
            let event = match event {
                Event::Close(waiting) if self.disk.cover().is_needed() => {
                    waiting.refuse(&self.refusal(self.gives_cover()));
                    continue;
                }
                other => other,
            };
            self.watch.set_closing(true);
            let down = self.settle().and_then(|()| self.take_down());
            self.watch.set_closing(down.is_ok());
            match (down, event) {
                (Ok(()), Event::Close(waiting)) => return self.finish(Some(waiting)),
                (Ok(()), _) => return self.finish(None),
                (Err(e), Event::Close(waiting)) => waiting.refuse(&self.refusal(e)),
                // Somebody has a file open, and nobody asked to close it.
                (Err(e), Event::Idle) if e.kind() == Kind::Busy && is_mounted(&self.record.mountpoint) => {}
                (Err(e), Event::Stop) => {
                    if self.idle.try_again() {
                        self.serve_on(&ends_later(e));
                    }
                }
                (Err(e), _) => self.serve_on(&e),
            }
        }
        self.finish(None)
    }

    /// Whether it is used in a way that asks nothing of the file system, or would be gone with the server: its file was deleted.
    fn is_used_unseen(&self) -> bool {
        let needs_server = |control: &Control| control.is_at_work() || control.has_deleted_file();
        self.control.as_ref().is_some_and(needs_server) || is_mounted_elsewhere(&self.record.mountpoint)
    }

    /// Says why it is not closed. A signal may be followed by a kill: what programs wrote until now is made durable.
    fn serve_on(&self, why: &Error) {
        (self.log)(&why.clone().context("still serving"));
        // A patient disk was synced before the unmount was tried (`settle`).
        if let Some(mounted) = self.mounted.as_ref().filter(|_| !self.disk.is_patient())
            && let Err(e) = sync(mounted)
        {
            (self.log)(&e);
        }
        if let Err(e) = self.disk.flush_once() {
            (self.log)(&e.context("cannot flush the disk"));
        }
    }

    /// Whether nobody has the file system mounted any more. If the program failed that served it, it stays mounted and fails:
    /// without it, programs would go on writing into the directory below.
    fn is_gone(&mut self) -> bool {
        let Some(mounted) = &self.mounted else { return false };
        match mounted.is_gone(self.watch.disk_handles()) {
            Ok(gone) => gone,
            Err(e) => {
                if self.failed.is_none() {
                    self.note_failure(e);
                }
                false
            }
        }
    }

    /// Keeps why the program failed, for those who ask and for the one who closes, and makes what it wrote durable.
    fn note_failure(&mut self, e: Error) {
        let flushed = self.disk.flush_once();
        self.watch.fail(&e);
        (self.log)(&e);
        if let Err(e) = flushed {
            (self.log)(&e.context("cannot flush the disk"));
        }
        self.failed = Some(e);
    }

    /// Writes everything that programs wrote to the disk while it is still mounted. If no cover comes, the file system stays
    /// mounted and nothing is lost.
    ///
    /// A sync does not reach a program that serves it: that writes what is left when it is unmounted, and waits for cover then.
    fn settle(&mut self) -> Result<()> {
        let by_kernel = |mounted: &&Mounted| mounted.way() == Way::Loop && self.disk.is_patient();
        let Some(mounted) = self.mounted.as_ref().filter(by_kernel) else { return Ok(()) };
        let begun = Instant::now();
        // One that began before does not count: more may have been written since.
        for before in [true, false] {
            let syncing = if before { self.syncing.take() } else { Some(mounted.sync()?) };
            let Some(syncing) = syncing else { continue };
            // What fails there, the unmount tells.
            while matches!(syncing.recv_timeout(LOOK_AGAIN), Err(RecvTimeoutError::Timeout)) {
                if let Some(e) = self.disk.refused_since(begun) {
                    self.syncing = Some(syncing);
                    let shown = self.record.mountpoint.display();
                    return Err(e.context(format!("cannot close {shown}")).remedy(
                        "it stays open, and nothing is lost: write to level 0 while it is being closed",
                    ));
                }
                if !self.disk.is_patient() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Why level 0 is not closed yet.
    fn gives_cover(&self) -> Error {
        Error::new(Kind::Busy, format!("cannot close {}", self.record.mountpoint.display()))
            .found("a deeper level that is still mounted, and gets no cover without this one")
            .expected("deeper levels to be closed first")
            .remedy(format!(
                "close that first, or {}: that closes all its levels in the right order",
                self.record.location
            ))
    }

    /// Why it is not closed.
    ///
    /// Deniability contract: if only some refusals were private, those would tell of a hidden level.
    fn refusal(&self, e: Error) -> Error {
        if self.private { e.private() } else { e }
    }

    /// Unmounts everything. What is busy stays, and so does everything below it.
    fn take_down(&mut self) -> Result<()> {
        if let Some(mounted) = &mut self.mounted {
            let by_program = mounted.way() != Way::Loop;
            let before = *self.failures_before.get_or_insert_with(|| self.watch.failures());
            let detached = AtomicBool::new(false);
            let unmounted = mounted.unmount(|| {
                detached.store(true, Ordering::Release);
                // From a loop device everything that programs wrote is on the disk then. What is left is the mark of a clean unmount.
                self.disk.hold(by_program);
            });
            if let Err(e) = unmounted {
                self.disk.hold(true);
                // One that waits for cover is unmounted as soon as that comes.
                if !detached.into_inner() && e.kind() != Kind::NoCover {
                    self.failures_before = None;
                }
                return Err(e);
            }
            self.disk.hold(false);
            if by_program && self.failed.is_none() {
                // A program may find only now that it cannot write what is left, and say nothing of it.
                let last = || self.watch.last_failure().filter(|_| self.watch.failures() > before);
                self.failed =
                    mounted.is_gone(0).err().or_else(|| last().map(|e| not_written(e, &self.record)));
            }
            if !self.watch.wait_released(RELEASE_LIMIT) {
                self.disk.hold(true);
                return Err(Error::new(Kind::Busy, format!("cannot close {}", self.record.mountpoint.display()))
                    .found(format!(
                        "unmounted here, but {} is still in use elsewhere, perhaps in another mount namespace or container",
                        mounted.node().unwrap_or(&self.record.mountpoint).display()
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

    /// Closes the disk, lets the run directory go, and answers the clients that wait for that.
    fn finish(self, waiting: Option<Waiting>) -> Result<()> {
        let Opened { mounted, control, fuse, run, disk, events, record, log, failed, .. } = self;
        drop((mounted, fuse));
        // Nothing reads the disk for a client any more when it is closed.
        control.iter().for_each(Control::end_work);
        let result = disk.close().map_err(|e| match (e.kind(), disk.cover()) {
            (Kind::NoCover, Cover::Needs(_)) if record.via.as_deref() == Some(Way::Loop.name()) => e.remedy(
                "it is closed, without the mark of a clean unmount: what was written before the closing began is on the disk, and \
                 the file system repairs itself when it is mounted again",
            ),
            (Kind::NoCover, Cover::Needs(_)) if !record.raw => e.remedy(
                "it is closed; what was written last may be lost, and the file system is checked when it is opened again",
            ),
            _ => e,
        });
        if let (Err(_), Some(failed)) = (&result, &failed) {
            log(failed);
        }
        let result = result.and(failed.map_or(Ok(()), Err));
        disk.end();
        drop((control, disk));
        let mut waiting: Vec<Waiting> = waiting.into_iter().collect();
        waiting.extend(events.try_iter().filter_map(|e| match e {
            Event::Close(waiting) => Some(waiting),
            _ => None,
        }));
        for client in waiting {
            client.answer(&result);
        }
        if let Err(e) = run.end() {
            log(&e);
        }
        result
    }
}

/// Writes what programs wrote to the disk. Errors: what failed, and [`Kind::TimedOut`] after [`SYNC_LIMIT`].
fn sync(mounted: &Mounted) -> Result<()> {
    match mounted.sync()?.recv_timeout(SYNC_LIMIT) {
        Ok(e) => Err(e),
        Err(RecvTimeoutError::Disconnected) => Ok(()),
        Err(RecvTimeoutError::Timeout) => Err(Error::new(Kind::TimedOut, "cannot sync the file system")
            .found(format!("a sync that takes longer than {} s", SYNC_LIMIT.as_secs()))),
    }
}

/// The error of a program that could not write all that it had to write when it was unmounted.
fn not_written(e: Error, record: &Record) -> Error {
    e.context(format!("cannot write everything that was written at {}", record.mountpoint.display())).remedy(
        "it is closed; what was written last and not fsynced may be lost, and the file system is checked when it is opened again",
    )
}

fn check_request(request: &OpenRequest) -> Result<()> {
    let usage = |what: &str, found: &str| Error::new(Kind::Usage, what).found(found);
    if let Some(wanted) = &request.mkfs {
        check_type(wanted)?;
        if request.raw {
            return Err(usage("cannot make a file system in raw mode", "a file system to make, too"));
        }
        if request.read_only || request.disk.read_only() {
            return Err(usage("cannot make a file system", "a disk opened read-only"));
        }
    }
    if request.raw && request.mount_options.is_some() {
        return Err(usage("cannot pass mount options in raw mode", "mount options, too"));
    }
    if let Some(lacking) = lacking_for_fuse() {
        return Err(lacking);
    }
    if request.raw { Ok(()) } else { Way::check(request.via, request.mkfs.as_deref()) }
}
