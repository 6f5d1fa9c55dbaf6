//! The open levels: the map, the queue and the cells of each.
//!
//! A read looks up a block under the lock of its level, and reads the cell without it. A batch
//! holds the lock of one level at a time, while that level fills its cells, and none while it is
//! written. Reads therefore wait neither for other reads of cells nor for a batch.
//!
//! Deniability contract: no two levels share a lock, a queue or memory, and nothing here decides
//! that anything is written. Hidden operations lock their own level alone.

use crate::cells::level_cells::LevelCells;
use crate::cells::place::BatchSeq;
use crate::durability::Durability;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, FailStop, Kind, OnPanic, Result, StatusItem, panic_error};
use lacuna_levels::{CoverWait, HiddenLevels, LevelMap, OpenMode, PendingBlock, QueuedLevel, no_sync, warm};
use parking_lot::Mutex;
use std::sync::Arc;

/// The open levels of a disk, starting at level 0.
pub(crate) struct OpenLevels {
    health: Arc<FailStop>,
    durability: Arc<Durability>,
    mode: OpenMode,
    /// Milliseconds between beats of the paced cover.
    cover_millis: u32,
    level0: Mutex<QueuedLevel>,
    hidden: HiddenLevels,
    cells: Vec<LevelCells>,
}

impl OpenLevels {
    /// `hidden` has one level less than `cells`.
    pub(crate) fn new(
        level0: QueuedLevel,
        hidden: HiddenLevels,
        cells: Vec<LevelCells>,
        durability: Arc<Durability>,
        health: Arc<FailStop>,
        mode: OpenMode,
        cover_millis: u32,
    ) -> OpenLevels {
        debug_assert!(hidden.count() + 1 == cells.len());
        OpenLevels { health, durability, mode, cover_millis, level0: Mutex::new(level0), hidden, cells }
    }

    /// The number of open levels.
    pub(crate) fn count(&self) -> u8 {
        self.cells.len() as u8
    }

    /// Wakes all waiting threads, after a failure.
    pub(crate) fn wake_all(&self) {
        self.hidden.wake_all();
    }

    /// The cells of a level.
    pub(crate) fn cells(&self, level: u8) -> &LevelCells {
        &self.cells[usize::from(level)]
    }

    /// Runs `act` on a level under its lock. A panic in it fails the disk.
    pub(crate) fn with<T>(&self, level: u8, act: impl FnOnce(&mut QueuedLevel, &LevelCells) -> T) -> T {
        if level > 0 {
            return act(&mut self.hidden.lock(&self.health, level).level, self.cells(level));
        }
        let mut level0 = self.level0.lock();
        let _guard = OnPanic::new(|| drop(self.health.fail(panic_error())));
        act(&mut level0, self.cells(0))
    }

    /// How a hidden operation waits for cover.
    fn cover_wait(&self) -> CoverWait<'_> {
        self.mode.cover_wait(&self.health, self.cover_millis)
    }

    // Reading.

    /// Reads blocks of a level.
    pub(crate) fn read(&self, level: u8, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        let mut places = vec![0; buf.len() / BLOCK_SIZE];
        self.locate(level, first, buf, &mut places)?;
        loop {
            let read = self.cells(level).read_blocks(first, &places, buf);
            if !read.as_ref().is_err_and(|e| e.kind() == Kind::Corrupt) {
                return read;
            }
            // Optimistic read: look the places up again on failure, because a batch may have moved
            // a block and put another into its cell.
            let mut now = vec![0; places.len()];
            self.locate(level, first, buf, &mut now)?;
            if now == places {
                return read;
            }
            places = now;
        }
    }

    /// Sets the places of blocks that are in cells. All other blocks are read at once, and their
    /// places set to 0.
    fn locate(&self, level: u8, first: BlockAddr, buf: &mut [u8], places: &mut [u64]) -> Result<()> {
        if level > 0 {
            return self.hidden.locate(&self.health, level, first.0, buf, places, self.cells(level));
        }
        if self.with(0, |level0, _| level0.locate_in_memory(first.0, buf, places)) {
            return Ok(());
        }
        self.warm(first, places.len() as u64);
        self.with(0, |level0, cells| level0.locate(first.0, buf, places, cells))
    }

    /// Loads the leaves with the places of blocks of level 0, without its lock.
    pub(crate) fn warm(&self, first: BlockAddr, count: u64) {
        warm(first.0, count, self.cells(0), |act| self.with_map(0, act));
    }

    /// Runs `act` on the map of a level under its lock.
    pub(crate) fn with_map<T>(&self, level: u8, act: impl FnOnce(&mut LevelMap) -> T) -> T {
        self.with(level, |state, _| act(&mut state.tree))
    }

    /// Which of `count` blocks of a level are written.
    pub(crate) fn are_written(&self, level: u8, first: BlockAddr, count: usize) -> Result<Vec<bool>> {
        if level > 0 {
            return self.hidden.are_written(&self.health, level, first.0, count, self.cells(level));
        }
        self.with(0, |level0, cells| level0.are_written(first.0, count, cells))
    }

    /// The counters of a level.
    pub(crate) fn status(&self, level: u8) -> Vec<StatusItem> {
        if level > 0 {
            return self.hidden.status(&self.health, level);
        }
        self.with(0, |level0, _| {
            let mut items = Vec::from(level0.tree.status());
            items.push(StatusItem::new("waiting_for_cells", level0.queue.len() as u64, "blocks"));
            items
        })
    }

    // Level 0, for the operation that has the turn (`public_level.rs`).

    /// Queues blocks of level 0.
    pub(crate) fn queue_public(&self, first: BlockAddr, data: &[u8]) {
        self.with(0, |level0, _| {
            for (addr, block) in (first.0..).zip(data.chunks_exact(BLOCK_SIZE)) {
                match level0.queue.get_mut(addr) {
                    Some(pending) => pending.copy_from_slice(block),
                    None => level0.queue.put(addr, PendingBlock::new(block.into())),
                }
            }
        });
    }

    /// Queues a discard of level 0.
    pub(crate) fn discard_public(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.with(0, |QueuedLevel { tree, queue }, cells| {
            queue.discard(first.0, count);
            if tree.has_written(first.0, count, &cells.retrying_pages())? {
                queue.trim(first.0, count);
            }
            Ok(())
        })
    }

    // Hidden levels.

    /// Queues blocks of a hidden level. Waits while too much is queued.
    pub(crate) fn write_hidden(&self, level: u8, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.hidden.write(&self.cover_wait(), level, first.0, data, self.cells(level))
    }

    /// Queues a discard of a hidden level. Waits while too many are queued.
    pub(crate) fn discard_hidden(&self, level: u8, first: BlockAddr, count: u64) -> Result<()> {
        self.hidden.discard(&self.cover_wait(), level, first.0, count, self.cells(level))
    }

    /// A flush of a hidden level. It causes no write: it waits until batches with other causes have
    /// taken everything, and are durable.
    pub(crate) fn flush_hidden(&self, level: u8) -> Result<()> {
        let wait = self.cover_wait();
        let taken = BatchSeq(self.hidden.wait_taken(&wait, level)?);
        let durable = self.durability.wait_synced(taken, || self.hidden.timeout(&wait, level))?;
        if durable { Ok(()) } else { Err(no_sync()) }
    }

    /// Sets whether operations of a hidden level stop waiting for cover.
    pub(crate) fn set_no_wait(&self, level: u8, gives_up: bool) {
        self.hidden.set_no_wait(level, gives_up);
        if gives_up {
            self.durability.wake_all();
        }
    }

    /// Records that the user of a hidden level was told of a loss.
    pub(crate) fn note_loss(&self, level: u8) {
        self.hidden.note_loss(level);
    }

    /// Errors: [`Kind::NoCover`] if a hidden level has anything pending, or has lost something.
    pub(crate) fn check_nothing_pending(&self) -> Result<()> {
        self.hidden.check_nothing_pending(&self.health)
    }

    // Batches.

    /// Lets a hidden level fill its cells in batch `seq`. Its queue and the number of the batch
    /// change under one lock, so a flush that finds the queue empty waits for the right batch to be
    /// durable.
    pub(crate) fn fill_hidden(
        &self,
        level: u8,
        seq: BatchSeq,
        fill: impl FnOnce(&mut QueuedLevel, &LevelCells) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.hidden.lock(&self.health, level);
        fill(&mut state.level, self.cells(level))?;
        self.hidden.mark_filled(level, &mut state, seq.0);
        Ok(())
    }

    /// Records that the last batch can be read from its cells.
    pub(crate) fn complete(&self) {
        self.cells.iter().for_each(LevelCells::complete);
    }

    /// Continues after batch `seq`, the last on the medium.
    pub(crate) fn resume(&self, seq: BatchSeq) {
        for level in 1..self.count() {
            self.hidden.lock(&self.health, level).last_filled = seq.0;
        }
    }
}
