//! A worker: a thread that runs the request of one client, sends it a keepalive every second, and
//! answers it. The server goes on to answer other clients. The number of workers for each kind of
//! request is limited, so that clients cannot exhaust the threads of the system.

use crate::protocol::{AfterFailure, KEEPALIVE, ServerAnswer};
use crate::server::client_connection::{ClientConnection, KeepaliveSender};
use lacuna_contracts::{Error, Kind, Result, TermRenderer};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// A limit on the clients that a server works for at a time with the same request.
pub(crate) struct WorkerLimit {
    most: usize,
    active: Arc<AtomicUsize>,
}

/// The permission to work for one client. Dropping it releases the place.
pub(crate) struct WorkerPermit(Arc<AtomicUsize>);

impl WorkerLimit {
    /// At most `most` clients.
    pub(crate) fn new(most: usize) -> Self {
        WorkerLimit { most, active: Arc::default() }
    }

    /// Takes a place for one more client. Errors: [`Kind::Busy`] at the limit.
    pub(crate) fn admit(&self) -> Result<WorkerPermit> {
        let one_more = |count: usize| (count < self.most).then_some(count + 1);
        match self.active.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            Ok(_) => Ok(WorkerPermit(Arc::clone(&self.active))),
            Err(most) => Err(too_many(format!("{most} clients with the same request"))),
        }
    }
}

impl Drop for WorkerPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The refusal of a server at its limit; `found` names the clients that it works for.
pub(crate) fn too_many(found: String) -> Error {
    Error::new(Kind::Busy, "the server cannot take more work")
        .found(found)
        .hint("try again when they are done")
}

/// Starts a worker that runs `work` and answers with its outcome; `naming` gives names to the
/// settings in advice. Then calls `on_done` with the failure, if any, and whether the client was
/// still there for the answer. Values that `work` holds are dropped before the answer; a permit
/// that `on_done` holds is released when only the end of the thread is left.
///
/// Errors: no thread can be started. Nothing was sent to the client then.
pub(crate) fn start(
    connection: &Arc<ClientConnection>,
    naming: TermRenderer,
    work: impl FnOnce() -> Result<Value> + Send + 'static,
    on_done: impl FnOnce(Option<Error>, bool) + Send + 'static,
) -> Result<JoinHandle<()>> {
    let line = Arc::clone(connection);
    let serve = move || {
        line.send(KEEPALIVE);
        let outcome = {
            let _beats = KeepaliveSender::start(&line);
            // A panic in the work for one client must not stop the server.
            let panicked = |_| Err(Error::new(Kind::Other, "a defect of lacuna (a panic)"));
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
        };
        let failure = outcome.as_ref().err().cloned();
        line.answer(&ServerAnswer::of(outcome, AfterFailure::Stays, naming));
        on_done(failure, !line.has_ended());
        line.close();
    };
    let thread = std::thread::Builder::new().name("lacuna-worker".into()).spawn(serve);
    thread.map_err(|e| {
        Error::io("cannot start a thread for the request", &e)
            .hint("try again when the system has threads to spare")
    })
}
