//! Whether an open disk has failed. Parts that have threads waiting are told of a failure; a thread
//! that misses it looks again within a second.
//!
//! Invariant: the first failure stays the cause, and no stripe is begun after it.

use lacuna_contracts::{Error, FailStop, Kind, OnPanic, Result, defect};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The longest wait for anything without a look at whether the disk failed.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A part of the disk that has threads waiting.
pub(crate) trait Wake: Send + Sync {
    /// Wakes them all, for the disk has failed.
    fn wake(&self);
}

/// The health of a disk.
#[derive(Default)]
pub(crate) struct Health {
    state: FailStop,
    waiting: Mutex<Vec<Weak<dyn Wake>>>,
}

impl Health {
    /// From now on `part` is told of a failure.
    pub(crate) fn watch<W: Wake + 'static>(&self, part: &Arc<W>) {
        let part: Weak<W> = Arc::downgrade(part);
        self.waiting.lock().push(part);
    }

    /// Enters fail-stop for good, wakes everybody and gives the error back.
    pub(crate) fn fail(&self, e: Error) -> Error {
        let e = self.state.fail(e);
        let waiting: Vec<_> = self.waiting.lock().iter().filter_map(Weak::upgrade).collect();
        waiting.iter().for_each(|part| part.wake());
        e
    }

    /// [`Health::fail`], unless the error leaves everything as it was.
    pub(crate) fn fail_unless_full(&self, e: Error) -> Error {
        if matches!(e.kind(), Kind::NoSpace | Kind::FailStop) { e } else { self.fail(e) }
    }

    /// Fails if the scope of the guard ends by a panic.
    pub(crate) fn fail_on_panic(&self) -> OnPanic<impl FnMut() + '_> {
        OnPanic::new(|| drop(self.fail(defect())))
    }

    /// Refuses after a failure.
    pub(crate) fn check(&self) -> Result<()> {
        self.state.check()
    }

    /// The standing refusal.
    pub(crate) fn refusal(&self) -> Error {
        self.state.refusal()
    }

    /// For parts of other crates, which are given it with each call.
    pub(crate) fn state(&self) -> &FailStop {
        &self.state
    }
}
