//! Writes the cache back: takes pending blocks of a segment, has a transaction performed, and
//! reports the outcome to the cache and the waiting threads.
//!
//! Invariants:
//! - A transaction that the store refused (mostly for lack of space), or that could not read
//!   something it needs ([`lacuna_contracts::Error::changed_nothing`]), did not happen: the state
//!   is unchanged, and it is tried again.
//! - Fail-stop on any other error: nothing more is written. The transaction stays in flight for
//!   good, so that no cached knowledge of its object is used; and reads of the cache's content
//!   fail, since it will be lost after a reopening.

use crate::segment::{Segment, blocks_in};
use crate::writing::dirty_cache::{BegunTransaction, DirtyCache};
use crate::writing::pending_segment::CacheVersion;
use crate::writing::transactor::Transactor;
use crate::writing::write_queue::WriteQueue;
use lacuna_contracts::{Error, FailStop, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The path from the cache to the store.
pub(crate) struct WriteBack {
    cache: Arc<DirtyCache>,
    queue: Arc<WriteQueue>,
    transactor: Transactor,
    /// The largest number of blocks in a transaction.
    batch_blocks: usize,
    health: FailStop,
    /// Transactions that bypassed the cache.
    direct: AtomicU64,
}

impl WriteBack {
    pub(crate) fn new(
        cache: Arc<DirtyCache>,
        schedule: Arc<WriteQueue>,
        transactor: Transactor,
        batch_blocks: usize,
    ) -> WriteBack {
        let health = FailStop::of_disk("store");
        WriteBack { cache, queue: schedule, transactor, batch_blocks, health, direct: AtomicU64::new(0) }
    }

    /// Writes the pending blocks of a segment, or a batch of them. Does nothing if another thread
    /// is writing it. Fail-stop on errors, except if they changed nothing.
    pub(crate) fn write_segment(&self, segment: Segment) -> Result<()> {
        self.health.check()?;
        let Some(begun) = self.cache.begin(segment, self.batch_blocks) else {
            // The pending blocks may have been dropped, and their space freed.
            self.queue.notify_space();
            return Ok(());
        };
        self.run_transaction(segment, &begun, &[])
    }

    /// Writes consecutive blocks of a segment past the cache. `false`: another transaction is in
    /// flight, or a discard is pending.
    pub(crate) fn write_direct(&self, segment: Segment, index: u64, data: &[u8]) -> Result<bool> {
        // Until its ciphertext may be in flight, the write does not hold the object: other writes
        // to the object would go through the cache meanwhile.
        let _permit = self.transactor.wait_for_transit(blocks_in(data));
        // The wait may have been for a transaction that failed.
        self.health.check()?;
        let begun = self.cache.begin_direct(segment, index..index + blocks_in(data));
        let Some(begun) = begun else { return Ok(false) };
        self.run_transaction(segment, &begun, data)?;
        self.direct.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Writes blocks of a segment past the cache, waiting as long as necessary.
    pub(crate) fn write_now(&self, segment: Segment, index: u64, data: &[u8]) -> Result<()> {
        while !self.write_direct(segment, index, data)? {
            self.cache.wait_idle(segment, || self.has_failed());
            self.health.check()?;
        }
        Ok(())
    }

    /// Performs a transaction and ends it: queues the segment again if it has pending work, and
    /// wakes writers.
    fn run_transaction(&self, segment: Segment, begun: &BegunTransaction, direct: &[u8]) -> Result<()> {
        let (list, refused) = match self.transactor.perform(segment, begun, direct) {
            Ok(absent) => (self.cache.commit(segment, &begun.work, absent), None),
            Err(e) if e.changed_nothing() => (self.cache.abort(segment, begun), Some(e)),
            Err(e) => return Err(self.fail(e)),
        };
        self.queue.record_store_space(refused.as_ref());
        if list {
            self.queue.push(segment);
        }
        self.queue.notify_space();
        refused.map_or(Ok(()), Err)
    }

    /// Writes all acknowledged data.
    pub(crate) fn flush(&self) -> Result<()> {
        self.health.check()?;
        if self.cache.dirty_bytes() == 0 {
            return Ok(());
        }
        let (segments, newest) = self.cache.pending_segments();
        self.queue.begin_drain(segments.len());
        let drained = segments.into_iter().try_for_each(|segment| self.drain(segment, newest));
        self.queue.end_drain();
        drained
    }

    /// Writes, with other threads, until all versions of a segment up to `newest` are in the store.
    fn drain(&self, segment: Segment, newest: CacheVersion) -> Result<()> {
        while !self.cache.is_written(segment, newest) {
            self.health.check()?;
            match self.queue.pop() {
                Some(next) => self.write_segment(next)?,
                None => self.cache.wait_written(segment, newest, || self.has_failed()),
            }
        }
        Ok(())
    }

    /// Enters fail-stop for good, except if the error changed nothing because the store refused
    /// something or a read failed. Returns the error.
    pub(crate) fn fail_unless_refused(&self, e: Error) -> Error {
        if e.changed_nothing() { e } else { self.fail(e) }
    }

    /// Enters fail-stop for good and returns the error.
    pub(crate) fn fail(&self, e: Error) -> Error {
        let e = self.health.fail(e);
        self.queue.wake_all();
        self.cache.set_write_failure(self.health.refusal());
        e
    }

    pub(crate) fn has_failed(&self) -> bool {
        !self.health.is_alive()
    }

    /// The fail-stop error, after a failure on the write path.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.health.check()
    }

    /// Counts for `status`: transactions, blocks, transactions past the cache, objects rewritten
    /// after a refusal.
    pub(crate) fn counts(&self) -> [u64; 4] {
        let [transactions, blocks, renewed] = self.transactor.counts();
        [transactions, blocks, self.direct.load(Ordering::Relaxed), renewed]
    }
}
