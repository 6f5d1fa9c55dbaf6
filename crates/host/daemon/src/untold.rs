//! Failures that a server could report to no client. The next status reports them.

use lacuna_contracts::Error;
use parking_lot::Mutex;
use std::sync::Arc;

/// The last failure of each kind.
#[derive(Clone, Default)]
pub(crate) struct Untold(Arc<Mutex<Last>>);

#[derive(Default)]
struct Last {
    /// The failure to accept a client, until it is reported once.
    not_accepted: Option<Error>,
    /// The failure of a purge, until a purge succeeds.
    not_purged: Option<Error>,
}

impl Untold {
    /// Records that a client could not be accepted.
    pub(crate) fn not_accepted(&self, e: Error) {
        self.0.lock().not_accepted = Some(e);
    }

    /// Records a failed purge of a client that has left.
    pub(crate) fn not_purged(&self, e: Error) {
        self.0.lock().not_purged = Some(e);
    }

    /// A purge succeeded, which makes up for an earlier failure.
    pub(crate) fn purged(&self) {
        self.0.lock().not_purged = None;
    }

    /// The failure of the last purge.
    pub(crate) fn purge_failure(&self) -> Option<Error> {
        self.0.lock().not_purged.clone()
    }

    /// Takes the failure to accept a client. It is reported once, because clients are accepted
    /// again.
    pub(crate) fn take_accept_failure(&self) -> Option<Error> {
        self.0.lock().not_accepted.take()
    }
}
