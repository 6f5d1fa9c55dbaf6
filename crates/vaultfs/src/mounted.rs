//! Mounting a vault, serving it, and taking it down again.

use crate::device::Access;
use crate::filesystem::VaultFilesystem;
use crate::front::Front;
use crate::seek::Way;
use crate::served::Served;
use crate::session::FuseMount;
use lacuna_core::{Error, Kind, Naming, Result, Term};
use lacuna_daemon::{
    Attendance, Attendant, Control, Event, Idle, Record, RunDirectory, Waiting, await_dying,
    check_mountpoint, clean_up, close, default_run_base, died, ends_later, seconds_now,
};
use lacuna_mount::{Log, RELEASE_LIMIT, Watch, is_mounted_elsewhere, unmount_fuse};
use lacuna_vault::Vault;
use std::any::Any;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// What to mount, where, and how.
pub struct MountRequest {
    /// The vault. [`Mounted`] closes it at the end.
    pub vault: Arc<Vault>,
    /// The location, for the record.
    pub location: String,
    /// An existing directory on which nothing is mounted but what a server left there that died.
    pub mountpoint: PathBuf,
    /// Let other users in, as the permissions of files say. For users other than root the system must allow it.
    pub allow_other: bool,
    /// Refuse changes even if the vault takes them.
    pub read_only: bool,
    /// Let no program in it be run.
    pub no_exec: bool,
    /// Close it when nothing was asked of it for so long and nobody uses it.
    pub idle_timeout: Option<Duration>,
    /// What tells the vault's directory from others whatever its path is, for the record; may be empty.
    pub place: String,
    /// Who says what became of that directory.
    pub attendant: Option<Arc<dyn Attendant>>,
    /// Directory of the run directories, if not [`default_run_base`].
    pub run_base: Option<PathBuf>,
    /// Where messages of the running server go.
    pub log: Log,
    /// How clients that close it, or ask for its status, are told of settings.
    pub naming: Naming,
    /// What else is held as long as the vault is open. It is let go after the vault is closed, and before anybody hears of
    /// that.
    pub held: Option<Box<dyn Any + Send>>,
}

impl MountRequest {
    /// A request with everything else at its default; messages go nowhere.
    pub fn new(vault: Arc<Vault>, location: impl Into<String>, mountpoint: impl Into<PathBuf>) -> Self {
        MountRequest {
            vault,
            location: location.into(),
            mountpoint: mountpoint.into(),
            allow_other: false,
            read_only: false,
            no_exec: false,
            idle_timeout: None,
            place: String::new(),
            attendant: None,
            run_base: None,
            log: Arc::new(|_| {}),
            naming: Term::quoted,
            held: None,
        }
    }
}

/// Ends a [`Mounted`] from anywhere, such as a signal handler's thread.
#[derive(Clone)]
pub struct Stopper(Sender<Event>);

impl Stopper {
    /// Asks the server to unmount and end. If the file system is in use it stays, and the log says why.
    pub fn request(&self) {
        let _ = self.0.send(Event::Stop);
    }
}

/// A mounted vault. [`Mounted::wait`] serves it; dropping it takes everything down without a word.
pub struct Mounted {
    control: Option<Control>,
    fuse: FuseMount,
    run: RunDirectory,
    vault: Arc<Vault>,
    watch: Arc<Watch>,
    events: Receiver<Event>,
    wake: Sender<Event>,
    idle: Idle,
    record: Record,
    log: Log,
    held: Option<Box<dyn Any + Send>>,
}

impl Mounted {
    /// Mounts. On failure everything that was set up is taken down again and the vault is closed.
    ///
    /// Errors: [`Kind::Busy`] if something is mounted there, [`Kind::NotFound`] and [`Kind::Usage`] if it is no directory,
    /// [`Kind::Permission`] if the system does not allow it.
    pub fn start(request: MountRequest) -> Result<Self> {
        let vault = Arc::clone(&request.vault);
        let log = Arc::clone(&request.log);
        Self::set_up(request).inspect_err(|_| {
            if let Err(e) = vault.close() {
                log(&e.context("cannot close the vault that was not mounted"));
            }
        })
    }

    fn set_up(request: MountRequest) -> Result<Self> {
        let base = request.run_base.clone().map_or_else(default_run_base, Ok)?;
        await_dying(&request.mountpoint, request.run_base.as_deref())?;
        clear_dead(&request.mountpoint, request.run_base.as_deref())?;
        let mountpoint = check_mountpoint(&request.mountpoint, request.run_base.as_deref())?;
        let run = RunDirectory::claim(&base, &mountpoint)?;
        clean_up(run.paths(), None)?;
        let (wake, events) = channel();
        let watch = Arc::new(Watch::default());
        let record = Record {
            location: request.location,
            mountpoint: mountpoint.clone(),
            loop_device: None,
            pid: std::process::id(),
            raw: false,
            read_only: request.read_only,
            format: "vault".to_owned(),
            since: seconds_now(),
            vault: true,
            via: None,
            in_pool: None,
            place: request.place,
        };
        // Written before there is anything to clean up.
        run.write_record(&record)?;
        let way = Way::default();
        let front = Front::new(
            Arc::clone(&request.vault),
            request.read_only,
            Arc::clone(&way),
            Arc::clone(&watch),
            wake.clone(),
            Arc::clone(&request.log),
        )?;
        let traffic = front.traffic.clone();
        let access = Access {
            allow_other: request.allow_other,
            read_only: request.read_only,
            no_exec: request.no_exec,
        };
        let filesystem = VaultFilesystem::new(front);
        let fuse = FuseMount::start(filesystem, &way, &mountpoint, access, Arc::clone(&watch))?;
        let (at, naming) = (run.paths().control(), request.naming);
        let idle = Idle::new(request.idle_timeout);
        let served = Served { vault: Arc::clone(&request.vault), traffic };
        let attending = (Attendance::of(request.attendant, Arc::new(|| Ok(())), naming), naming);
        let control = Some(Control::start(&at, served, Arc::clone(&watch), wake.clone(), attending)?);
        let MountRequest { vault, log, held, .. } = request;
        Ok(Mounted { control, fuse, run, vault, watch, events, wake, idle, record, log, held })
    }

    /// What is mounted where.
    pub fn record(&self) -> &Record {
        &self.record
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

    /// Serves until someone ends it: [`Stopper::request`], [`lacuna_daemon::close`], or a plain `umount`. Returns when
    /// everything is unmounted and the vault is closed, with the vault's failure if it had one.
    pub fn wait(mut self) -> Result<()> {
        loop {
            // The sender in `self` keeps the channel alive.
            let Some(event) = self.idle.next(&self.events, &self.watch) else { break };
            match event {
                Event::SessionEnded => break,
                Event::DiskReleased => {}
                Event::Close(waiting) => match self.take_down() {
                    Ok(()) => return self.finish(Some(waiting)),
                    Err(e) => waiting.refuse(&e),
                },
                // An unmount here would not reach there, and leave the directory below open to be written.
                Event::Idle if is_mounted_elsewhere(&self.record.mountpoint) => {}
                Event::Idle => match self.take_down() {
                    Ok(()) => return self.finish(None),
                    // In use all the same.
                    Err(e) if e.kind() == Kind::Busy => {}
                    Err(e) => (self.log)(&e.context("still serving, though nothing uses it")),
                },
                Event::Stop => match self.take_down() {
                    Ok(()) => return self.finish(None),
                    Err(e) if self.idle.try_again() => self.serve_on(e),
                    Err(_) => {}
                },
            }
        }
        self.finish(None)
    }

    /// Says why it is not closed. A signal may be followed by a kill: what has come this far is made durable.
    fn serve_on(&self, why: Error) {
        (self.log)(&ends_later(why).context("still serving"));
        if let Err(e) = self.vault.sync() {
            (self.log)(&Error::new(Kind::Io, "cannot make the vault durable").found(e.to_string()));
        }
    }

    /// Unmounts. What is busy stays. The kernel writes everything back before it lets go.
    fn take_down(&mut self) -> Result<()> {
        self.watch.set_closing(true);
        let down = self.fuse.unmount().and_then(|()| {
            if self.watch.wait_ended(RELEASE_LIMIT) {
                return Ok(());
            }
            Err(Error::new(Kind::Busy, format!("cannot close {}", self.record.mountpoint.display()))
                .found("unmounted here, but still in use elsewhere, perhaps in another mount namespace or container")
                .remedy("unmount it there; the server then ends by itself"))
        });
        self.watch.set_closing(down.is_ok());
        down
    }

    /// Closes the vault, lets the run directory go, and answers the clients that wait for that.
    fn finish(self, waiting: Option<Waiting>) -> Result<()> {
        let Mounted { control, fuse, run, vault, events, log, held, .. } = self;
        drop(fuse);
        let result = vault.close();
        drop((control, vault, held));
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

/// Clears away the mount of a server that died there, as its run directory tells it, or the mount's own silence.
fn clear_dead(mountpoint: &Path, run_base: Option<&Path>) -> Result<()> {
    let dead = match fs::metadata(mountpoint) {
        // Who asks while the connection ends hears that it was aborted.
        Err(e) => matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)),
        // The kernel may answer from what it kept.
        Ok(_) => is_left(mountpoint, run_base),
    };
    if !dead {
        return Ok(());
    }
    match close(mountpoint, run_base) {
        // Its record is gone, or lies elsewhere; a mount of ours that nobody serves is of no use to anyone.
        Err(e) if e.kind() == Kind::NotFound => unmount_fuse(
            &std::path::absolute(mountpoint)
                .map_err(|e| Error::io(format!("cannot find {}", mountpoint.display()), &e))?,
        ),
        other => other.map(drop),
    }
}

/// Whether a server that died was mounted there. Where that cannot be told, the check of the mount point says so.
fn is_left(mountpoint: &Path, run_base: Option<&Path>) -> bool {
    let is_there =
        |path: PathBuf| died(run_base).is_ok_and(|left| left.iter().any(|record| record.mountpoint == path));
    mountpoint.canonicalize().is_ok_and(is_there)
}
