//! Level 0, and when batches are written.
//!
//! Deniability contract: whether and when a batch is written is decided here: by operations of level 0 and the paced clock,
//! and on a plausible disk by those of every level, a read like a write (the paper's Algorithm 7). What the operations do
//! does not matter, their number does.

use crate::ahead::{DEPTH, Prepared};
use crate::batch::{Batch, Shares};
use crate::core::Core;
use crate::head::MOST_TRIMS;
use crate::params::{Hiding, STASH_SLOTS};
use crate::progress::Claims;
use lacuna_core::{BLOCK_SIZE, Result};
use lacuna_levels::{HiddenLevel, Waiting};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
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
    /// What heads may say beside the schedule: how far batches were durable when the disk was opened or brought to its end.
    known: Claims,
    /// The batches of the last flushes.
    flushes: VecDeque<u64>,
    /// The last batches, where they are prepared ahead.
    recent: VecDeque<Recent>,
}

/// A batch as it went to the ring.
struct Recent {
    seq: u64,
    /// Which of its cells is which.
    slots: FxHashMap<u64, usize>,
    record: Vec<u8>,
}

/// Flushes after which heads say that one was durable: by then it is, or the batch waits for it.
const FLUSHES: usize = 4;

impl Public {
    /// Level 0 of a disk without batches.
    pub(crate) fn new(level: HiddenLevel) -> Public {
        Public {
            level,
            seq: 0,
            name: [0; 16],
            operations: 0,
            known: Claims::default(),
            flushes: VecDeque::new(),
            recent: VecDeque::new(),
        }
    }

    /// Goes on after batch `seq`, which the next one calls `name`, and which is durable with all before it, in place those up
    /// to `applied`.
    pub(crate) fn resume(&mut self, seq: u64, name: [u8; 16], applied: u64) {
        self.seq = seq;
        self.name = name;
        self.known = Claims { synced: seq, applied };
    }

    /// What the head of batch `seq` says. It follows from the numbers of batches and flushes, and never from how far a thread
    /// was (deniability contract).
    fn claims(&self, core: &Core, seq: u64) -> Claims {
        let flushed = if self.flushes.len() == FLUSHES { self.flushes[0] } else { 0 };
        core.store.params.schedule(seq).max(self.known).max(Claims { synced: flushed, applied: 0 })
    }

    fn flushed(&mut self) {
        if self.flushes.len() == FLUSHES {
            self.flushes.pop_front();
        }
        self.flushes.push_back(self.seq);
    }
}

impl Core {
    /// Takes blocks of level 0 in. Every one counts, also one that is written again at once: how many batches there are says
    /// nothing of which blocks were written.
    pub(crate) fn write_public(&self, first: u64, data: &[u8]) -> Result<()> {
        // The batch that takes the blocks finds the leaves in memory.
        self.warm_public(first, (data.len() / BLOCK_SIZE) as u64);
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
        self.warm_public(first, count);
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
        if self.store.params.plan.hiding == Hiding::Opportunistic || self.mode.read_only {
            return Ok(());
        }
        self.health.check()?;
        self.operate(&mut self.public(), operations)
    }

    /// Writes a batch. And more, which says something of level 0 to those who count them, in cases that are rare:
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
        let (seq, params) = (public.seq + 1, &self.store.params);
        let claims = public.claims(self, seq);
        self.store.wait_for(&self.health, self.mode.background, claims)?;
        let mut drawn = self.ahead.take(self)?;
        self.take_again(public, &mut drawn)?;
        let mut batch = Batch::new(self, seq, drawn)?;
        // No more than there are operations, or the stash would not keep its bound.
        let idle = usize::from(params.plan.operations).saturating_sub(public.level.queue.len());
        let pages = idle.max(usize::from(params.page_writes));
        batch.fill(0, &mut public.level, Shares { pages, blocks: usize::MAX, more_pages: 0 })?;
        let mut hidden = self.hidden.lock_all(&self.health);
        for (level, state) in (1u8..).zip(&mut hidden) {
            let (pages, blocks) = (params.page_share(level), params.most_taken(level));
            batch.fill(level, &mut state.level, Shares { pages, blocks, more_pages: usize::MAX })?;
        }
        // The maps point into this batch already: they stay locked until it can be read.
        let recent = if public.recent.len() > DEPTH { public.recent.pop_front() } else { None };
        let mut record = recent.map_or_else(Vec::new, |recent| recent.record);
        let slots = batch.slots_of_cells();
        let (salt, old) = batch.write(public.name, claims, &mut record)?;
        for (level, state) in (1u8..).zip(&mut hidden) {
            self.hidden.passed(level, state, seq);
        }
        drop(hidden);
        self.ahead.give_back(old);
        public.recent.push_back(Recent { seq, slots, record });
        public.seq = seq;
        public.name = salt[..16].try_into().expect("16 of 32 bytes");
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        if seq.is_multiple_of(params.part()) { self.end_part(seq) } else { Ok(()) }
    }

    /// Cells that batches rewrote after they were read for this one are taken from memory.
    fn take_again(&self, public: &Public, drawn: &mut Prepared) -> Result<()> {
        let len = self.store.params.cell_len();
        for slot in 0..drawn.cells.len() {
            let cell = drawn.cells[slot];
            // The latest of them.
            let since = public.recent.iter().rev().take_while(|recent| recent.seq > drawn.as_of);
            let again = since.filter_map(|recent| Some((recent.slots.get(&cell)?, recent))).next();
            let Some((at, recent)) = again else { continue };
            drawn.old[slot * len..(slot + 1) * len].copy_from_slice(&recent.record[at * len..(at + 1) * len]);
            drawn.open(self, slot)?;
        }
        Ok(())
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
    fn settle(&self, mut public: MutexGuard<'_, Public>) -> Result<u64> {
        let seq = public.seq;
        public.flushed();
        drop(public);
        self.store.sync_to(seq).map_err(|e| self.fail(e))?;
        Ok(seq)
    }

    /// A flush of a hidden level. It causes nothing and waits until batches that others cause have taken everything, and are
    /// durable.
    pub(crate) fn flush_hidden(&self, level: u8) -> Result<()> {
        let wait = self.wait();
        let passed = self.hidden.wait_passed(&wait, level)?;
        if self.store.wait(&self.health, wait.patience, |progress| progress.synced() >= passed)? {
            return Ok(());
        }
        Err(lacuna_levels::no_sync())
    }

    /// Makes everything durable in place, and says so in a batch that holds nothing new: from then on whatever cannot be
    /// read was damaged, and is no end of the log; and nothing is left to do when the disk is opened.
    pub(crate) fn finish(&self) -> Result<()> {
        let seq = self.refresh()?;
        self.store.apply_to(seq).map_err(|e| self.fail(e))?;
        self.store.sync().map_err(|e| self.fail(e))?;
        self.public().known = Claims { synced: seq, applied: seq };
        self.refresh().map(drop)
    }
}
