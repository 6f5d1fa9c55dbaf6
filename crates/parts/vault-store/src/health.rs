//! Whether a store accepts changes: which failures end all writing, and which fail only one call.

use lacuna_contracts::{Error, FailStop, Kind, OnPanic, Result, panic_error};
use std::sync::atomic::{AtomicBool, Ordering};

/// The health of an open store.
pub(crate) struct StoreHealth {
    read_only: bool,
    alive: FailStop,
    /// The host refused a call since the last checkpoint. The host may have limits that no call
    /// reports, such as quotas; then a commit takes its space before it notes anything.
    has_refusal: AtomicBool,
}

impl StoreHealth {
    /// The health of a store without failures.
    pub(crate) fn new(read_only: bool) -> StoreHealth {
        StoreHealth { read_only, alive: FailStop::of_vault(), has_refusal: AtomicBool::new(false) }
    }

    /// Whether the store is open read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Fails if the store accepts no changes.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(Kind::ReadOnly, "the vault is open read-only"));
        }
        self.alive.check()
    }

    /// Fails after a failure that ended all writing.
    pub(crate) fn check(&self) -> Result<()> {
        self.alive.check()
    }

    /// Notes a failure on the write path. It ends all writing, unless it changed nothing: a call
    /// that the host refuses, mostly for lack of space, or a failed read, because no committed page
    /// was touched.
    pub(crate) fn note_failure(&self, e: Error) -> Error {
        if e.kind().is_refusal() {
            self.has_refusal.store(true, Ordering::Relaxed);
        }
        if e.changed_nothing() {
            return e;
        }
        self.alive.fail(e)
    }

    /// Notes a failure that ends all writing, whatever its kind: the caller must not continue as
    /// after a write that was refused whole.
    pub(crate) fn fail_stop(&self, e: Error) -> Error {
        self.alive.fail(e.of_sync())
    }

    /// Ends all writing because the vault was closed.
    pub(crate) fn close(&self) {
        self.alive.close();
    }

    /// Ends all writing if this thread panics while the guard lives: a noted commit would be lost.
    pub(crate) fn end_on_panic(&self) -> OnPanic<impl FnMut()> {
        OnPanic::new(move || drop(self.alive.fail(panic_error())))
    }

    /// Whether no failure has ended writing.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.is_alive()
    }

    /// The failure that ended writing, if any.
    pub(crate) fn cause(&self) -> Option<Error> {
        self.alive.cause()
    }

    /// Whether the host refused a call since the last checkpoint.
    pub(crate) fn has_refusal(&self) -> bool {
        self.has_refusal.load(Ordering::Relaxed)
    }

    /// Called after a checkpoint found space for everything.
    pub(crate) fn clear_refusal(&self) {
        self.has_refusal.store(false, Ordering::Relaxed);
    }
}
