//! What all parts of an open vault stand on: the store, the namespace, the inodes, keys, clock and log.

use crate::inodes::Inodes;
use crate::namespace::Namespace;
use crate::options::Log;
use crate::{BLOCK, FILE_MAX, Time, WallClock};
use lacuna_core::{Budget, Error, FailStop, Kind, Secret};
use lacuna_integrity::{Choice, Session};
use lacuna_vault_store::Store;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The shared parts of an open vault.
pub(crate) struct Ground {
    pub(crate) store: Arc<Store>,
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) inodes: Inodes,
    pub(crate) master: Secret<32>,
    pub(crate) clock: Arc<dyn WallClock>,
    pub(crate) log: Log,
    /// The scheme of files whose directory names none.
    pub(crate) choice: Choice,
    pub(crate) read_only: bool,
    pub(crate) budget: Budget,
    /// There was no room for the last change that asked: what need not be written is not.
    pub(crate) short: AtomicBool,
    /// After a failure that may have left something half done, nothing is changed any more.
    pub(crate) health: FailStop,
}

impl Ground {
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The session in which files are written now.
    pub(crate) fn session(&self) -> Session {
        Session(self.store.session())
    }

    /// The longest that a file may be, in bytes: as long as the backing file of its blocks may become.
    pub(crate) fn longest(&self) -> u64 {
        FILE_MAX.min(self.store.longest().saturating_mul(BLOCK as u64))
    }

    /// Takes note of a failure of a change: those that leave nothing half done pass.
    pub(crate) fn failed(&self, e: Error) -> Error {
        match e.kind() {
            kind if kind.is_refusal() => e,
            Kind::Corrupt | Kind::Usage | Kind::Busy => e,
            _ => self.health.fail(e),
        }
    }

    pub(crate) fn say(&self, line: &str) {
        (self.log)(line);
    }
}
