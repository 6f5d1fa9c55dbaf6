//! The durability of batches: syncs the medium, and lets threads wait until batches are durable, or
//! the medium refuses them.
//!
//! Invariants: a sync makes everything durable that was written before it began, and reports that
//! only when it has returned. After a failed sync there is no other: the system has dropped the
//! pages that it could not write, and would report success.

use crate::cells::place::BatchSeq;
use crate::progress::{BatchProgress, Claims};
use lacuna_contracts::{Error, FailStop, Result, panic_error};
use lacuna_medium::Medium;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest wait of a thread without another check: not every failure wakes it.
pub(crate) const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The durability of the batches of a disk.
pub(crate) struct Durability {
    medium: Arc<dyn Medium>,
    health: Arc<FailStop>,
    /// Whether the disk has threads, or will have once it is open.
    background: bool,
    progress: Mutex<BatchProgress>,
    changed: Condvar,
    /// Why the medium refused a write in place; kept until another try is requested or succeeds.
    refused_destage: Mutex<Option<Error>>,
    /// Why the medium refused the next batch; kept until it is written.
    refused_batch: Mutex<Option<Error>>,
    /// Held while the medium syncs. The error of a failed sync.
    syncing: Mutex<Option<Error>>,
    syncs: AtomicU64,
}

impl Durability {
    /// For a disk without batches.
    pub(crate) fn new(medium: Arc<dyn Medium>, health: Arc<FailStop>, background: bool) -> Durability {
        Durability {
            medium,
            health,
            background,
            progress: Mutex::new(BatchProgress::at(BatchSeq(0), BatchSeq(0))),
            changed: Condvar::new(),
            refused_destage: Mutex::default(),
            refused_batch: Mutex::default(),
            syncing: Mutex::default(),
            syncs: AtomicU64::new(0),
        }
    }

    /// Sets the progress that recovery found.
    pub(crate) fn resume(&self, progress: BatchProgress) {
        *self.progress.lock() = progress;
    }

    /// The progress of the batches.
    pub(crate) fn progress(&self) -> BatchProgress {
        *self.progress.lock()
    }

    /// The number of syncs of the medium.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Records that batch `seq` was written to ring and journal.
    pub(crate) fn note_written(&self, seq: BatchSeq) {
        let mut progress = self.progress.lock();
        progress.written = seq;
        *self.refused_batch.lock() = None;
    }

    /// Records that the medium refused the next batch. Flushes that wait for it get the error.
    pub(crate) fn note_refused_batch(&self, refused: Error) {
        let progress = self.progress.lock();
        *self.refused_batch.lock() = Some(refused);
        drop(progress);
        self.changed.notify_all();
    }

    /// Records that batch `seq` and all before it were written in place.
    pub(crate) fn note_applied(&self, seq: BatchSeq) {
        let mut progress = self.progress.lock();
        progress.applied = progress.applied.max(seq);
        *self.refused_destage.lock() = None;
        drop(progress);
        self.changed.notify_all();
    }

    /// Records that the medium refused a write in place; a batch that waits for it gets the error.
    /// Waits for the time of the next try. Returns whether there is one: none once the threads must
    /// end.
    pub(crate) fn wait_to_retry(&self, refused: Error) -> bool {
        let mut progress = self.progress.lock();
        *self.refused_destage.lock() = Some(refused);
        self.changed.notify_all();
        if progress.has_threads {
            self.changed.wait_for(&mut progress, RECHECK_INTERVAL);
        }
        progress.has_threads && self.health.is_alive()
    }

    /// Makes batch `seq`, which was written, and all before it durable.
    pub(crate) fn sync_to(&self, seq: BatchSeq) -> Result<()> {
        if self.progress().synced >= seq {
            return Ok(());
        }
        let syncing = self.syncing.lock();
        if self.progress().synced >= seq {
            return Ok(());
        }
        self.sync_locked(syncing)
    }

    /// Makes everything durable that was written so far, in place as well.
    pub(crate) fn sync(&self) -> Result<()> {
        self.sync_locked(self.syncing.lock())
    }

    fn sync_locked(&self, mut syncing: MutexGuard<'_, Option<Error>>) -> Result<()> {
        if let Some(e) = &*syncing {
            return Err(e.clone());
        }
        let before = self.progress();
        // Set before the sync, in case it panics.
        *syncing = Some(panic_error());
        let synced = self.medium.sync().map_err(Error::of_sync);
        *syncing = synced.as_ref().err().cloned();
        synced?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let mut progress = self.progress.lock();
        progress.synced = before.written;
        progress.applied_durable = before.applied;
        drop((progress, syncing));
        self.changed.notify_all();
        Ok(())
    }

    /// Sets whether threads do the work that [`BatchProgress::is_sync_due`] and
    /// [`BatchProgress::destage_due`] report; they end if not.
    pub(crate) fn set_threads(&self, threads: bool) {
        self.progress.lock().has_threads = threads;
        self.changed.notify_all();
    }

    /// Wakes all waiting threads, after a failure or at the end of a part of the ring.
    pub(crate) fn wake_all(&self) {
        drop(self.progress.lock());
        self.changed.notify_all();
    }

    /// Waits until `done`, or until a failure.
    pub(crate) fn wait(&self, done: impl Fn(&BatchProgress) -> bool) -> Result<()> {
        self.wait_unless(|| None, done, || Ok(())).map(drop)
    }

    /// Waits until `done`. Errors: a failure of the disk, or that of `checked`. Returns false if no
    /// batch was written for the time of `patience`.
    fn wait_unless(
        &self,
        patience: impl Fn() -> Option<Duration>,
        done: impl Fn(&BatchProgress) -> bool,
        checked: impl Fn() -> Result<()>,
    ) -> Result<bool> {
        let mut since = Instant::now();
        let mut progress = self.progress.lock();
        while !done(&progress) {
            self.health.check()?;
            checked()?;
            let written = progress.written;
            let left =
                patience().map_or(RECHECK_INTERVAL, |patience| patience.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return Ok(false);
            }
            self.changed.wait_for(&mut progress, left.min(RECHECK_INTERVAL));
            if progress.written > written {
                since = Instant::now();
            }
        }
        Ok(true)
    }

    /// Waits until another thread has made batch `seq` durable. Returns false if no batch was
    /// written for the time of `patience`. A caller that shortens `patience` meanwhile must wake
    /// the waiting threads. Errors: also the reason why the medium refuses the next batch.
    pub(crate) fn wait_synced(&self, seq: BatchSeq, patience: impl Fn() -> Option<Duration>) -> Result<bool> {
        let refusal = || self.refused_batch.lock().clone().map_or(Ok(()), Err);
        self.wait_unless(patience, |progress| progress.synced >= seq, refusal)
    }

    /// Waits until the claims of a head are true.
    ///
    /// Errors: the reason why the medium refuses writes in place, after another try.
    pub(crate) fn wait_for_claims(&self, claims: Claims) -> Result<()> {
        if self.progress().satisfies(claims) {
            return Ok(());
        }
        if !self.background {
            // Parts are synced and applied when they end, which is in time. A flush may still be
            // syncing.
            self.sync_to(claims.synced)?;
            return if self.progress().satisfies(claims) { Ok(()) } else { Err(panic_error()) };
        }
        {
            let mut progress = self.progress.lock();
            progress.wanted = progress.wanted.max(claims);
            *self.refused_destage.lock() = None;
        }
        self.changed.notify_all();
        let refusal = || self.refused_destage.lock().clone().map_or(Ok(()), Err);
        self.wait_unless(|| None, |progress| progress.satisfies(claims), refusal).map(drop)
    }
}
