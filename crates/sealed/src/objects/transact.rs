//! One transaction on one object: blocks are encrypted, their metadata is placed, and the seal goes with them.

use super::cache::{Content, Slot, Work};
use super::disk::Core;
use super::ledger::missing;
use super::placement::{Change, Run};
use super::seal::{SEAL_KEY, SealPlace};
use crate::SEGMENT_BLOCKS;
use lacuna_core::{BLOCK_SIZE, Error, Result};
use lacuna_medium::{Keys, Query, Step, Transaction};
use std::sync::atomic::Ordering;

impl Core {
    /// Writes what the cache holds of a segment, or a batch of it. Nothing happens if another thread is at it.
    /// Errors end all writing.
    pub(crate) fn write_segment(&self, segment: u64) -> Result<()> {
        self.check_alive()?;
        let Some(begun) = self.cache.begin(segment, self.limits.batch_blocks) else {
            // What there was to write may have been given up, and its room with it.
            self.schedule.freed();
            return Ok(());
        };
        let absent = match &begun.work {
            Work::Void(_) => self.empty(segment),
            Work::Blocks(blocks) => {
                let _passage = self.transit.enter(blocks.len() * self.placement.slot());
                let change = self.gather(segment, blocks, begun.absent);
                let absent = self.perform(&change);
                self.buffers.give(change.sealed);
                absent
            }
        };
        // A flight that failed never ends: what is remembered of its object stays in doubt.
        let absent = absent.map_err(|e| self.give_up(segment, e))?;
        if self.cache.end(segment, &begun.work, absent) {
            self.schedule.list(segment);
        }
        self.schedule.freed();
        Ok(())
    }

    /// Writes consecutive blocks of a segment past the cache. `false`: another transaction is under way.
    pub(crate) fn write_direct(&self, segment: u64, index: u64, data: &[u8]) -> Result<bool> {
        let range = index..index + (data.len() / BLOCK_SIZE) as u64;
        let Some((version, absent)) = self.cache.begin_direct(segment, range.clone()) else {
            return Ok(false);
        };
        let change = self.seal_run(segment, index, data, absent);
        let performed = self.perform(&change);
        self.buffers.give(change.sealed);
        performed.map_err(|e| self.give_up(segment, e))?;
        self.counters.direct.fetch_add(1, Ordering::Relaxed);
        if self.cache.end_direct(segment, range, version) {
            self.schedule.list(segment);
        }
        self.schedule.freed();
        Ok(true)
    }

    /// A transaction may have happened or not.
    fn give_up(&self, segment: u64, e: Error) -> Error {
        self.placement.forget(segment);
        self.fail(e.context(format!("writing object {segment} of the disk")))
    }

    /// Encrypts blocks out of the cache.
    fn gather(&self, segment: u64, blocks: &[(u64, Slot)], absent: bool) -> Change {
        let (slot, meta) = (self.placement.slot(), self.cipher.meta_size());
        let written = blocks.iter().filter(|(_, block)| matches!(block.content, Content::Data(_))).count();
        let mut sealed = self.buffers.take(written * slot);
        let mut entries = vec![0; blocks.len() * meta];
        let mut runs: Vec<Run> = vec![];
        let mut slots = sealed.chunks_exact_mut(slot);
        for (nth, (index, block)) in blocks.iter().enumerate() {
            let entry = &mut entries[nth * meta..(nth + 1) * meta];
            let written = match &block.content {
                Content::Data(data) => {
                    let out = slots.next().expect("a slot for each block with data");
                    self.seal_block(segment * SEGMENT_BLOCKS + index, data, out, entry);
                    true
                }
                Content::Hole => false,
            };
            match runs.last_mut() {
                Some(run) if run.written == written && run.index + run.count == *index => run.count += 1,
                _ => runs.push(Run { index: *index, count: 1, written }),
            }
        }
        Change { segment, runs, entries, sealed, absent }
    }

    /// Encrypts consecutive blocks from the caller's buffer.
    fn seal_run(&self, segment: u64, index: u64, data: &[u8], absent: bool) -> Change {
        let (slot, meta) = (self.placement.slot(), self.cipher.meta_size());
        let count = data.len() / BLOCK_SIZE;
        let mut sealed = self.buffers.take(count * slot);
        let mut entries = vec![0; count * meta];
        let first = segment * SEGMENT_BLOCKS + index;
        if slot == BLOCK_SIZE {
            self.cipher.seal(first, data, &mut sealed, &mut entries, &*self.random);
        } else {
            let blocks = data.chunks_exact(BLOCK_SIZE).zip(sealed.chunks_exact_mut(slot));
            for (block, ((plain, out), entry)) in (first..).zip(blocks.zip(entries.chunks_exact_mut(meta))) {
                self.seal_block(block, plain, out, entry);
            }
        }
        let runs = vec![Run { index, count: count as u64, written: true }];
        Change { segment, runs, entries, sealed, absent }
    }

    /// Encrypts a block into its slot, and its entry behind it if the slot has room for it.
    fn seal_block(&self, block: u64, plain: &[u8], slot: &mut [u8], entry: &mut [u8]) {
        let (out, behind) = slot.split_at_mut(BLOCK_SIZE);
        self.cipher.seal(block, plain, out, entry, &*self.random);
        if !behind.is_empty() {
            behind.copy_from_slice(entry);
        }
    }

    /// Performs a change whose object the caller has to itself. Says whether the object is known to be absent
    /// afterwards.
    fn perform(&self, change: &Change) -> Result<bool> {
        if change.absent && change.runs.iter().all(|run| !run.written) {
            return Ok(true);
        }
        let ticket = self.ledger.as_ref().map(|ledger| ledger.begin(change.segment)).transpose()?;
        let slot = self.placement.slot() as u64;
        let mut steps = Vec::with_capacity(change.runs.len() + 3);
        let mut sealed = &change.sealed[..];
        for run in &change.runs {
            let (offset, len) = (run.index * slot, run.count * slot);
            if run.written {
                let (data, rest) = sealed.split_at(len as usize);
                sealed = rest;
                steps.push(Step::Write { offset, data });
            } else if !change.absent {
                steps.push(Step::Zero { offset, len });
            }
        }
        self.placement.write(change, &mut steps);
        steps.extend(ticket.as_ref().map(|ticket| ticket.place_step()));
        self.stores.data.apply_one(Transaction { object: change.segment, steps })?;
        if let Some(ticket) = ticket {
            ticket.applied();
        }
        self.counters.transactions.fetch_add(1, Ordering::Relaxed);
        let blocks = change.runs.iter().map(|run| run.count).sum();
        self.counters.blocks.fetch_add(blocks, Ordering::Relaxed);
        Ok(false)
    }

    /// Empties an object. Says whether it is known to be absent afterwards.
    fn empty(&self, segment: u64) -> Result<bool> {
        self.placement.forget(segment);
        self.counters.transactions.fetch_add(1, Ordering::Relaxed);
        let Some(ledger) = &self.ledger else {
            let steps = vec![Step::Remove];
            return self.stores.data.apply_one(Transaction { object: segment, steps }).map(|_| true);
        };
        // An object with a seal may not go missing, and one that never was is not made by giving it up.
        ledger.touch(segment)?;
        let query = Query { object: segment, extents: vec![], keys: Keys::None };
        if self.stores.data.query_one(query)?.version.is_none() {
            let counter = ledger.counter(segment)?;
            return if counter == 0 { Ok(true) } else { Err(missing(segment, counter)) };
        }
        let ticket = ledger.begin(segment)?;
        let mut steps = vec![Step::Truncate(0)];
        if self.seal_place() == SealPlace::Key {
            steps.push(Step::RemoveKeyRange(vec![], SEAL_KEY.to_vec()));
        }
        steps.push(ticket.place_step());
        self.stores.data.apply_one(Transaction { object: segment, steps })?;
        ticket.applied();
        Ok(false)
    }
}
