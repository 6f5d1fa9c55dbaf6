//! The durability of batches: syncs the medium, and lets threads wait until batches are durable, or
//! the medium refuses them.
//!
//! Invariants: a sync makes everything durable that was written before it began, and reports that
//! only when it has returned. After a failed sync there is no other: the system has dropped the
//! pages that it could not write, and would report success.

use crate::place::BatchSeq;
use crate::progress::{Claims, Progress};
use lacuna_contracts::{Error, FailStop, Result, defect};
use lacuna_medium::Medium;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest wait of a thread without another check: not every failure wakes it.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The durability of the batches of a disk.
pub(crate) struct Durability {
    medium: Arc<dyn Medium>,
    health: Arc<FailStop>,
    /// Whether the disk has threads, or will have once it is open.
    background: bool,
    progress: Mutex<Progress>,
    moved: Condvar,
    /// Why the medium refused a write in place; kept until another try is requested or succeeds.
    refused: Mutex<Option<Error>>,
    /// Why the medium refused the next batch; kept until it is written.
    held: Mutex<Option<Error>>,
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
            progress: Mutex::new(Progress::at(BatchSeq(0), BatchSeq(0))),
            moved: Condvar::new(),
            refused: Mutex::default(),
            held: Mutex::default(),
            syncing: Mutex::default(),
            syncs: AtomicU64::new(0),
        }
    }

    /// Sets the progress that recovery found.
    pub(crate) fn resume(&self, progress: Progress) {
        *self.progress.lock() = progress;
    }

    /// The progress of the batches.
    pub(crate) fn progress(&self) -> Progress {
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
        *self.held.lock() = None;
    }

    /// Records that the medium refused the next batch. Flushes that wait for it get the error.
    pub(crate) fn note_held(&self, refused: Error) {
        let progress = self.progress.lock();
        *self.held.lock() = Some(refused);
        drop(progress);
        self.moved.notify_all();
    }

    /// Records that batch `seq` and all before it were written in place.
    pub(crate) fn note_applied(&self, seq: BatchSeq) {
        let mut progress = self.progress.lock();
        progress.applied = progress.applied.max(seq);
        *self.refused.lock() = None;
        drop(progress);
        self.moved.notify_all();
    }

    /// Records that the medium refused a write in place; a batch that waits for it gets the error.
    /// Waits for the time of the next try. Returns whether there is one: none once the threads must
    /// end.
    pub(crate) fn wait_for_try(&self, refused: Error) -> bool {
        let mut progress = self.progress.lock();
        *self.refused.lock() = Some(refused);
        self.moved.notify_all();
        if progress.threads {
            self.moved.wait_for(&mut progress, LOOK_AGAIN);
        }
        progress.threads && self.health.is_alive()
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
        self.sync_held(syncing)
    }

    /// Makes everything durable that was written so far, in place as well.
    pub(crate) fn sync(&self) -> Result<()> {
        self.sync_held(self.syncing.lock())
    }

    fn sync_held(&self, mut syncing: MutexGuard<'_, Option<Error>>) -> Result<()> {
        if let Some(e) = &*syncing {
            return Err(e.clone());
        }
        let before = self.progress();
        // Set before the sync, in case it panics.
        *syncing = Some(defect());
        let synced = self.medium.sync().map_err(Error::of_sync);
        *syncing = synced.as_ref().err().cloned();
        synced?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let mut progress = self.progress.lock();
        progress.synced = before.written;
        progress.applied_durable = before.applied;
        drop((progress, syncing));
        self.moved.notify_all();
        Ok(())
    }

    /// Sets whether threads do the work that [`Progress::wants_sync`] and
    /// [`Progress::due_in_place`] report; they end if not.
    pub(crate) fn set_threads(&self, threads: bool) {
        self.progress.lock().threads = threads;
        self.moved.notify_all();
    }

    /// Wakes all waiting threads, after a failure or at the end of a part of the ring.
    pub(crate) fn wake_all(&self) {
        drop(self.progress.lock());
        self.moved.notify_all();
    }

    /// Waits until `done`, or until a failure.
    pub(crate) fn wait(&self, done: impl Fn(&Progress) -> bool) -> Result<()> {
        self.wait_unless(|| None, done, || Ok(())).map(drop)
    }

    /// Waits until `done`. Errors: a failure of the disk, or that of `checked`. Returns false if no
    /// batch was written for the time of `patience`.
    fn wait_unless(
        &self,
        patience: impl Fn() -> Option<Duration>,
        done: impl Fn(&Progress) -> bool,
        checked: impl Fn() -> Result<()>,
    ) -> Result<bool> {
        let mut since = Instant::now();
        let mut progress = self.progress.lock();
        while !done(&progress) {
            self.health.check()?;
            checked()?;
            let written = progress.written;
            let left = patience().map_or(LOOK_AGAIN, |patience| patience.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return Ok(false);
            }
            self.moved.wait_for(&mut progress, left.min(LOOK_AGAIN));
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
        let refusal = || self.held.lock().clone().map_or(Ok(()), Err);
        self.wait_unless(patience, |progress| progress.synced >= seq, refusal)
    }

    /// Waits until the claims of a head are true.
    ///
    /// Errors: the reason why the medium refuses writes in place, after another try.
    pub(crate) fn wait_for(&self, claims: Claims) -> Result<()> {
        if self.progress().bears_out(claims) {
            return Ok(());
        }
        if !self.background {
            // Parts are synced and applied when they end, which is in time. A flush may still be
            // syncing.
            self.sync_to(claims.synced)?;
            return if self.progress().bears_out(claims) { Ok(()) } else { Err(defect()) };
        }
        {
            let mut progress = self.progress.lock();
            progress.wanted = progress.wanted.max(claims);
            *self.refused.lock() = None;
        }
        self.moved.notify_all();
        let refusal = || self.refused.lock().clone().map_or(Ok(()), Err);
        self.wait_unless(|| None, |progress| progress.bears_out(claims), refusal).map(drop)
    }
}
