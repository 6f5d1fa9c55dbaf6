//! Whether an open disk has failed. A failure wakes the parts with waiting threads; a thread that
//! misses it checks again within a second.
//!
//! Invariant: the first failure stays the cause, and no stripe is begun after it.

use lacuna_contracts::{Error, FailStop, Kind, OnPanic, Result, panic_error};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The longest wait without a check for a failure of the disk.
pub(crate) const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A part of the disk that has waiting threads.
pub(crate) trait Wake: Send + Sync {
    /// Wakes all of them, after a failure.
    fn wake(&self);
}

/// The health of a disk.
#[derive(Default)]
pub(crate) struct Health {
    state: FailStop,
    wakers: Mutex<Vec<Weak<dyn Wake>>>,
}

impl Health {
    /// Registers `part`, to be woken on a failure.
    pub(crate) fn register<W: Wake + 'static>(&self, part: &Arc<W>) {
        let part: Weak<W> = Arc::downgrade(part);
        self.wakers.lock().push(part);
    }

    /// Enters fail-stop for good, wakes all waiting threads and returns the error.
    pub(crate) fn fail(&self, e: Error) -> Error {
        let e = self.state.fail(e);
        let waiting: Vec<_> = self.wakers.lock().iter().filter_map(Weak::upgrade).collect();
        waiting.iter().for_each(|part| part.wake());
        e
    }

    /// [`Health::fail`], unless the error leaves everything unchanged.
    pub(crate) fn fail_unless_full(&self, e: Error) -> Error {
        if matches!(e.kind(), Kind::NoSpace | Kind::FailStop) { e } else { self.fail(e) }
    }

    /// Returns a guard that fails the disk if its scope ends by a panic.
    pub(crate) fn fail_on_panic(&self) -> OnPanic<impl FnMut() + '_> {
        OnPanic::new(|| drop(self.fail(panic_error())))
    }

    /// Errors: the standing refusal, after a failure.
    pub(crate) fn check(&self) -> Result<()> {
        self.state.check()
    }

    /// The standing refusal.
    pub(crate) fn refusal(&self) -> Error {
        self.state.refusal()
    }

    /// The state, for parts of other crates, which get it with each call.
    pub(crate) fn state(&self) -> &FailStop {
        &self.state
    }
}
