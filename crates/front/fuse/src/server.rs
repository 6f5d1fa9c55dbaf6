//! The server of a mount: it registers an instance, waits until a client, a signal or an unmount
//! ends it, takes the mount down, and answers the clients that wait for that.

use crate::session_reporter::SessionReporter;
use lacuna_contracts::{Error, Kind, Result, TermRenderer};
use lacuna_daemon::{
    ClosingClient, ControlServer, EventWaiter, FrontEnd, Identity, IfMissing, Instance, Jobs, MadeMountpoint,
    MountEvent, MountKind, MountRecord, MountedBy, Record, ServerState, Service, StatusSource,
    check_mountpoint, clear_mountpoint, default_run_base, with_retry_hint,
};
use lacuna_mount::{ServerLog, SessionMonitor, is_mounted, is_mounted_elsewhere};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The mount of a server. Dropping it takes down every part that no process uses.
pub trait ServedMount {
    /// The reason why it must stay open at any request of a client, if there is one.
    fn close_refusal(&self) -> Option<Error> {
        None
    }

    /// Whether it is not mounted anywhere any more, checked after the FUSE file `disk` was closed.
    fn is_unmounted(&mut self) -> bool {
        false
    }

    /// Whether it is in use although its file system gets no requests, as far as its `server`
    /// knows.
    fn is_in_use(&self, server: &ControlServer) -> bool;

    /// Unmounts everything. A busy part stays, and so does everything below it.
    fn take_down(&mut self) -> Result<()>;

    /// Makes durable all writes of programs until now. Failures go to the log.
    fn flush(&self);

    /// Closes the disk or vault, after [`ServedMount::take_down`]. Returns its failure if it had
    /// one.
    fn close(&mut self) -> Result<()>;
}

/// The registered instance of a server, before anything is mounted.
pub(crate) struct MountRegistration {
    // In drop order.
    made: Option<MadeMountpoint>,
    instance: Instance,
    identity: Identity,
    record: Record,
    mountpoint: PathBuf,
    events: Receiver<MountEvent>,
    pub reporter: SessionReporter,
}

/// How a server works for clients, and when it ends without a client's request.
pub(crate) struct ServeOptions {
    pub jobs: Jobs,
    pub naming: TermRenderer,
    pub idle_timeout: Option<Duration>,
}

/// The canonical path of a mount point with nothing mounted, after the mount of a dead server was
/// cleared away there. If `makes`, it may be missing.
pub(crate) fn free_mountpoint(given: &Path, run_base: Option<&Path>, makes: bool) -> Result<PathBuf> {
    clear_mountpoint(given, run_base)?;
    check_mountpoint(given, run_base, if makes { IfMissing::Make } else { IfMissing::Refuse })
}

impl MountRegistration {
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
        let record = Record::new(&identity, FrontEnd::Fuse(mount), read_only);
        // Written before there is anything to clean up.
        instance.write(&record)?;
        let (wake, events) = channel();
        let reports = SessionReporter {
            session: Arc::new(SessionMonitor::default()),
            events: wake,
            log: Arc::clone(log),
        };
        Ok(MountRegistration {
            made: None,
            instance,
            identity,
            record,
            mountpoint,
            events,
            reporter: reports,
        })
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
    pub(crate) fn record_method(&mut self, by: MountedBy) -> Result<()> {
        if let FrontEnd::Fuse(mount) = &mut self.record.front {
            mount.kind = MountKind::FileSystem { by: Some(by) };
        }
        self.instance.write(&self.record)
    }

    /// Begins to answer clients, with the mount in place. Status requests get the counters of
    /// `source`.
    pub(crate) fn serve<S: ServedMount>(
        mut self,
        served: S,
        source: Arc<dyn StatusSource>,
        terms: ServeOptions,
    ) -> Result<MountServer<S>> {
        // The mount covers the directory by now.
        if let Some(made) = &mut self.made {
            made.forbid();
        }
        let closing = self.reporter.clone();
        let private = self.identity.private;
        let service = Service {
            record: self.record,
            identity: self.identity,
            sources: vec![source],
            state: Arc::clone(&self.reporter.session) as Arc<dyn ServerState>,
            jobs: terms.jobs,
            naming: terms.naming,
            close: Box::new(move |waiting| closing.send_event(MountEvent::Close(waiting))),
        };
        let server = ControlServer::start(&self.instance, service)?;
        Ok(MountServer {
            server,
            served,
            made: self.made,
            instance: self.instance,
            mountpoint: self.mountpoint,
            events: self.events,
            reporter: self.reporter,
            event_waiter: EventWaiter::new(terms.idle_timeout),
            private,
        })
    }
}

/// Asks a server to end, from any thread.
#[derive(Clone)]
pub struct Stopper(SessionReporter);

impl Stopper {
    /// Asks the server to unmount and end. If the file system is busy, the server logs that and
    /// continues.
    pub fn request(&self) {
        self.0.send_event(MountEvent::Stop);
    }
}

/// A served mount. [`MountServer::wait`] serves it; dropping it instead takes down every part that
/// no process uses.
pub struct MountServer<S> {
    // In drop order.
    server: ControlServer,
    pub(crate) served: S,
    made: Option<MadeMountpoint>,
    instance: Instance,
    mountpoint: PathBuf,
    events: Receiver<MountEvent>,
    reporter: SessionReporter,
    event_waiter: EventWaiter,
    /// Whether its errors are private.
    private: bool,
}

impl<S: ServedMount> MountServer<S> {
    /// Whether it is being closed, for a caller that waits for the end on another thread.
    pub fn closing(&self) -> impl Fn() -> bool + Send + Sync + use<S> {
        let watch = Arc::clone(&self.reporter.session);
        move || watch.is_closing()
    }

    /// A handle that ends the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.reporter.clone())
    }

    /// Serves until it is closed: by [`Stopper::request`], [`lacuna_daemon::close`], or a plain
    /// `umount`. Returns after everything is unmounted and closed, with the failure of closing if
    /// there was one.
    pub fn wait(mut self) -> Result<()> {
        // The sender in `self` keeps the channel alive.
        while let Some(event) = self.event_waiter.next(&self.events, &self.reporter.session) {
            let event = match (event, self.served.close_refusal()) {
                (MountEvent::DiskReleased, _) if !self.served.is_unmounted() => continue,
                (MountEvent::Idle, Some(_)) => continue,
                (MountEvent::Idle, None) if self.is_used_without_requests() => continue,
                (MountEvent::Close(waiting), Some(e)) => {
                    waiting.refuse(&self.mark_confidential(e));
                    continue;
                }
                (event, _) => event,
            };
            self.reporter.session.set_closing(true);
            let down = self.served.take_down();
            self.reporter.session.set_closing(down.is_ok());
            match (down, event) {
                (Ok(()), MountEvent::Close(waiting)) => return self.finish(Some(waiting)),
                (Ok(()), _) => return self.finish(None),
                (Err(e), MountEvent::Close(waiting)) => waiting.refuse(&self.mark_confidential(e)),
                // A process uses it, and no client asked to close it.
                (Err(e), MountEvent::Idle) if e.kind() == Kind::Busy && self.is_mounted() => {}
                (Err(e), MountEvent::Stop) => {
                    if self.event_waiter.start_retrying() {
                        self.keep_serving(with_retry_hint(e));
                    }
                }
                (Err(e), _) => self.keep_serving(e),
            }
        }
        self.finish(None)
    }

    /// Ends the server without having served. A busy part stays mounted, and its requests fail
    /// afterwards.
    ///
    /// Errors: the failure of closing if there was one, or else the reason why it stays mounted.
    pub fn end(mut self) -> Result<()> {
        self.reporter.session.set_closing(true);
        let down = self.served.take_down().map_err(|e| self.mark_confidential(e));
        self.finish(None).and(down)
    }

    /// Whether it is used without requests to the file system, or is mounted at a place that an
    /// unmount here would not reach; closing would then expose the directory below to writes.
    fn is_used_without_requests(&self) -> bool {
        self.served.is_in_use(&self.server) || is_mounted_elsewhere(&self.mountpoint)
    }

    /// Whether the mount table lists it. Returns false if the table cannot be read.
    fn is_mounted(&self) -> bool {
        is_mounted(&self.mountpoint).is_ok_and(|mounted| mounted)
    }

    /// Marks the reason why it is not closed, or was not closed well, as private if necessary.
    ///
    /// Deniability contract: if only some of these errors were private, those would reveal a hidden
    /// level.
    fn mark_confidential(&self, e: Error) -> Error {
        if self.private { e.confidential() } else { e }
    }

    /// Logs why it is not closed. A kill may follow a signal, so all writes of programs until now
    /// are made durable.
    fn keep_serving(&self, why: Error) {
        (self.reporter.log)(&why.context("still serving"));
        self.served.flush();
    }

    /// Closes the disk or vault, removes the run directory and a mount point that was made, and
    /// answers the clients that wait for that.
    fn finish(mut self, waiting: Option<ClosingClient>) -> Result<()> {
        // The jobs of clients use the disk or vault, so they end before it is closed.
        self.server.end_jobs();
        let result = self.served.close().map_err(|e| self.mark_confidential(e));
        let MountServer { server, served, made, instance, events, reporter: reports, .. } = self;
        drop((server, served));
        if let Some(Err(e)) = made.map(MadeMountpoint::remove) {
            (reports.log)(&e);
        }
        let closes = events.try_iter().filter_map(|event| match event {
            MountEvent::Close(waiting) => Some(waiting),
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
