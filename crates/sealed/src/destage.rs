//! Destaging: from the journal to the segments, and the end of what the journal holds.
//!
//! Order is all: a batch is retired only after its blocks are durable in their slots, and after the map says so durably.

use crate::cache::Committed;
use crate::commit::{Committer, Scope};
use crate::cow_segment::CowSegment;
use crate::disk::Core;
use crate::geometry::CHUNK_BLOCKS;
use crate::map::Slot;
use lacuna_core::{BLOCK_SIZE, Error, Result, SEGMENT_BLOCKS};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Core {
    /// Writes every committed version to its slot. Not synced: the journal still holds them. Blocks of a segment
    /// that got its first copy-on-write segment meanwhile stay for the next call.
    pub(crate) fn destage(&self, c: &mut Committer) -> Result<()> {
        self.assign_slots(c)?;
        let blocks = std::mem::take(&mut c.to_destage);
        let sent = self.destage_runs(c, &blocks);
        if sent.is_err() {
            // What was destaged has no committed version any more and is passed over next time.
            c.to_destage.extend(blocks);
        }
        c.bytes_to_destage = 0;
        c.recycle();
        sent
    }

    /// A segment that has no slot but a copy-on-write segment gets its slot from the copy-on-write segment.
    fn assign_slots(&self, c: &mut Committer) -> Result<()> {
        let waiting: BTreeSet<u64> = c.to_destage.iter().map(|b| b / SEGMENT_BLOCKS).collect();
        let mut moves = vec![];
        for segment in waiting {
            if matches!(self.map.get(segment), Ok(Slot::Nowhere))
                && let Some(CowSegment::Stream(stream)) = self.freeze(segment)
            {
                self.complete(segment, &stream)?;
                moves.push((segment, Slot::At(stream.slot)));
            }
        }
        if moves.is_empty() {
            return Ok(());
        }
        self.store.settle()?;
        self.commit_moves(c, &moves)
    }

    fn destage_runs(&self, c: &mut Committer, blocks: &BTreeSet<u64>) -> Result<()> {
        self.for_runs(blocks, |run| self.destage_run(c, run))
    }

    /// Calls `each` for every run of committed blocks that is destaged in one access.
    pub(crate) fn for_runs(
        &self,
        blocks: &BTreeSet<u64>,
        mut each: impl FnMut(&[(u64, Committed)]) -> Result<()>,
    ) -> Result<()> {
        let mut run: Vec<(u64, Committed)> = vec![];
        for &block in blocks {
            let Some(committed) = self.cache.committed(block) else { continue };
            if run.last().is_some_and(|(last, previous)| !continues(*last, previous, block, &committed)) {
                each(&run)?;
                run.clear();
            }
            run.push((block, committed));
        }
        if run.is_empty() { Ok(()) } else { each(&run) }
    }

    pub(crate) fn commit_one_cow_segment(&self, c: &mut Committer, segment: u64) -> Result<()> {
        match self.freeze(segment) {
            Some(CowSegment::Stream(stream)) => {
                self.complete(segment, &stream)?;
                self.store.settle()?;
                self.commit_moves(c, &[(segment, Slot::At(stream.slot))])
            }
            _ => Ok(()),
        }
    }

    /// Destages one run, of at least one block.
    pub(crate) fn destage_run(&self, c: &mut Committer, run: &[(u64, Committed)]) -> Result<()> {
        let (first, _) = &run[0];
        let (segment, index) = (first / SEGMENT_BLOCKS, first % SEGMENT_BLOCKS);
        let count = run.len() as u64;
        let failed = |e: Error| e.context(format!("write of {count} blocks to their slot at block {first}"));
        let _writing = self.locks.exclusive(*first);
        match &run[0].1 {
            Committed::Hole => {
                if let Slot::At(slot) = self.map.get(segment)? {
                    self.store.erase(slot, index, count).map_err(failed)?;
                }
            }
            Committed::Data { batch, at, .. } => {
                if self.map.get(segment)? == Slot::Nowhere && self.cow_segments.get(segment).is_some() {
                    c.to_destage.extend(run.iter().map(|(block, _)| *block));
                    return Ok(());
                }
                let slot = self.slot_of(c, segment)?;
                let size = self.cipher.meta_size();
                let mut meta = Vec::with_capacity(run.len() * size);
                for (_, committed) in run {
                    if let Committed::Data { meta: entry, .. } = committed {
                        meta.extend_from_slice(&entry[..size]);
                    }
                }
                let data = &batch[*at..at + run.len() * BLOCK_SIZE];
                self.store.write(slot, index, data, &meta).map_err(failed)?;
            }
        }
        for (block, _) in run {
            self.cache.forget_committed(*block);
        }
        self.counters.blocks_destaged.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// The slot of a segment that is about to be written, under one of its chunk locks.
    fn slot_of(&self, c: &mut Committer, segment: u64) -> Result<u32> {
        if let Slot::At(slot) = self.map.get(segment)? {
            return Ok(slot);
        }
        let slot = self.map.take_first()?;
        // A full medium refuses this again and again, and must not run out of slots by it.
        self.store.prepare(slot).inspect_err(|_| self.map.release(slot, true))?;
        self.map.set(segment, Slot::At(slot));
        c.moved.insert(segment);
        c.released.remove(&slot);
        Ok(slot)
    }

    /// Destages everything, makes it durable there, then the map, then retires the journal.
    pub(crate) fn checkpoint(&self, c: &mut Committer) -> Result<()> {
        // After a failure nobody knows what was destaged: nothing may be retired any more.
        self.check_alive()?;
        self.destage(c)?;
        while !c.to_destage.is_empty() {
            self.destage(c)?;
        }
        self.settle_slots(c)?;
        self.retire_journal(c)
    }

    /// Makes what was destaged durable in its slots, then the map.
    pub(crate) fn settle_slots(&self, c: &mut Committer) -> Result<()> {
        self.store.settle()?;
        if !c.moved.is_empty() {
            let moved: Vec<u64> = c.moved.iter().copied().collect();
            self.map.write(&*self.store.medium, &moved)?;
            self.store.sync()?;
            c.moved.clear();
        }
        Ok(())
    }

    /// Retires the journal, of which everything is durable in its slots.
    pub(crate) fn retire_journal(&self, c: &mut Committer) -> Result<()> {
        c.journal.retire()?;
        self.counters.journal_used.store(0, Ordering::Relaxed);
        self.counters.retirements.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Everything destaged and the journal empty, as far as the medium has space. After a failure, what was the cause of it.
    pub(crate) fn close(&self) -> Result<()> {
        let mut c = self.committer();
        if let Some(cause) = self.failure() {
            self.last_stand(&mut c);
            return Err(cause.context("the disk stopped taking writes"));
        }
        self.commit(&mut c, Scope::All)?;
        // What finds no space in its slot is durable in the journal.
        let sent = if self.medium_full.is_so() {
            self.send_what_fits(&mut c)
        } else {
            self.checkpoint_or_stay(&mut c)
        };
        sent.map_err(|e| self.fail(e))?;
        // Space back: slots that streams left behind. Nothing depends on it, so nothing is synced.
        let free: BTreeSet<u32> = self.map.free_slots().into_iter().collect();
        for slot in c.released.intersection(&free) {
            let _ = self.store.give_back(*slot);
        }
        Ok(())
    }
}

/// Whether a committed block can be destaged in the same access as the one before it: the next block of the same
/// chunk, and either both holes or neighbours in one batch.
fn continues(last: u64, previous: &Committed, block: u64, next: &Committed) -> bool {
    if block != last + 1 || block.is_multiple_of(CHUNK_BLOCKS) {
        return false;
    }
    match (previous, next) {
        (Committed::Hole, Committed::Hole) => true,
        (Committed::Data { batch: a, at: i, .. }, Committed::Data { batch: b, at: j, .. }) => {
            Arc::ptr_eq(a, b) && i + BLOCK_SIZE == *j
        }
        _ => false,
    }
}
