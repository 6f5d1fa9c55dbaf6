//! How far the batches are durable: syncs the medium, and lets threads wait until something is so,
//! or the medium refuses it.
//!
//! Invariants: a sync makes durable what was written before it began, and says so only when it has
//! returned. After a sync that failed no other is made: the system, which has dropped what it could
//! not write, would say that all is well.

use crate::place::BatchSeq;
use crate::progress::{Claims, Progress};
use lacuna_contracts::{Error, FailStop, Result, defect};
use lacuna_medium::Medium;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A thread that waits looks again after so long: not every failure wakes it.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How far the batches of a disk are durable.
pub(crate) struct Durability {
    medium: Arc<dyn Medium>,
    health: Arc<FailStop>,
    /// Whether the disk has threads, or will have once it is open.
    background: bool,
    progress: Mutex<Progress>,
    moved: Condvar,
    /// Why the medium refused to take cells in place, from that try of the thread that does it on
    /// to the next that is asked for.
    refused: Mutex<Option<Error>>,
    /// Why the medium refused the next batch, until that is written.
    held: Mutex<Option<Error>>,
    /// Held while the medium syncs. The error of a sync that failed.
    syncing: Mutex<Option<Error>>,
    syncs: AtomicU64,
}

impl Durability {
    /// Of a disk without batches.
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

    /// Takes over how far the batches had come.
    pub(crate) fn resume(&self, progress: Progress) {
        *self.progress.lock() = progress;
    }

    /// How far the batches have come.
    pub(crate) fn progress(&self) -> Progress {
        *self.progress.lock()
    }

    /// How often the medium was synced.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Batch `seq` was written to ring and journal.
    pub(crate) fn note_written(&self, seq: BatchSeq) {
        let mut progress = self.progress.lock();
        progress.written = seq;
        *self.held.lock() = None;
    }

    /// The medium refused the next batch: flushes that wait for it are told.
    pub(crate) fn note_held(&self, refused: Error) {
        let progress = self.progress.lock();
        *self.held.lock() = Some(refused);
        drop(progress);
        self.moved.notify_all();
    }

    /// Batch `seq` and all before it were written in place.
    pub(crate) fn note_applied(&self, seq: BatchSeq) {
        let mut progress = self.progress.lock();
        progress.applied = progress.applied.max(seq);
        *self.refused.lock() = None;
        drop(progress);
        self.moved.notify_all();
    }

    /// The medium refused to take cells in place: a batch that waits for that is told. Waits for
    /// the time of the next try. Returns whether there is to be one: there is none once the threads
    /// are to end.
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
        // Also if it panics.
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

    /// From now on there are threads that do what [`Progress::wants_sync`] and
    /// [`Progress::due_in_place`] say; or they end.
    pub(crate) fn set_threads(&self, threads: bool) {
        self.progress.lock().threads = threads;
        self.moved.notify_all();
    }

    /// Wakes all waiting threads: something failed, or a part of the ring has ended.
    pub(crate) fn wake_all(&self) {
        drop(self.progress.lock());
        self.moved.notify_all();
    }

    /// Waits until `done`, or until a failure.
    pub(crate) fn wait(&self, done: impl Fn(&Progress) -> bool) -> Result<()> {
        self.wait_unless(|| None, done, || Ok(())).map(drop)
    }

    /// Waits until `done`, or until a failure or that of `checked`, or until no batch has come for
    /// so long: then it returns false.
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

    /// Waits until others have made batch `seq` durable, or until no batch has come for as long as
    /// `patience` says: then it returns false. Who shortens it meanwhile wakes those who wait.
    /// Errors: also why the medium refuses the next batch.
    pub(crate) fn wait_synced(&self, seq: BatchSeq, patience: impl Fn() -> Option<Duration>) -> Result<bool> {
        let refusal = || self.held.lock().clone().map_or(Ok(()), Err);
        self.wait_unless(patience, |progress| progress.synced >= seq, refusal)
    }

    /// Waits until what the head of a batch is going to say is so.
    ///
    /// Errors: why the medium refuses to take cells in place, after another try.
    pub(crate) fn wait_for(&self, claims: Claims) -> Result<()> {
        if self.progress().bears_out(claims) {
            return Ok(());
        }
        if !self.background {
            // Parts are synced and applied as they end: that is in time. A flush may still be
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
