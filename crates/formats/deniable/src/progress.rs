//! How far the log has come: which stripes are on the medium, which of them are durable, and
//! whether the medium refuses the next one.
//!
//! Invariants: both numbers only grow, a stripe is durable only after a sync that began when it was
//! on the medium, and after a sync that failed there is no other.

use crate::health::{Health, LOOK_AGAIN, Wake};
use crate::place::Seq;
use lacuna_contracts::{Error, Result, defect};
use lacuna_levels::no_sync;
use lacuna_medium::Medium;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How far the log of an open disk has come.
pub(crate) struct Progress {
    medium: Arc<dyn Medium>,
    health: Arc<Health>,
    written: AtomicU64,
    durable: AtomicU64,
    /// Why the medium refused the next stripe, from that try on to the next that is asked for.
    refused: Mutex<Option<Error>>,
    /// Held over a sync.
    syncing: Mutex<()>,
    /// Held for a moment before `moved` is told, so that nobody misses it.
    told: Mutex<()>,
    /// Stripes were written or made durable, or something failed.
    moved: Condvar,
    syncs: AtomicU64,
}

impl Progress {
    pub(crate) fn new(medium: Arc<dyn Medium>, health: Arc<Health>) -> Arc<Progress> {
        let progress = Arc::new(Progress {
            medium,
            health,
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            refused: Mutex::default(),
            syncing: Mutex::new(()),
            told: Mutex::new(()),
            moved: Condvar::new(),
            syncs: AtomicU64::new(0),
        });
        progress.health.watch(&progress);
        progress
    }

    /// The log was found to end at `head`, all of it durable.
    pub(crate) fn begin(&self, head: Seq) {
        self.written.store(head.0, Ordering::Release);
        self.durable.store(head.0, Ordering::Release);
    }

    /// The last stripe that is on the medium.
    pub(crate) fn written(&self) -> Seq {
        Seq(self.written.load(Ordering::Acquire))
    }

    /// The last stripe known to be durable.
    fn durable(&self) -> Seq {
        Seq(self.durable.load(Ordering::Acquire))
    }

    /// Syncs of the medium since the disk was opened.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Stripe `seq` is on the medium, and all before it.
    pub(crate) fn reach(&self, seq: Seq) {
        self.written.store(seq.0, Ordering::Release);
        *self.refused.lock() = None;
        self.wake();
    }

    /// The medium refused the next stripe: those that wait for it are told, once for each try.
    pub(crate) fn refuse(&self, e: Error) {
        *self.refused.lock() = Some(e);
        self.wake();
    }

    /// Asks for another try to write the stripe that was refused, if one was.
    pub(crate) fn try_again(&self) {
        if self.refused.lock().take().is_some() {
            self.wake();
        }
    }

    /// Waits, in the thread that writes, until another try is asked for, or something failed, or
    /// for as long as a look takes.
    pub(crate) fn wait_for_try(&self) {
        let mut told = self.told.lock();
        if self.refused.lock().is_some() {
            self.moved.wait_for(&mut told, LOOK_AGAIN);
        }
    }

    /// Errors: why the medium refused the next stripe at the last try, if it did.
    pub(crate) fn check_taken(&self) -> Result<()> {
        self.refused.lock().clone().map_or(Ok(()), Err)
    }

    /// Makes stripe `seq`, which is on the medium, and all before it durable.
    pub(crate) fn sync_to(&self, seq: Seq) -> Result<()> {
        if self.durable() >= seq {
            return Ok(());
        }
        let syncing = self.syncing.lock();
        if self.durable() >= seq {
            return Ok(());
        }
        let written = self.written();
        if written < seq {
            return Err(self.health.fail(defect()));
        }
        self.sync_held(&syncing)?;
        self.durable.store(written.0, Ordering::Release);
        drop(syncing);
        self.wake();
        Ok(())
    }

    /// Makes everything durable that was written so far, whatever it is.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.sync_held(&self.syncing.lock())
    }

    /// Syncs, unless something has failed: after a sync that did, the next one may say that all is
    /// well, for the system has dropped what it could not write.
    fn sync_held(&self, _syncing: &MutexGuard<'_, ()>) -> Result<()> {
        self.health.check()?;
        let _guard = self.health.fail_on_panic();
        self.medium.sync().map_err(|e| self.health.fail(e.of_sync()))?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until stripe `seq` is on the medium.
    pub(crate) fn wait_written(&self, seq: Seq) -> Result<()> {
        self.wait(|| None, || self.written() >= seq)
    }

    /// Waits until others have made stripe `seq` durable, for as long as `patience` says: who
    /// shortens it meanwhile wakes those who wait.
    pub(crate) fn wait_durable(&self, seq: Seq, patience: impl Fn() -> Option<Duration>) -> Result<()> {
        self.wait(patience, || self.durable() >= seq)
    }

    fn wait(&self, patience: impl Fn() -> Option<Duration>, done: impl Fn() -> bool) -> Result<()> {
        let since = Instant::now();
        let mut told = self.told.lock();
        while !done() {
            self.health.check()?;
            self.check_taken()?;
            let left = patience().map_or(LOOK_AGAIN, |patience| patience.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return Err(no_sync());
            }
            // What failed among the hidden levels does not tell of progress.
            self.moved.wait_for(&mut told, left.min(LOOK_AGAIN));
        }
        Ok(())
    }
}

impl Wake for Progress {
    fn wake(&self) {
        drop(self.told.lock());
        self.moved.notify_all();
    }
}
