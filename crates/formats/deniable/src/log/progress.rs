//! The progress of the log: which stripes are on the medium, which of them are durable, and whether
//! the medium refuses the next one.
//!
//! Invariants: both numbers only grow; a stripe is durable only after a sync that began when it was
//! on the medium; after a failed sync there is no other.

use crate::health::{Health, RECHECK_INTERVAL, Wake};
use crate::place::StripeSeq;
use lacuna_contracts::{Error, Result, panic_error};
use lacuna_levels::no_sync;
use lacuna_medium::Medium;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The progress of the log of an open disk.
pub(crate) struct LogProgress {
    medium: Arc<dyn Medium>,
    health: Arc<Health>,
    written: AtomicU64,
    durable: AtomicU64,
    /// Why the medium refused the next stripe; kept until another try is requested or succeeds.
    refused: Mutex<Option<Error>>,
    /// Held during a sync.
    syncing: Mutex<()>,
    /// Taken briefly before `changed` is notified, so that no waiting thread misses it.
    wake_lock: Mutex<()>,
    /// Notified when stripes were written or made durable, and on a failure.
    changed: Condvar,
    syncs: AtomicU64,
}

impl LogProgress {
    pub(crate) fn new(medium: Arc<dyn Medium>, health: Arc<Health>) -> Arc<LogProgress> {
        let progress = Arc::new(LogProgress {
            medium,
            health,
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            refused: Mutex::default(),
            syncing: Mutex::new(()),
            wake_lock: Mutex::new(()),
            changed: Condvar::new(),
            syncs: AtomicU64::new(0),
        });
        progress.health.register(&progress);
        progress
    }

    /// Sets the end of the log, `head`, as recovery found it. All of the log is durable.
    pub(crate) fn start_at(&self, head: StripeSeq) {
        self.written.store(head.0, Ordering::Release);
        self.durable.store(head.0, Ordering::Release);
    }

    /// The last stripe that is on the medium.
    pub(crate) fn written(&self) -> StripeSeq {
        StripeSeq(self.written.load(Ordering::Acquire))
    }

    /// The last stripe known to be durable.
    fn durable(&self) -> StripeSeq {
        StripeSeq(self.durable.load(Ordering::Acquire))
    }

    /// Syncs of the medium since the disk was opened.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Records that stripe `seq` and all before it are on the medium.
    pub(crate) fn note_written(&self, seq: StripeSeq) {
        self.written.store(seq.0, Ordering::Release);
        *self.refused.lock() = None;
        self.wake();
    }

    /// Records that the medium refused the next stripe. Threads that wait for it get the error,
    /// once for each try.
    pub(crate) fn note_refused(&self, e: Error) {
        *self.refused.lock() = Some(e);
        self.wake();
    }

    /// Requests another try to write the refused stripe, if there is one.
    pub(crate) fn request_retry(&self) {
        if self.refused.lock().take().is_some() {
            self.wake();
        }
    }

    /// For the writing thread: waits until another try is requested, something failed, or
    /// `RECHECK_INTERVAL` has passed.
    pub(crate) fn wait_to_retry(&self) {
        let mut guard = self.wake_lock.lock();
        if self.refused.lock().is_some() {
            self.changed.wait_for(&mut guard, RECHECK_INTERVAL);
        }
    }

    /// Errors: the reason why the medium refused the next stripe at the last try, if it did.
    pub(crate) fn check_refused(&self) -> Result<()> {
        self.refused.lock().clone().map_or(Ok(()), Err)
    }

    /// Makes stripe `seq`, which is on the medium, and all before it durable.
    pub(crate) fn sync_to(&self, seq: StripeSeq) -> Result<()> {
        if self.durable() >= seq {
            return Ok(());
        }
        let syncing = self.syncing.lock();
        if self.durable() >= seq {
            return Ok(());
        }
        let written = self.written();
        if written < seq {
            return Err(self.health.fail(panic_error()));
        }
        self.sync_locked(&syncing)?;
        self.durable.store(written.0, Ordering::Release);
        drop(syncing);
        self.wake();
        Ok(())
    }

    /// Makes everything durable that was written so far, checkpoints included.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.sync_locked(&self.syncing.lock())
    }

    /// Syncs, unless something has failed. After a failed sync the next one may report success,
    /// because the system has dropped the pages that it could not write.
    fn sync_locked(&self, _syncing: &MutexGuard<'_, ()>) -> Result<()> {
        self.health.check()?;
        let _guard = self.health.fail_on_panic();
        self.medium.sync().map_err(|e| self.health.fail(e.of_sync()))?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until stripe `seq` is on the medium.
    pub(crate) fn wait_written(&self, seq: StripeSeq) -> Result<()> {
        self.wait(|| None, || self.written() >= seq)
    }

    /// Waits until another thread has made stripe `seq` durable, for at most `patience`. A caller
    /// that shortens `patience` meanwhile must wake the waiting threads.
    pub(crate) fn wait_durable(&self, seq: StripeSeq, patience: impl Fn() -> Option<Duration>) -> Result<()> {
        self.wait(patience, || self.durable() >= seq)
    }

    fn wait(&self, patience: impl Fn() -> Option<Duration>, done: impl Fn() -> bool) -> Result<()> {
        let since = Instant::now();
        let mut guard = self.wake_lock.lock();
        while !done() {
            self.health.check()?;
            self.check_refused()?;
            let left =
                patience().map_or(RECHECK_INTERVAL, |patience| patience.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return Err(no_sync());
            }
            // A failure of a hidden level does not notify `changed`: check again after
            // `RECHECK_INTERVAL`.
            self.changed.wait_for(&mut guard, left.min(RECHECK_INTERVAL));
        }
        Ok(())
    }
}

impl Wake for LogProgress {
    fn wake(&self) {
        drop(self.wake_lock.lock());
        self.changed.notify_all();
    }
}
