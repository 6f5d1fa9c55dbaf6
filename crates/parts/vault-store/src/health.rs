//! Whether a store takes changes: which failures end all writing, and which fail one call alone.

use lacuna_contracts::{Error, FailStop, Kind, OnPanic, Result, defect};
use std::sync::atomic::{AtomicBool, Ordering};

/// The health of an open store.
pub(crate) struct Health {
    read_only: bool,
    alive: FailStop,
    /// The host refused something since the last checkpoint. Where it has limits that no call
    /// tells, such as quotas, space that a commit needs is taken before anything is noted.
    tight: AtomicBool,
}

impl Health {
    /// Of a store that nothing has failed in.
    pub(crate) fn new(read_only: bool) -> Health {
        Health { read_only, alive: FailStop::of_vault(), tight: AtomicBool::new(false) }
    }

    /// Whether the store is open for reading alone.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Refuses changes of a store that takes none.
    pub(crate) fn may_change(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(Kind::ReadOnly, "the vault is open for reading alone"));
        }
        self.alive.check()
    }

    /// Refuses after a failure that ended all writing.
    pub(crate) fn check(&self) -> Result<()> {
        self.alive.check()
    }

    /// Takes note of a failure on the write path, which ends all writing. A call that the host
    /// refuses, for want of space above all, does not, nor does a read that fails, because nothing
    /// that is committed was touched.
    pub(crate) fn refused(&self, e: Error) -> Error {
        if e.kind().is_refusal() {
            self.tight.store(true, Ordering::Relaxed);
        }
        if e.changed_nothing() {
            return e;
        }
        self.alive.fail(e)
    }

    /// Takes note of a failure that ends all writing, whatever its kind: the caller must not go on
    /// as after a write that was refused whole.
    pub(crate) fn broken(&self, e: Error) -> Error {
        self.alive.fail(e.of_sync())
    }

    /// Ends all writing, because the vault was closed.
    pub(crate) fn close(&self) {
        self.alive.close();
    }

    /// Ends all writing if this thread panics while the guard lives: a commit that was noted would
    /// be left out.
    pub(crate) fn end_on_panic(&self) -> OnPanic<impl FnMut()> {
        OnPanic::new(move || drop(self.alive.fail(defect())))
    }

    /// Whether nothing ended the writing so far.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.is_alive()
    }

    /// Why the store takes no more changes, if it does not.
    pub(crate) fn cause(&self) -> Option<Error> {
        self.alive.cause()
    }

    /// Whether the host refused something since the last checkpoint.
    pub(crate) fn is_tight(&self) -> bool {
        self.tight.load(Ordering::Relaxed)
    }

    /// A checkpoint found room for everything.
    pub(crate) fn relax(&self) {
        self.tight.store(false, Ordering::Relaxed);
    }
}
