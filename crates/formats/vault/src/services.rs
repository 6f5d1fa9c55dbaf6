//! What every part of an open vault may use: the clock, the log, the fail-stop state, and whether anything may be changed.

use crate::options::Log;
use crate::{Time, WallClock};
use lacuna_contracts::{Error, FailStop, Kind};
use std::sync::Arc;

/// The services of an open vault.
pub(crate) struct Services {
    pub(crate) clock: Arc<dyn WallClock>,
    pub(crate) log: Log,
    pub(crate) read_only: bool,
    /// After a failure that may have left something half done, nothing is changed any more.
    pub(crate) health: FailStop,
}

impl Services {
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Takes note of a failure of a change: a failure that leaves nothing half done passes.
    pub(crate) fn failed(&self, e: Error) -> Error {
        match e.kind() {
            kind if kind.is_refusal() => e,
            Kind::Corrupt | Kind::Usage | Kind::Busy => e,
            _ => self.health.fail(e),
        }
    }

    pub(crate) fn log(&self, line: &str) {
        (self.log)(line);
    }
}
