//! A worker: a thread that does what one client asked for, lets it know every second that it is at
//! work, and answers it. Other clients are answered meanwhile. Of each kind of request a server has
//! a limited number of workers, so that no number of clients takes all threads of the system.

use crate::exchange::{Beats, Line};
use crate::protocol::{ALIVE, Afterwards, Answer};
use lacuna_contracts::{Error, Kind, Naming, Result};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// How many clients a server may work for at a time that ask for the same.
pub(crate) struct WorkerLimit {
    most: usize,
    at_work: Arc<AtomicUsize>,
}

/// The permission to work for one client. Dropping it lets another have it.
pub(crate) struct WorkerPermit(Arc<AtomicUsize>);

impl WorkerLimit {
    /// At most so many.
    pub(crate) fn new(most: usize) -> Self {
        WorkerLimit { most, at_work: Arc::default() }
    }

    /// The permission to work for one more client. Errors: [`Kind::Busy`] if the server works for
    /// as many as it may.
    pub(crate) fn admit(&self) -> Result<WorkerPermit> {
        let one_more = |count: usize| (count < self.most).then_some(count + 1);
        match self.at_work.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            Ok(_) => Ok(WorkerPermit(Arc::clone(&self.at_work))),
            Err(most) => Err(too_many(format!("{most} clients that asked for the same before"))),
        }
    }
}

impl Drop for WorkerPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The refusal of a server that works for as many clients as it may; `found` says for which.
pub(crate) fn too_many(found: String) -> Error {
    Error::new(Kind::Busy, "the server cannot take more work")
        .found(found)
        .remedy("try again when they are done")
}

/// Starts a worker that does `work` and answers with its outcome; `naming` gives names to the
/// settings in advice. Then `after` is told why it failed, if it did, and whether the client could
/// be told. What `work` holds is dropped before the answer; a permit that `after` holds is given
/// back when nothing of the worker is left but the end of its thread.
///
/// Errors: no thread can be started. The client has heard nothing then.
pub(crate) fn start(
    line: &Arc<Line>,
    naming: Naming,
    work: impl FnOnce() -> Result<Value> + Send + 'static,
    after: impl FnOnce(Option<Error>, bool) + Send + 'static,
) -> Result<JoinHandle<()>> {
    let line = Arc::clone(line);
    let serve = move || {
        line.send(ALIVE);
        let outcome = {
            let _beats = Beats::start(&line);
            // A defect in the work for one client is no end of the disk for all.
            let panicked = |_| Err(Error::new(Kind::Other, "a defect of lacuna (a panic)"));
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
        };
        let failure = outcome.as_ref().err().cloned();
        line.answer(&Answer::of(outcome, Afterwards::Stays, naming));
        after(failure, !line.has_ended());
        line.close();
    };
    let thread = std::thread::Builder::new().name("lacuna-worker".into()).spawn(serve);
    thread.map_err(|e| {
        Error::io("cannot begin with the work", &e).remedy("try again when the system has threads to spare")
    })
}
