//! A worker: a thread that does what one client asked for, lets it know every second that it is at work, and answers it. Other
//! clients are answered meanwhile.

use crate::exchange::{Beats, Line};
use crate::protocol::{ALIVE, Afterwards, Answer};
use lacuna_contracts::{Error, Kind, Naming, Result};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Starts a worker that does `work` and answers with its outcome; `naming` gives names to the settings in advice. Then `after` is told
/// why it failed, if it did, and whether the client could be told. What `work` holds is dropped before the answer.
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
