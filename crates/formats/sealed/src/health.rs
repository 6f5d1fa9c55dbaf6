//! Whether a disk still takes writes. A failure wakes every waiting thread, so that each of them
//! learns of it.

use crate::durability::signals::Signals;
use lacuna_contracts::{Error, FailStop, Result};

/// The fail-stop of a disk and the wake-ups of its threads.
#[derive(Default)]
pub(crate) struct Health {
    fail_stop: FailStop,
    signals: Signals,
}

impl Health {
    /// Enters fail-stop for good and returns the error.
    pub(crate) fn fail(&self, e: Error) -> Error {
        let e = self.fail_stop.fail(e);
        self.signals.wake_writers();
        self.signals.wake_worker();
        e
    }

    /// The wake-ups of the disk's threads.
    pub(crate) fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Fails if an earlier failure on the write path stopped the disk.
    pub(crate) fn check(&self) -> Result<()> {
        self.fail_stop.check()
    }

    /// The first failure.
    pub(crate) fn cause(&self) -> Option<Error> {
        self.fail_stop.cause()
    }
}
