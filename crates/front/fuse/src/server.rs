//! The server of a mount: it registers an instance, waits until a client, a signal or an unmount
//! ends it, takes the mount down, and answers the clients that wait for that.

use crate::reports::Reports;
use lacuna_contracts::{Error, Kind, Naming, Result};
use lacuna_daemon::{
    ClosingClient, Event, Front, Identity, IfMissing, Instance, Jobs, MadeMountpoint, MountKind, MountRecord,
    MountedBy, Record, Server, ServerState, Service, StatusSource, WakeUps, check_mountpoint,
    clear_mountpoint, default_run_base, ends_later,
};
use lacuna_mount::{ServerLog, Watch, is_mounted, is_mounted_elsewhere};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The mount of a server. Dropping it takes down every part that no process uses.
pub trait Served {
    /// The reason why it must stay open at any request of a client, if there is one.
    fn must_stay(&self) -> Option<Error> {
        None
    }

    /// Whether it is not mounted anywhere any more, checked after the FUSE file `disk` was closed.
    fn is_gone(&mut self) -> bool {
        false
    }

    /// Whether it is in use although its file system gets no requests, as far as its `server`
    /// knows.
    fn is_used(&self, server: &Server) -> bool;

    /// Unmounts everything. A busy part stays, and so does everything below it.
    fn take_down(&mut self) -> Result<()>;

    /// Makes durable all writes of programs until now. Failures go to the log.
    fn flush(&self);

    /// Closes the disk or vault, after [`Served::take_down`]. Returns its failure if it had one.
    fn close(&mut self) -> Result<()>;
}

/// The registered instance of a server, before anything is mounted.
pub(crate) struct Claim {
    // In drop order.
    made: Option<MadeMountpoint>,
    instance: Instance,
    identity: Identity,
    record: Record,
    mountpoint: PathBuf,
    events: Receiver<Event>,
    pub reports: Reports,
}

/// How a server works for clients, and when it ends without a client's request.
pub(crate) struct Terms {
    pub jobs: Jobs,
    pub naming: Naming,
    pub idle_timeout: Option<Duration>,
    /// Whether logs must not contain the reason of a refused close (deniability contract).
    pub private: bool,
}

/// The canonical path of a mount point with nothing mounted, after the mount of a dead server was
/// cleared away there. If `makes`, it may be missing.
pub(crate) fn free_mountpoint(given: &Path, run_base: Option<&Path>, makes: bool) -> Result<PathBuf> {
    clear_mountpoint(given, run_base)?;
    check_mountpoint(given, run_base, if makes { IfMissing::Make } else { IfMissing::Refuse })
}

impl Claim {
    /// Registers the instance for this mount, and cleans up after a dead server there. `run_base`
    /// is the directory of the run directories, if not that of this user. Errors: [`Kind::Busy`]
    /// while another server has the instance.
    pub(crate) fn new(
        mount: MountRecord,
        identity: Identity,
        read_only: bool,
        run_base: Option<&Path>,
        log: &ServerLog,
    ) -> Result<Self> {
        let base = run_base.map_or_else(default_run_base, |base| Ok(base.to_owned()))?;
        let mountpoint = mount.mountpoint.clone();
        let instance = Instance::of_mount(&base, &mountpoint)?;
        let record = Record::new(&identity, Front::Fuse(mount), read_only);
        // Written before there is anything to clean up.
        instance.write(&record)?;
        let (wake, events) = channel();
        let reports = Reports { watch: Arc::new(Watch::default()), events: wake, log: Arc::clone(log) };
        Ok(Claim { made: None, instance, identity, record, mountpoint, events, reports })
    }

    /// Makes the mount point if it may be made and is missing, and adds that to the record. The
    /// caller mounts next.
    pub(crate) fn make_mountpoint(&mut self, makes: bool) -> Result<()> {
        self.made = if makes { MadeMountpoint::make(&self.mountpoint)? } else { None };
        let Some(made) = &self.made else { return Ok(()) };
        self.record.made_mountpoint = Some(made.identity());
        self.instance.write(&self.record)
    }

    /// Makes the directory for the FUSE mount below a file system.
    pub(crate) fn make_fuse(&self) -> Result<PathBuf> {
        self.instance.make_fuse()
    }

    /// Adds to the record how the file system of the disk is mounted.
    pub(crate) fn note(&mut self, by: MountedBy) -> Result<()> {
        if let Front::Fuse(mount) = &mut self.record.front {
            mount.kind = MountKind::FileSystem { by: Some(by) };
        }
        self.instance.write(&self.record)
    }

    /// Begins to answer clients, with the mount in place. Status requests get the counters of
    /// `source`.
    pub(crate) fn serve<S: Served>(
        mut self,
        served: S,
        source: Arc<dyn StatusSource>,
        terms: Terms,
    ) -> Result<MountServer<S>> {
        // The mount covers the directory by now.
        if let Some(made) = &mut self.made {
            made.forbid();
        }
        let closing = self.reports.clone();
        let service = Service {
            record: self.record,
            identity: self.identity,
            sources: vec![source],
            state: Arc::clone(&self.reports.watch) as Arc<dyn ServerState>,
            jobs: terms.jobs,
            naming: terms.naming,
            close: Box::new(move |waiting| closing.wake(Event::Close(waiting))),
        };
        let server = Server::start(&self.instance, service)?;
        Ok(MountServer {
            server,
            served,
            made: self.made,
            instance: self.instance,
            mountpoint: self.mountpoint,
            events: self.events,
            reports: self.reports,
            wake_ups: WakeUps::new(terms.idle_timeout),
            private: terms.private,
        })
    }
}

/// Asks a server to end, from any thread.
#[derive(Clone)]
pub struct Stopper(Reports);

impl Stopper {
    /// Asks the server to unmount and end. If the file system is busy, the server logs that and
    /// continues.
    pub fn request(&self) {
        self.0.wake(Event::Stop);
    }
}

/// A served mount. [`MountServer::wait`] serves it; dropping it instead takes down every part that
/// no process uses.
pub struct MountServer<S> {
    // In drop order.
    server: Server,
    pub(crate) served: S,
    made: Option<MadeMountpoint>,
    instance: Instance,
    mountpoint: PathBuf,
    events: Receiver<Event>,
    reports: Reports,
    wake_ups: WakeUps,
    private: bool,
}

impl<S: Served> MountServer<S> {
    /// Whether it is being closed, for a caller that waits for the end on another thread.
    pub fn closing(&self) -> impl Fn() -> bool + Send + Sync + use<S> {
        let watch = Arc::clone(&self.reports.watch);
        move || watch.closing()
    }

    /// A handle that ends the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.reports.clone())
    }

    /// Serves until it is closed: by [`Stopper::request`], [`lacuna_daemon::close`], or a plain
    /// `umount`. Returns after everything is unmounted and closed, with the failure of closing if
    /// there was one.
    pub fn wait(mut self) -> Result<()> {
        // The sender in `self` keeps the channel alive.
        while let Some(event) = self.wake_ups.next(&self.events, &self.reports.watch) {
            let event = match (event, self.served.must_stay()) {
                (Event::DiskReleased, _) if !self.served.is_gone() => continue,
                (Event::Idle, Some(_)) => continue,
                (Event::Idle, None) if self.is_used_unseen() => continue,
                (Event::Close(waiting), Some(e)) => {
                    waiting.refuse(&self.refusal(e));
                    continue;
                }
                (event, _) => event,
            };
            self.reports.watch.set_closing(true);
            let down = self.served.take_down();
            self.reports.watch.set_closing(down.is_ok());
            match (down, event) {
                (Ok(()), Event::Close(waiting)) => return self.finish(Some(waiting)),
                (Ok(()), _) => return self.finish(None),
                (Err(e), Event::Close(waiting)) => waiting.refuse(&self.refusal(e)),
                // A process uses it, and no client asked to close it.
                (Err(e), Event::Idle) if e.kind() == Kind::Busy && self.is_mounted() => {}
                (Err(e), Event::Stop) => {
                    if self.wake_ups.try_again() {
                        self.serve_on(ends_later(e));
                    }
                }
                (Err(e), _) => self.serve_on(e),
            }
        }
        self.finish(None)
    }

    /// Ends the server without having served. A busy part stays mounted, and its requests fail
    /// afterwards.
    ///
    /// Errors: the failure of closing if there was one, or else the reason why it stays mounted.
    pub fn end(mut self) -> Result<()> {
        self.reports.watch.set_closing(true);
        let down = self.served.take_down();
        self.finish(None).and(down)
    }

    /// Whether it is used without requests to the file system, or is mounted at a place that an
    /// unmount here would not reach; closing would then expose the directory below to writes.
    fn is_used_unseen(&self) -> bool {
        self.served.is_used(&self.server) || is_mounted_elsewhere(&self.mountpoint)
    }

    /// Whether the mount table lists it. Returns false if the table cannot be read.
    fn is_mounted(&self) -> bool {
        is_mounted(&self.mountpoint).is_ok_and(|mounted| mounted)
    }

    /// The reason why it is not closed.
    ///
    /// Deniability contract: if only some refusals were private, those would reveal a hidden level.
    fn refusal(&self, e: Error) -> Error {
        if self.private { e.private() } else { e }
    }

    /// Logs why it is not closed. A kill may follow a signal, so all writes of programs until now
    /// are made durable.
    fn serve_on(&self, why: Error) {
        (self.reports.log)(&why.context("still serving"));
        self.served.flush();
    }

    /// Closes the disk or vault, removes the run directory and a mount point that was made, and
    /// answers the clients that wait for that.
    fn finish(self, waiting: Option<ClosingClient>) -> Result<()> {
        let MountServer { server, mut served, made, instance, events, reports, .. } = self;
        // The jobs of clients use the disk or vault, so they end before it is closed.
        server.end_work();
        let result = served.close();
        drop((server, served));
        if let Some(Err(e)) = made.map(MadeMountpoint::remove) {
            (reports.log)(&e);
        }
        let closes = events.try_iter().filter_map(|event| match event {
            Event::Close(waiting) => Some(waiting),
            _ => None,
        });
        for client in waiting.into_iter().chain(closes) {
            client.answer(&result);
        }
        if let Err(e) = instance.end() {
            (reports.log)(&e);
        }
        result
    }
}
