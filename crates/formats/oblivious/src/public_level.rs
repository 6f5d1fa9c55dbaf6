//! The operations of level 0, and the decision when batches are written.
//!
//! Operations that count take turns: each holds the lock of this part until the batches that it
//! causes are written, so batches follow from the order of operations. Reads take no turn, and
//! continue beside a batch.
//!
//! Deniability contract: whether and when a batch is written is decided here: by operations of
//! level 0 and the paced clock, and on a plausible disk by those of every level, with a read
//! counting like a write (HIVE, Algorithm 7). The number of operations matters, not their kind. On
//! an opportunistic disk hidden operations never take a turn. A write that the medium refused is
//! tried again by the next operation that takes a turn.

use crate::batch::prepared_queue::PreparedQueue;
use crate::batch::writer::{BatchOutcome, BatchWriter};
use crate::batch_store::BatchStore;
use crate::cells::place::BatchSeq;
use crate::durability::Durability;
use crate::limits::MAX_TRIMS;
use crate::open_levels::OpenLevels;
use crate::params::Params;
use crate::plan::HidingMode;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, FailStop, OnPanic, Result, panic_error};
use lacuna_levels::Pace;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Level 0 of an open disk.
pub(crate) struct PublicLevel {
    params: Params,
    health: Arc<FailStop>,
    levels: Arc<OpenLevels>,
    prepared_queue: Arc<PreparedQueue>,
    durability: Arc<Durability>,
    store: Arc<BatchStore>,
    state: Mutex<OperationState>,
    /// Blocks that front ends wrote.
    blocks_written: AtomicU64,
    /// Batches that the paced cover caused.
    refreshes: AtomicU64,
}

/// The state that one operation at a time holds.
struct OperationState {
    /// Operations since the last batch.
    operations: usize,
    writer: BatchWriter,
}

impl PublicLevel {
    /// Level 0 over the same parts as `writer`.
    pub(crate) fn new(
        params: Params,
        health: Arc<FailStop>,
        levels: Arc<OpenLevels>,
        ahead: Arc<PreparedQueue>,
        durability: Arc<Durability>,
        store: Arc<BatchStore>,
        writer: BatchWriter,
    ) -> PublicLevel {
        PublicLevel {
            params,
            health,
            levels,
            prepared_queue: ahead,
            durability,
            store,
            state: Mutex::new(OperationState { operations: 0, writer }),
            blocks_written: AtomicU64::new(0),
            refreshes: AtomicU64::new(0),
        }
    }

    /// Enters fail-stop for good, wakes all waiting threads of the parts below, and returns the
    /// error.
    pub(crate) fn fail(&self, e: Error) -> Error {
        let e = self.health.fail(e);
        self.levels.wake_all();
        self.durability.wake_all();
        self.prepared_queue.wake_all();
        e
    }

    /// Runs an operation in its turn. A panic fails the disk before the next turn.
    fn run_operation<T>(&self, operation: impl FnOnce(&mut OperationState) -> Result<T>) -> Result<T> {
        let mut turn = self.state.lock();
        let _guard = OnPanic::new(|| drop(self.fail(panic_error())));
        self.health.check()?;
        operation(&mut turn)
    }

    /// Continues after batch `seq`, which the next head calls `name`. It is durable with all before
    /// it, and those up to `applied` are durable in place.
    pub(crate) fn resume(&self, seq: BatchSeq, name: [u8; 16], applied: BatchSeq) {
        self.state.lock().writer.resume(seq, name, applied);
    }

    /// Takes in blocks of level 0. Every block counts, even one that is written twice in a row: the
    /// number of batches does not show which blocks were written.
    pub(crate) fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        let blocks = data.len() / BLOCK_SIZE;
        self.blocks_written.fetch_add(blocks as u64, Ordering::Relaxed);
        // The batch that takes the blocks then finds the leaves in memory.
        self.levels.warm(first, blocks as u64);
        self.run_operation(|turn| {
            let mut done = 0;
            while done < blocks {
                self.write_due_batches(turn)?;
                let until_batch = self.params.batch_blocks() - turn.operations;
                let part = until_batch.min(blocks - done);
                let data = &data[done * BLOCK_SIZE..(done + part) * BLOCK_SIZE];
                self.levels.queue_public(BlockAddr(first.0 + done as u64), data);
                self.add_operations(turn, part)?;
                done += part;
            }
            Ok(())
        })
    }

    /// Makes blocks of level 0 unwritten. The discard counts whether or not any of them was
    /// written.
    pub(crate) fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.levels.warm(first, count);
        self.run_operation(|turn| {
            self.write_due_batches(turn)?;
            self.levels.discard_public(first, count).map_err(|e| self.fail(e))?;
            self.add_operations(turn, self.discard_operations())?;
            // If the discard changed more pages than the cache should hold, they are written before
            // it returns.
            while self.levels.with_map(0, |map| map.is_over_dirty_limit()) {
                self.write_batch(turn)?;
            }
            Ok(())
        })
    }

    /// The number of operations that a discard counts for: a batch records at most `MAX_TRIMS`
    /// discards.
    fn discard_operations(&self) -> usize {
        self.params.batch_blocks().div_ceil(MAX_TRIMS)
    }

    /// A discard of a hidden level on a plausible disk.
    pub(crate) fn count_discard(&self) -> Result<()> {
        self.count_operations(self.discard_operations())
    }

    /// Counts operations of any level on a plausible disk, except writes and discards of level 0,
    /// which count themselves.
    pub(crate) fn count_operations(&self, operations: usize) -> Result<()> {
        if self.params.plan.hiding == HidingMode::Opportunistic {
            return Ok(());
        }
        self.run_operation(|turn| {
            self.write_due_batches(turn)?;
            self.add_operations(turn, operations)
        })
    }

    /// Counts operations, and writes the batches that they fill.
    fn add_operations(&self, turn: &mut OperationState, operations: usize) -> Result<()> {
        turn.operations += operations;
        self.write_due_batches(turn)
    }

    /// Writes the batches that are due: one that the medium refused, unchanged, and all that
    /// operations have filled.
    ///
    /// Errors: the reason why the medium refuses batches; nothing is lost then, and the batches
    /// stay due.
    fn write_due_batches(&self, turn: &mut OperationState) -> Result<()> {
        if turn.writer.has_refused() && self.handle_outcome(turn.writer.retry_refused())? {
            self.write_batch(turn)?;
        }
        while turn.operations >= self.params.batch_blocks() {
            self.write_batch(turn)?;
        }
        Ok(())
    }

    /// Writes a batch, and all that must follow at once. No batch may be held.
    fn write_batch(&self, turn: &mut OperationState) -> Result<()> {
        self.health.check()?;
        loop {
            let before = turn.operations;
            turn.operations = before.saturating_sub(self.params.batch_blocks());
            let written = turn.writer.write();
            if matches!(written, Ok(BatchOutcome::Postponed(_))) {
                turn.operations = before;
            }
            if !self.handle_outcome(written)? {
                return Ok(());
            }
        }
    }

    /// Writes a batch whatever is pending, even if the operations so far do not fill one.
    fn force_batch(&self, turn: &mut OperationState) -> Result<()> {
        self.write_due_batches(turn)?;
        let before = std::mem::take(&mut turn.operations);
        let written = self.write_batch(turn);
        if written.is_err() && !turn.writer.has_refused() {
            turn.operations = before;
        }
        written
    }

    /// Whether another batch must follow at once. Errors: the reason why the medium refused this
    /// one; any other error is fail-stop.
    fn handle_outcome(&self, outcome: Result<BatchOutcome>) -> Result<bool> {
        match outcome.map_err(|e| self.fail(e))? {
            BatchOutcome::Written { needs_another: another } => Ok(another),
            BatchOutcome::Refused(e) => {
                self.durability.note_refused_batch(e.clone());
                Err(e)
            }
            BatchOutcome::Postponed(e) => Err(e),
        }
    }

    /// Makes everything that level 0 acknowledged durable.
    pub(crate) fn flush(&self) -> Result<()> {
        let last = self.run_operation(|turn| {
            self.write_due_batches(turn)?;
            if turn.operations > 0 {
                self.force_batch(turn)?;
            }
            while self.levels.with(0, |level0, _| !level0.queue.trims().is_empty()) {
                self.write_batch(turn)?;
            }
            turn.writer.note_flushed();
            Ok(turn.writer.last())
        })?;
        self.durability.sync_to(last).map_err(|e| self.fail(e))
    }

    /// One beat of the paced cover. If the medium refuses its batch, the next beat tries again.
    pub(crate) fn refresh(&self) -> Result<()> {
        self.refreshes.fetch_add(1, Ordering::Relaxed);
        self.write_cover_batch().map(drop)
    }

    /// Writes the batches of cover that closing takes, whatever is pending.
    pub(crate) fn cover_closing(&self, pace: Pace) -> Result<()> {
        self.params.closing_cover().write(pace, |durable| {
            if durable {
                return self.write_cover_batch().map(drop);
            }
            self.run_operation(|turn| self.force_batch(turn))
        })
    }

    /// Writes a batch, whatever is pending, and makes it durable. Returns its number.
    fn write_cover_batch(&self) -> Result<BatchSeq> {
        let last = self.run_operation(|turn| {
            self.force_batch(turn)?;
            turn.writer.note_flushed();
            Ok(turn.writer.last())
        })?;
        self.durability.sync_to(last).map_err(|e| self.fail(e))?;
        Ok(last)
    }

    /// Makes everything durable in place, and writes a batch that claims so and holds nothing new.
    /// After that a batch that cannot be read is damage and not the end of the log, and opening has
    /// no work left.
    pub(crate) fn finish(&self) -> Result<()> {
        let last = self.write_cover_batch()?;
        self.store.apply_to(last).map_err(|e| self.fail(e))?;
        self.durability.sync().map_err(|e| self.fail(e))?;
        self.state.lock().writer.note_applied(last);
        self.write_cover_batch().map(drop)
    }

    /// Blocks that front ends wrote to level 0.
    pub(crate) fn blocks_written(&self) -> u64 {
        self.blocks_written.load(Ordering::Relaxed)
    }

    /// Batches that the paced cover caused.
    pub(crate) fn refreshes(&self) -> u64 {
        self.refreshes.load(Ordering::Relaxed)
    }
}
