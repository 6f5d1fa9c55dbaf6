//! The control server: how other processes reach a running instance, whatever its front end. Each
//! client sends one request ([`crate::protocol`]) and gets one outcome.

pub(crate) mod client_connection;
pub(crate) mod event_waiter;
pub(crate) mod failure_log;
pub(crate) mod unreported_failures;
pub(crate) mod worker;

use crate::counters::Counters;
use crate::file::TrackedFile;
use crate::incoming::{Incoming, IncomingRequest};
use crate::instance::Instance;
use crate::jobs::Jobs;
use crate::protocol::{AfterFailure, ControlOp, KEEPALIVE, ServerAnswer};
use crate::record::{Identity, Record};
use crate::server::client_connection::{ClientConnection, KeepaliveSender};
use crate::server::unreported_failures::UnreportedFailures;
use crate::server::worker::{WorkerLimit, WorkerPermit};
use crate::status::{Condition, Counter, PurgeReport, ServerState, ServerStatus, StatusSource};
use lacuna_contracts::{Action, Error, Hint, Kind, Result, TermRenderer};
use serde::Serialize;
use serde_json::Value;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long to wait after a failed accept, for example for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a client may take to send its request.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);
/// The most `stat` requests at a time. Each takes two threads: one waits for the file, the other
/// sends keepalives.
const MOST_STATS: usize = 8;
/// The most purges at a time. Each takes two threads as well.
const MOST_PURGES: usize = 8;
/// The most clients that wait for the close at a time. Each has a thread for its keepalives.
const MOST_CLOSING: usize = 32;

/// A client that asked for the close and waits for its outcome. It gets a keepalive every second.
pub struct ClosingClient {
    connection: Arc<ClientConnection>,
    keepalive: KeepaliveSender,
    naming: TermRenderer,
    permit: WorkerPermit,
    force: bool,
}

impl ClosingClient {
    fn new(
        connection: Arc<ClientConnection>,
        naming: TermRenderer,
        permit: WorkerPermit,
        force: bool,
    ) -> Self {
        // Sent at once, since closing may take long.
        connection.send(KEEPALIVE);
        let keepalive = KeepaliveSender::start(&connection);
        ClosingClient { connection, keepalive, naming, permit, force }
    }

    /// Whether to close even if clients use the disk over the network.
    pub fn is_forced(&self) -> bool {
        self.force
    }

    /// Sends the outcome of the close.
    pub fn answer(self, result: &Result<()>) {
        self.send_outcome(result.clone().map(|()| Value::Null), AfterFailure::Ends);
    }

    /// Sends the reason why the disk or vault stays open.
    pub fn refuse(self, error: &Error) {
        self.send_outcome(Err(error.clone()), AfterFailure::Stays);
    }

    fn send_outcome(self, outcome: Result<Value>, server: AfterFailure) {
        let ClosingClient { connection, keepalive, naming, permit: _permit, .. } = self;
        // Stop the keepalives first: the answer is the last line.
        drop(keepalive);
        connection.answer(&ServerAnswer::of(outcome, server, naming));
    }
}

/// Everything that a server needs to answer its clients.
pub struct Service {
    /// The record as it was last written.
    pub record: Record,
    /// The disk or vault.
    pub identity: Identity,
    /// The levels of a disk, or other sources of counters. A purge goes to the first.
    pub sources: Vec<Arc<dyn StatusSource>>,
    /// The front end.
    pub state: Arc<dyn ServerState>,
    /// The jobs.
    pub jobs: Jobs,
    /// Gives names to the settings in advice.
    pub naming: TermRenderer,
    /// Called when a client asks for the close and waits for it.
    pub close: Box<dyn Fn(ClosingClient) + Send>,
}

/// The listening thread. Dropping it ends the thread and all jobs.
pub struct ControlServer {
    listener: Arc<UnixListener>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    jobs: Jobs,
    file: Arc<TrackedFile>,
}

impl ControlServer {
    /// Listens at the control socket of an instance. Errors: those of the system.
    pub fn start(instance: &Instance, service: Service) -> Result<Self> {
        ControlServer::with_limit(instance, service, REQUEST_WITHIN)
    }

    fn with_limit(instance: &Instance, service: Service, request_within: Duration) -> Result<Self> {
        let path = instance.control();
        let failed = |e: io::Error| Error::io(format!("cannot listen on {}", path.display()), &e);
        // Remove a stale socket. Safe: the instance holds the lock.
        let _ = std::fs::remove_file(&path);
        let listener = Arc::new(UnixListener::bind(&path).map_err(failed)?);
        listener.set_nonblocking(true).map_err(failed)?;
        let ending = Arc::new(AtomicBool::new(false));
        let (jobs, file) = (service.jobs.clone(), Arc::clone(&service.identity.file));
        let (accepting, is_ending) = (Arc::clone(&listener), Arc::clone(&ending));
        let (dispatcher, incoming) = (RequestDispatcher::new(service), Incoming::new(request_within));
        let thread = std::thread::Builder::new()
            .name("lacuna-control".to_owned())
            .spawn(move || dispatcher.serve(&accepting, incoming, &is_ending))
            .map_err(failed)?;
        Ok(ControlServer { listener, ending, thread: Some(thread), jobs, file })
    }

    /// Whether the server must stay although the front end is idle: a job runs, or the file of the
    /// disk was deleted and its data would be lost.
    pub fn is_needed(&self) -> bool {
        self.jobs.is_at_work() || self.file.is_deleted()
    }

    /// Ends the jobs and refuses new ones; other requests are still answered. Returns when no job
    /// uses the disk any more.
    pub fn end_jobs(&self) {
        self.jobs.end();
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.jobs.end();
    }
}

/// The state of the listening thread.
struct RequestDispatcher {
    service: Service,
    counters: Counters,
    /// Failures that could be reported to no client; they appear in the status.
    unreported: UnreportedFailures,
    stats: WorkerLimit,
    purges: WorkerLimit,
    closing: WorkerLimit,
}

impl RequestDispatcher {
    fn new(service: Service) -> RequestDispatcher {
        let (counters, unreported) =
            (Counters::shared(service.sources.clone()), UnreportedFailures::default());
        let [stats, purges, closing] = [MOST_STATS, MOST_PURGES, MOST_CLOSING].map(WorkerLimit::new);
        RequestDispatcher { service, counters, unreported, stats, purges, closing }
    }

    fn serve(&self, listener: &UnixListener, mut incoming: Incoming, ending: &AtomicBool) {
        loop {
            let waited = incoming.wait(listener);
            if ending.load(Ordering::SeqCst) {
                return;
            }
            if let Err(e) = waited.and_then(|()| incoming.accept(listener)) {
                self.unreported.record_accept_failure(Error::io("cannot accept a client of the server", &e));
                std::thread::sleep(PAUSE);
            }
            incoming.take().into_iter().for_each(|asked| self.answer(asked));
        }
    }

    /// Answers one client, or has another thread answer it.
    fn answer(&self, IncomingRequest { stream, line }: IncomingRequest) {
        let connection = ClientConnection::new(stream);
        let done = line.and_then(|line| self.perform(ControlOp::parse(&line)?, &connection));
        if let Some(outcome) = done.transpose() {
            connection.answer(&ServerAnswer::of(outcome, AfterFailure::Stays, self.service.naming));
        }
    }

    /// Performs a request; `None` if another thread answers. Requests that may take long or may
    /// wait for a medium run in threads of their own, of a limited number, so that they delay no
    /// other client.
    fn perform(&self, op: ControlOp, connection: &Arc<ClientConnection>) -> Result<Option<Value>> {
        let service = &self.service;
        match op {
            ControlOp::Status => return to_value(&self.status()).map(Some),
            ControlOp::Close { force } => {
                let permit = self.closing.admit()?;
                (service.close)(ClosingClient::new(Arc::clone(connection), service.naming, permit, force));
            }
            ControlOp::Purge { uuid } => self.purge(connection, self.purgeable(uuid.as_deref())?)?,
            ControlOp::Stat { ino } => self.stat(connection, ino)?,
            ControlOp::Job(job) => service.jobs.start(job, connection)?,
        }
        Ok(None)
    }

    fn status(&self) -> ServerStatus {
        let Service { record, identity, state, naming, .. } = &self.service;
        // A failed purge comes first, because deleted data may still be recoverable.
        let not_purged = self.unreported.purge_failure();
        let last_error =
            not_purged.or_else(|| state.last_error()).or_else(|| self.unreported.take_accept_failure());
        let condition = if state.is_closing() { Condition::Closing } else { Condition::Serving };
        ServerStatus {
            id: identity.id.clone(),
            file: identity.file.state(),
            items: Counter::all(&self.counters.now()),
            size: state.size(),
            clients: state.clients(),
            refused_clients: state.refused_clients(),
            last_error: last_error.map(|e| e.render_with(*naming)),
            ..ServerStatus::of(record.clone(), condition)
        }
    }

    /// The source to purge, if this is the disk that the client means. Errors: it is another disk.
    fn purgeable(&self, meant: Option<&str>) -> Result<Arc<dyn StatusSource>> {
        let own = self.service.record.uuid.as_deref();
        if let Some(meant) = meant.filter(|meant| own != Some(*meant)) {
            return Err(Error::new(Kind::PurgeIncomplete, "the disk was not purged")
                .found(format!("a server of the disk {}", own.unwrap_or("without a UUID")))
                .expected(format!("one of the disk {meant}"))
                .hint(
                    Hint::from(Action("status"))
                        .text(" shows the open disks; close that one, then try again"),
                ));
        }
        self.service
            .sources
            .first()
            .cloned()
            .ok_or_else(|| ControlOp::Purge { uuid: None }.unsupported_error())
    }

    /// Purges for a client. The answer names the disk. If the client has left by then, a failure is
    /// kept until a purge succeeds.
    fn purge(&self, connection: &Arc<ClientConnection>, source: Arc<dyn StatusSource>) -> Result<()> {
        let permit = self.purges.admit()?;
        let (unreported, naming, uuid) =
            (self.unreported.clone(), self.service.naming, self.service.record.uuid.clone());
        let succeeded = unreported.clone();
        let purge = move || {
            let done = source.purge()?;
            succeeded.clear_purge_failure();
            to_value(&PurgeReport { uuid, items: Counter::all(&done.items) })
        };
        let after = move |failure: Option<Error>, heard: bool| {
            if let Some(e) = failure.filter(|_| !heard) {
                unreported.record_purge_failure(e.context("a purge for a client that has left"));
            }
            drop(permit);
        };
        worker::start(connection, naming, purge, after).map(drop)
    }

    /// Reports how a file is protected. This may block: the inode may be locked, and the backing
    /// file may have to be opened.
    fn stat(&self, connection: &Arc<ClientConnection>, ino: u64) -> Result<()> {
        let permit = self.stats.admit()?;
        let sources = self.service.sources.clone();
        let stat = move || {
            let found = sources.iter().find_map(|source| source.stat(ino));
            found.unwrap_or_else(|| Err(ControlOp::Stat { ino }.unsupported_error()))
        };
        let after = move |_: Option<Error>, _: bool| drop(permit);
        worker::start(connection, self.service.naming, stat, after).map(drop)
    }
}

fn to_value(answer: &impl Serialize) -> Result<Value> {
    let value = serde_json::to_value(answer);
    value.map_err(|e| Error::new(Kind::Other, "cannot write the answer of the server").found(e.to_string()))
}

#[cfg(test)]
mod tests;
