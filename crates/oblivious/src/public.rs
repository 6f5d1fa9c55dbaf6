//! Level 0, and when batches are written.
//!
//! Deniability contract: whether and when a batch is written is decided here: by operations of level 0 and the paced clock,
//! and on a plausible disk by those of every level, a read like a write (the paper's Algorithm 7). What the operations do
//! does not matter, their number does.

use crate::batch::{Batch, Buffers};
use crate::core::Core;
use crate::head::{MOST_TRIMS, STASH_SLOTS};
use crate::params::Hiding;
use lacuna_core::{BLOCK_SIZE, Result};
use lacuna_levels::{HiddenLevel, Waiting};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

/// What level 0 knows.
pub(crate) struct Public {
    pub(crate) level: HiddenLevel,
    /// The last batch, and by what the next one names it.
    seq: u64,
    name: [u8; 16],
    /// Operations since then.
    operations: usize,
    buffers: Buffers,
}

impl Public {
    /// Level 0 of a disk without batches.
    pub(crate) fn new(level: HiddenLevel) -> Public {
        Public { level, seq: 0, name: [0; 16], operations: 0, buffers: Buffers::default() }
    }

    /// Goes on after batch `seq`, which the next one calls `name`.
    pub(crate) fn resume(&mut self, seq: u64, name: [u8; 16]) {
        self.seq = seq;
        self.name = name;
    }
}

impl Core {
    /// Takes blocks of level 0 in. Every one counts, also one that is written again at once: how many batches there are says
    /// nothing of which blocks were written.
    pub(crate) fn write_public(&self, first: u64, data: &[u8]) -> Result<()> {
        let mut public = self.public();
        for (addr, block) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            self.health.check()?;
            let queue = &mut public.level.queue;
            match queue.get_mut(addr) {
                Some(waiting) => waiting.copy_from_slice(block),
                None => queue.put(addr, Waiting { block: block.into(), first_write: false }),
            }
            self.operate(&mut public, 1)?;
        }
        Ok(())
    }

    /// Makes blocks of level 0 unwritten. Counts whether any of them was written or not.
    pub(crate) fn discard_public(&self, first: u64, count: u64) -> Result<()> {
        self.health.check()?;
        let mut public = self.public();
        let HiddenLevel { tree, queue } = &mut public.level;
        queue.discard(first, count);
        if tree.any(first, count, &self.source(0)).map_err(|e| self.fail(e))? {
            queue.trim(first, count);
        }
        self.operate(&mut public, self.discard_operations())?;
        // Pages that the discard changed are written before it is answered, once there are more than the cache should hold.
        while public.level.tree.crowded() {
            self.batch(&mut public)?;
        }
        Ok(())
    }

    /// For how many operations a discard counts: a batch records no more than some.
    fn discard_operations(&self) -> usize {
        self.store.params.batch_blocks().div_ceil(MOST_TRIMS)
    }

    /// A discard of a hidden level on a plausible disk.
    pub(crate) fn pass_discard_for_public(&self) -> Result<()> {
        self.pass_for_public(self.discard_operations())
    }

    /// Counts operations, and writes the batches that they fill.
    fn operate(&self, public: &mut Public, operations: usize) -> Result<()> {
        public.operations += operations;
        while public.operations >= self.store.params.batch_blocks() {
            self.batch(public)?;
        }
        Ok(())
    }

    /// Operations of any level on a plausible disk: those of level 0 that write count for themselves.
    pub(crate) fn pass_for_public(&self, operations: usize) -> Result<()> {
        if self.store.params.plan.hiding == Hiding::Opportunistic || self.read_only {
            return Ok(());
        }
        self.health.check()?;
        self.operate(&mut self.public(), operations)
    }

    /// Writes a batch. And more, which says something of level 0 to whoever counts them, in cases that are all but impossible:
    /// that the stash is too small for what found no cell, or that the map is so far behind that the journal might come round
    /// to what its pages do not say yet.
    fn batch(&self, public: &mut Public) -> Result<()> {
        self.health.check()?;
        loop {
            public.operations = public.operations.saturating_sub(self.store.params.batch_blocks());
            self.write_batch(public).map_err(|e| self.fail(e))?;
            let behind =
                public.level.tree.state().covered + 3 * u64::from(self.store.params.cycle) < public.seq;
            if public.level.queue.len() <= STASH_SLOTS && !behind {
                return Ok(());
            }
        }
    }

    fn write_batch(&self, public: &mut Public) -> Result<()> {
        let seq = public.seq + 1;
        self.store.wait_room(&self.health, self.background, seq)?;
        let mut batch = Batch::draw(self, seq, std::mem::take(&mut public.buffers))?;
        let params = &self.store.params;
        // No more than there are operations, or the stash would not keep its bound.
        let idle = usize::from(params.plan.operations).saturating_sub(public.level.queue.len());
        let pages = idle.max(usize::from(params.page_writes));
        batch.fill(0, &mut public.level, pages)?;
        let mut hidden = self.hidden.lock_all(&self.health);
        for (level, state) in (1u8..).zip(&mut hidden) {
            batch.fill(level, &mut state.level, usize::MAX)?;
        }
        // The maps point into this batch already: they stay locked until it can be read.
        let (salt, buffers) = batch.write(public.name)?;
        for (level, state) in (1u8..).zip(&mut hidden) {
            self.hidden.passed(level, state, seq);
        }
        drop(hidden);
        public.seq = seq;
        public.name = salt[..16].try_into().expect("16 of 32 bytes");
        public.buffers = buffers;
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        if seq.is_multiple_of(params.part()) { self.end_part(seq) } else { Ok(()) }
    }

    /// Makes everything that level 0 acknowledged durable.
    pub(crate) fn flush_public(&self) -> Result<()> {
        self.health.check()?;
        let mut public = self.public();
        if public.operations > 0 {
            public.operations = 0;
            self.batch(&mut public)?;
        }
        while !public.level.queue.trims().is_empty() {
            self.batch(&mut public)?;
        }
        self.settle(public).map(drop)
    }

    /// One beat of the paced cover: a batch, whatever waits for it, and a sync.
    ///
    /// Returns its number.
    pub(crate) fn refresh(&self) -> Result<u64> {
        self.health.check()?;
        let mut public = self.public();
        public.operations = 0;
        self.batch(&mut public)?;
        self.settle(public)
    }

    /// Makes everything durable that was written, up to the batch that is returned.
    fn settle(&self, public: MutexGuard<'_, Public>) -> Result<u64> {
        let seq = public.seq;
        drop(public);
        self.store.sync_to(seq).map_err(|e| self.fail(e))?;
        Ok(seq)
    }

    /// A flush of a hidden level. On an opportunistic disk it causes nothing and waits; on a plausible one it passes for
    /// one of level 0.
    pub(crate) fn flush_hidden(&self, level: u8) -> Result<()> {
        if self.store.params.plan.hiding == Hiding::Plausible {
            let ticket = self.hidden.ticket(&self.health, level);
            while !self.hidden.has_passed(&self.health, level, ticket) {
                self.refresh()?;
            }
            return self.flush_public();
        }
        let wait = self.wait();
        let passed = self.hidden.wait_passed(&wait, level)?;
        if self.store.wait(&self.health, wait.patience, |progress| progress.synced() >= passed)? {
            return Ok(());
        }
        Err(lacuna_levels::no_sync())
    }

    /// Makes everything durable in place, and says so in a batch that holds nothing new: from then on whatever cannot be
    /// read was damaged, and is no end of the log; and nothing is left to do for whoever opens the disk.
    pub(crate) fn finish(&self) -> Result<()> {
        let seq = self.refresh()?;
        self.store.apply_to(seq).map_err(|e| self.fail(e))?;
        self.store.sync().map_err(|e| self.fail(e))?;
        self.refresh().map(drop)
    }
}
