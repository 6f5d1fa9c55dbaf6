//! `Services`: the clock, the log, the fail-stop state and the read-only flag, for all parts of an
//! open vault.

use crate::options::VaultLog;
use crate::{Time, WallClock};
use lacuna_contracts::{Error, FailStop, Kind};
use std::sync::Arc;

/// The services of an open vault.
pub(crate) struct Services {
    pub(crate) clock: Arc<dyn WallClock>,
    pub(crate) log: VaultLog,
    pub(crate) read_only: bool,
    /// Set by a failure that may have left a change half done: no change is accepted after it.
    pub(crate) health: FailStop,
}

impl Services {
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Notes a failure of one file's change. Besides errors that [`Services::commit_failed`] lets
    /// pass, it lets these pass: content that does not verify, and a request that is wrong or comes
    /// too early. The file is then as whole as before, and all other files can be changed and
    /// committed.
    pub(crate) fn change_failed(&self, e: Error) -> Error {
        let passes = matches!(e.kind(), Kind::Corrupt | Kind::Usage | Kind::Busy);
        self.failed(e, passes)
    }

    /// Notes a failure of a commit, or of work for the next commit, which would fail the same way.
    /// A call that the host refuses, mostly for lack of space, passes, and so does a failed read:
    /// the changes stay for the next commit. Fail-stop on any other error, even on a single tag
    /// page that does not verify: acknowledged changes of all files could never become durable, and
    /// the writers must learn this now.
    pub(crate) fn commit_failed(&self, e: Error) -> Error {
        self.failed(e, false)
    }

    fn failed(&self, e: Error, passes: bool) -> Error {
        if passes || e.changed_nothing() { e } else { self.health.fail(e) }
    }

    pub(crate) fn log(&self, line: &str) {
        (self.log)(line);
    }
}
