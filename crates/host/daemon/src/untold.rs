//! What a server could tell none of its clients: clients that ask how it does are told.

use lacuna_contracts::Error;
use parking_lot::Mutex;
use std::sync::Arc;

/// The last of it.
#[derive(Clone, Default)]
pub(crate) struct Untold(Arc<Mutex<Last>>);

#[derive(Default)]
struct Last {
    /// Why a client could not be accepted, until another one is told.
    not_accepted: Option<Error>,
    /// Why the disk was not purged, until a purge succeeds.
    not_purged: Option<Error>,
}

impl Untold {
    /// A client could not be accepted.
    pub(crate) fn not_accepted(&self, e: Error) {
        self.0.lock().not_accepted = Some(e);
    }

    /// A purge failed whose client has left.
    pub(crate) fn not_purged(&self, e: Error) {
        self.0.lock().not_purged = Some(e);
    }

    /// A purge succeeded: what failed before it is made good.
    pub(crate) fn purged(&self) {
        self.0.lock().not_purged = None;
    }

    /// Why the disk was not purged.
    pub(crate) fn purge_failure(&self) -> Option<Error> {
        self.0.lock().not_purged.clone()
    }

    /// Why a client could not be accepted. It is told once: clients are accepted again.
    pub(crate) fn take_accept_failure(&self) -> Option<Error> {
        self.0.lock().not_accepted.take()
    }
}
