//! Failures that a server could report to no client. The next status reports them.

use lacuna_contracts::Error;
use parking_lot::Mutex;
use std::sync::Arc;

/// The last failure of each kind.
#[derive(Clone, Default)]
pub(crate) struct UnreportedFailures(Arc<Mutex<LastFailures>>);

#[derive(Default)]
struct LastFailures {
    /// The failure to accept a client, until it is reported once.
    accept_failure: Option<Error>,
    /// The failure of a purge, until a purge succeeds.
    purge_failure: Option<Error>,
}

impl UnreportedFailures {
    /// Records that a client could not be accepted.
    pub(crate) fn record_accept_failure(&self, e: Error) {
        self.0.lock().accept_failure = Some(e);
    }

    /// Records a failed purge of a client that has left.
    pub(crate) fn record_purge_failure(&self, e: Error) {
        self.0.lock().purge_failure = Some(e);
    }

    /// A purge succeeded, which makes up for an earlier failure.
    pub(crate) fn clear_purge_failure(&self) {
        self.0.lock().purge_failure = None;
    }

    /// The failure of the last purge.
    pub(crate) fn purge_failure(&self) -> Option<Error> {
        self.0.lock().purge_failure.clone()
    }

    /// Takes the failure to accept a client. It is reported once, because clients are accepted
    /// again.
    pub(crate) fn take_accept_failure(&self) -> Option<Error> {
        self.0.lock().accept_failure.take()
    }
}
