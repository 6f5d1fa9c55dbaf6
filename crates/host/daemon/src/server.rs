//! The control server: how other processes reach a running instance, whatever its front end. Each client sends one request
//! ([`crate::protocol`]) and gets one outcome.

use crate::counters::Counters;
use crate::file::HeldFile;
use crate::instance::Instance;
use crate::jobs::Jobs;
use crate::protocol::{ALIVE, Answer, Op, first_line};
use crate::record::{Identity, Record};
use crate::status::{Counter, Purged, ServerState, ServerStatus, StatusSource};
use crate::untold::Untold;
use lacuna_contracts::{Action, Advice, Error, Kind, Naming, Result};
use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the server waits for a client that does not read.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to leave a system alone that has, for example, no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A client that waits for the end of a close.
pub struct Waiting(UnixStream, Naming);

impl Waiting {
    /// Tells it how the close went.
    pub fn answer(mut self, result: &Result<()>) {
        let answer = Answer::of(result.clone().map(|()| Value::Null), self.1);
        let _ = self.0.write_all(answer.line().as_bytes());
    }

    /// Tells it why the disk or vault stays open.
    pub fn refuse(mut self, error: &Error) {
        let _ = self.0.write_all(Answer::refusal(error, true, self.1).line().as_bytes());
    }
}

/// The service of a server for its clients.
pub struct Service {
    /// As it was last written.
    pub record: Record,
    /// The disk or vault.
    pub identity: Identity,
    /// The levels of a disk, or what else has counters. The first one is purged.
    pub sources: Vec<Arc<dyn StatusSource>>,
    /// The front end.
    pub state: Arc<dyn ServerState>,
    /// Longer work.
    pub jobs: Jobs,
    /// How clients are told of settings.
    pub naming: Naming,
    /// Is called when a client asks for the end, and waits for it.
    pub close: Box<dyn Fn(Waiting) + Send>,
}

/// The listening thread. Dropping it ends the thread and all jobs.
pub struct Server {
    listener: Arc<UnixListener>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    jobs: Jobs,
    file: Arc<HeldFile>,
}

impl Server {
    /// Listens at the control socket of an instance. Errors: whatever the system says.
    pub fn start(instance: &Instance, service: Service) -> Result<Self> {
        let path = instance.control();
        let failed = |e: io::Error| Error::io(format!("cannot listen on {}", path.display()), &e);
        // A dead server's socket would be in the way. The instance holds the lock, so no other has it.
        let _ = std::fs::remove_file(&path);
        let listener = Arc::new(UnixListener::bind(&path).map_err(failed)?);
        let ending = Arc::new(AtomicBool::new(false));
        let (jobs, file) = (service.jobs.clone(), Arc::clone(&service.identity.file));
        let (accepting, told) = (Arc::clone(&listener), Arc::clone(&ending));
        let desk = Desk::new(service);
        let thread = std::thread::Builder::new()
            .name("lacuna-control".to_owned())
            .spawn(move || desk.serve(&accepting, &told))
            .map_err(failed)?;
        Ok(Server { listener, ending, thread: Some(thread), jobs, file })
    }

    /// Whether something needs the server that asks nothing of the front end: a job, or a disk that would be gone with it, because
    /// its file was deleted.
    pub fn is_needed(&self) -> bool {
        self.jobs.is_at_work() || self.file.is_deleted()
    }

    /// Ends the jobs and refuses more; clients that ask for anything else are answered. Returns when no job uses the disk any more.
    pub fn end_work(&self) {
        self.jobs.end();
    }
}

impl Drop for Server {
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
struct Desk {
    service: Service,
    counters: Counters,
    /// Failures of which no client could be told: other clients are told.
    untold: Untold,
}

impl Desk {
    fn new(service: Service) -> Desk {
        let counters = Counters::shared(service.sources.clone());
        Desk { service, counters, untold: Untold::default() }
    }

    fn serve(&self, listener: &UnixListener, ending: &AtomicBool) {
        while !ending.load(Ordering::SeqCst) {
            match listener.accept() {
                // A client that misbehaves loses its connection and nothing else happens.
                Ok((stream, _)) => _ = self.answer(stream),
                Err(e) => {
                    self.untold.not_accepted(Error::io("cannot accept who asks of the server", &e));
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let service = &self.service;
        let outcome = match first_line(&stream).and_then(|line| Op::parse(&line)) {
            Err(refused) => Err(refused),
            Ok(Op::Status) => to_value(&self.status()),
            Ok(Op::Close) => {
                // Closing may take long; that the server heard of it does not.
                stream.write_all(ALIVE)?;
                (service.close)(Waiting(stream, service.naming));
                return Ok(());
            }
            Ok(Op::Purge { uuid }) => match self.purgeable(uuid.as_deref()) {
                Ok(source) => return self.purge(stream, source),
                Err(refused) => Err(refused),
            },
            Ok(Op::Stat { ino }) => {
                let found = service.sources.iter().find_map(|source| source.stat(ino));
                found.unwrap_or_else(|| Err(Op::Stat { ino }.unknown()))
            }
            Ok(job) => return service.jobs.take(job, stream),
        };
        stream.write_all(Answer::of(outcome, service.naming).line().as_bytes())
    }

    fn status(&self) -> ServerStatus {
        let Service { record, identity, state, naming, .. } = &self.service;
        let last_error = state.last_error().or_else(|| self.untold.last());
        ServerStatus {
            id: identity.id.clone(),
            file: identity.file.state(),
            items: Counter::all(&self.counters.now()),
            size: state.size(),
            last_error: last_error.map(|e| e.named(*naming)),
            closing: state.closing(),
            ..ServerStatus::of(record.clone())
        }
    }

    /// The source to purge, for a client that means this disk or any. Errors: it means another.
    fn purgeable(&self, meant: Option<&str>) -> Result<Arc<dyn StatusSource>> {
        let own = self.service.record.uuid.as_deref();
        if let Some(meant) = meant.filter(|meant| own != Some(*meant)) {
            return Err(Error::new(Kind::PurgeIncomplete, "the disk was not purged")
                .found(format!("a server of the disk {}", own.unwrap_or("without a UUID")))
                .expected(format!("one of the disk {meant}"))
                .remedy(
                    Advice::from(Action("status")).text(" shows what is open; close it, then try again"),
                ));
        }
        self.service.sources.first().cloned().ok_or_else(|| Op::Purge { uuid: None }.unknown())
    }

    /// Purges for a client that asked, in a thread of its own: others are answered meanwhile. The answer names the disk. What went
    /// wrong is kept if the client has left by then, until a purge succeeds.
    fn purge(&self, mut stream: UnixStream, source: Arc<dyn StatusSource>) -> io::Result<()> {
        // A purge may take long; that the server heard of it does not.
        stream.write_all(ALIVE)?;
        let (untold, naming, uuid) =
            (self.untold.clone(), self.service.naming, self.service.record.uuid.clone());
        let purge = move || {
            let purged = source.purge();
            drop(source);
            let outcome =
                purged.clone().and_then(|done| to_value(&Purged { uuid, items: Counter::all(&done.items) }));
            let answered = stream.write_all(Answer::of(outcome, naming).line().as_bytes());
            match (purged, answered) {
                (Ok(_), _) => untold.purged(),
                (Err(e), Err(_)) => untold.not_purged(e.context("a purge whose client has left")),
                (Err(_), Ok(())) => {}
            }
        };
        std::thread::Builder::new().name("lacuna-purged".into()).spawn(purge).map(drop)
    }
}

fn to_value(answer: &impl Serialize) -> Result<Value> {
    let value = serde_json::to_value(answer);
    value.map_err(|e| Error::new(Kind::Other, "cannot write the answer of the server").found(e.to_string()))
}

#[cfg(test)]
mod tests;
