//! What every part of an open vault may use: the clock, the log, the fail-stop state, and whether
//! anything may be changed.

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

    /// Takes note of a failure of one file's change. Beside what passes in a commit, content that
    /// does not verify passes, and a request that is wrong or comes too soon: the file is as whole
    /// as before, and all others can be changed and committed.
    pub(crate) fn change_failed(&self, e: Error) -> Error {
        let passes = matches!(e.kind(), Kind::Corrupt | Kind::Usage | Kind::Busy);
        self.failed(e, passes)
    }

    /// Takes note of a failure of a commit, or of work for the next commit, which would fail the
    /// same way. A call that the host refuses, for want of space above all, passes, and so does a
    /// read that fails: everything waits for the next commit. Anything else ends all writing, even
    /// one tag page that does not verify: what was acknowledged, of all files, could never become
    /// durable, and the writers must hear of it now.
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
