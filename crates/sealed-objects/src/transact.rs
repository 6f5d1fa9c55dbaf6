//! One transaction on one object: blocks are encrypted, their metadata is placed, and the seal goes with them.

use super::cache::{Content, Slot, Work};
use super::chain::Tails;
use super::chunks::CHUNK_BLOCKS;
use super::disk::Core;
use super::pages::Learned;
use super::placement::{Answered, Change, Fill, LOST, Run, Source};
use super::version_table::{Ticket, VersionTable};
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_medium::{Query, Step, Transaction};
use std::sync::atomic::Ordering;

/// How often a transaction is tried on an object that changes behind our back.
const TRIES: u32 = 8;

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
        let ended = match absent {
            Ok(absent) => Ok(self.cache.end(segment, &begun.work, absent)),
            Err(e) if e.kind() == Kind::NoSpace => {
                // What was to be in the store is not. Nobody else may take it for stored once the flight is over.
                self.placement.forget(segment);
                Err((e, self.cache.put_back(segment, begun.absent)))
            }
            // A flight that failed never ends: what is remembered of its object stays in doubt.
            Err(e) => return Err(self.give_up(segment, e)),
        };
        self.after_flight(segment, ended)
    }

    /// Writes consecutive blocks of a segment past the cache. `false`: another transaction is under way.
    pub(crate) fn write_direct(&self, segment: u64, index: u64, data: &[u8]) -> Result<bool> {
        let range = index..index + (data.len() / BLOCK_SIZE) as u64;
        let Some((version, absent)) = self.cache.begin_direct(segment, range.clone()) else {
            return Ok(false);
        };
        let passage = self.transit.enter(data.len() / BLOCK_SIZE * self.placement.slot());
        let change = self.seal_run(segment, index, data, absent);
        let performed = self.perform(&change);
        drop(passage);
        self.buffers.give(change.sealed);
        let ended = match performed {
            Ok(_) => Ok(self.cache.end_direct(segment, range, version)),
            Err(e) if e.kind() == Kind::NoSpace => {
                self.placement.forget(segment);
                Err((e, self.cache.put_back(segment, absent)))
            }
            Err(e) => return Err(self.give_up(segment, e)),
        };
        self.after_flight(segment, ended)?;
        self.counters.direct.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Lists a segment that has something to write after a transaction, and tells writers how it ended: it happened,
    /// or there was no room for it and it did not.
    fn after_flight(&self, segment: u64, ended: std::result::Result<bool, (Error, bool)>) -> Result<()> {
        let (list, refused) = match ended {
            Ok(list) => (list, None),
            Err((e, list)) => (list, Some(e.context(format!("writing object {segment} of the disk")))),
        };
        self.schedule.note_room(refused.as_ref());
        if list {
            self.schedule.list(segment);
        }
        self.schedule.freed();
        refused.map_or(Ok(()), Err)
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
            let fill = match &block.content {
                Content::Data(data) => {
                    let out = slots.next().expect("a slot for each block with data");
                    self.seal_block(segment * SEGMENT_BLOCKS + index, data, out, entry);
                    Fill::Data
                }
                Content::Hole => Fill::Hole,
            };
            extend(&mut runs, *index, fill);
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
        let runs = vec![Run { index, count: count as u64, fill: Fill::Data }];
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
        if change.absent && change.runs.iter().all(|run| run.fill == Fill::Hole) {
            return Ok(true);
        }
        match &self.version_table {
            Some(version_table) => self.perform_sealed(change, version_table)?,
            None => {
                let steps = self.steps(change, vec![], &mut Tails::default());
                self.apply(change.segment, steps).map(drop)?;
            }
        }
        self.counters.transactions.fetch_add(1, Ordering::Relaxed);
        let blocks = change.runs.iter().map(|run| run.count).sum();
        self.counters.blocks.fetch_add(blocks, Ordering::Relaxed);
        Ok(false)
    }

    /// Performs a change of an object with a seal. An object that is not as it should be is written anew: what the
    /// change does not replace is lost.
    fn perform_sealed(&self, change: &Change, version_table: &VersionTable) -> Result<()> {
        let segment = change.segment;
        let mut changed = None;
        for _ in 0..TRIES {
            let mut ticket = version_table.begin(segment)?;
            // One that was told to be absent, and read as zeros, holds nothing that counts.
            let anew = ticket.refusal().is_some() || change.absent && !ticket.is_first();
            let answer =
                if anew { self.write_anew(change, &mut ticket) } else { self.write_to(change, &mut ticket) };
            match ticket.ended(answer) {
                Ok(_) => return Ok(()),
                Err(e) if matches!(e.kind(), Kind::Changed | Kind::Exists) => {
                    // It did not happen, and what was to be in the store is not.
                    self.placement.forget(segment);
                    changed = Some(e);
                }
                Err(e) => return Err(e),
            }
        }
        Err(changed.expect("it was tried"))
    }

    /// Changes an object that must still be as the ticket knows it.
    fn write_to(&self, change: &Change, ticket: &mut Ticket<'_>) -> Result<u64> {
        let mut tails = ticket.tails();
        let fetched = match self.fetch_unready(change, &tails) {
            // What cannot be read need not be, as long as chains may grow.
            Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Io) && !self.placement.must_fetch(&tails) => {
                vec![]
            }
            fetched => fetched?,
        };
        let mut steps: Vec<Step<'_>> = ticket.guard_step().into_iter().collect();
        steps.extend(self.steps(change, fetched, &mut tails));
        steps.push(ticket.place_step(tails));
        self.apply(change.segment, steps)
    }

    /// The pages that a change needs and that are not in memory. Of another version of the object they do no harm: the
    /// change is of this one, or does not happen.
    fn fetch_unready(&self, change: &Change, tails: &Tails) -> Result<Learned> {
        let missing = self.placement.unready(change, tails);
        if missing == 0 {
            return Ok(vec![]);
        }
        let segment = change.segment;
        let range = u64::from(missing.trailing_zeros()) * CHUNK_BLOCKS
            ..(u64::from(missing.ilog2()) + 1) * CHUNK_BLOCKS;
        let Source::Keys(keys) = self.placement.source(&range, missing) else { return Ok(vec![]) };
        let found = self.stores.data.query_one(Query { object: segment, extents: vec![], keys })?;
        let mut entries = vec![0; (range.end - range.start) as usize * self.cipher.meta_size()];
        let answer = Answered { segment, range: &range, missing, pairs: &found.pairs, tails };
        self.placement.take(&answer, &mut entries)
    }

    /// Leaves nothing of an object but what the change writes. The other blocks are marked: they were told to be
    /// written, or may have been.
    fn write_anew(&self, change: &Change, ticket: &mut Ticket<'_>) -> Result<u64> {
        self.counters.renewed.fetch_add(1, Ordering::Relaxed);
        self.placement.forget(change.segment);
        let whole = self.made_whole(change, if change.absent { Fill::Hole } else { Fill::Lost });
        let mut tails = Tails::default();
        let mut steps: Vec<Step<'_>> = ticket.clearing_steps();
        steps.extend(self.steps(&whole, vec![], &mut tails));
        steps.push(ticket.place_step(tails));
        self.apply(change.segment, steps)
    }

    /// The same change, of an object that is not there, with every other block that the disk has in it.
    fn made_whole(&self, change: &Change, rest: Fill) -> Change {
        let (slot, meta) = (self.placement.slot(), self.cipher.meta_size());
        let first = change.segment * SEGMENT_BLOCKS;
        let count = (self.params.blocks - first).min(SEGMENT_BLOCKS);
        let between = if rest == Fill::Lost { LOST } else { 0 };
        let mut entries = vec![between; count as usize * meta];
        let mut sealed = Vec::with_capacity(change.sealed.len());
        let mut runs = vec![];
        let (mut left, mut data) = (change.entries.chunks_exact(meta), change.sealed.chunks_exact(slot));
        let mut changed =
            change.runs.iter().flat_map(|run| (0..run.count).map(|n| (run.index + n, run.fill)));
        let mut next = changed.next();
        for index in 0..count {
            let entry = &mut entries[index as usize * meta..][..meta];
            let fill = match next {
                Some((at, fill)) if at == index => {
                    next = changed.next();
                    entry.copy_from_slice(left.next().expect("an entry for each block"));
                    fill
                }
                _ => rest,
            };
            match fill {
                Fill::Data => sealed.extend_from_slice(data.next().expect("a slot for each block with data")),
                Fill::Lost if slot > BLOCK_SIZE => {
                    sealed.resize(sealed.len() + BLOCK_SIZE, 0);
                    sealed.extend_from_slice(entry);
                }
                Fill::Lost | Fill::Hole => {}
            }
            extend(&mut runs, index, fill);
        }
        Change { segment: change.segment, runs, entries, sealed, absent: true }
    }

    /// The steps of a change: data, and the entries where the layout keeps them, which change what the seal says.
    fn steps<'c>(&self, change: &'c Change, fetched: Learned, tails: &mut Tails) -> Vec<Step<'c>> {
        let slot = self.placement.slot() as u64;
        let mut steps = Vec::with_capacity(change.runs.len() + 4);
        let mut sealed = &change.sealed[..];
        for run in &change.runs {
            let (offset, len) = (run.index * slot, run.count * slot);
            let has_slots = run.fill == Fill::Data || run.fill == Fill::Lost && slot > BLOCK_SIZE as u64;
            if has_slots {
                let (data, rest) = sealed.split_at(len as usize);
                sealed = rest;
                steps.push(Step::Write { offset, data });
            } else if !change.absent {
                steps.push(Step::Zero { offset, len });
            }
        }
        self.placement.write(change, fetched, tails, &mut steps);
        steps
    }

    fn apply(&self, object: u64, steps: Vec<Step<'_>>) -> Result<u64> {
        self.stores.data.apply_one(Transaction { object, steps })
    }

    /// Empties an object. Says whether it is known to be absent afterwards.
    fn empty(&self, segment: u64) -> Result<bool> {
        self.placement.forget(segment);
        let Some(version_table) = &self.version_table else {
            self.counters.transactions.fetch_add(1, Ordering::Relaxed);
            return self.apply(segment, vec![Step::Remove]).map(|_| true);
        };
        // An object with a seal may not go missing, and one that never was is not made by giving it up.
        if version_table.is_new(segment)? {
            return Ok(true);
        }
        self.counters.transactions.fetch_add(1, Ordering::Relaxed);
        let mut ticket = version_table.begin(segment)?;
        // Nothing of it is kept, so it does not matter what is there.
        let answer = self.apply(segment, ticket.emptying_steps());
        ticket.ended(answer).map(|_| false)
    }
}

/// Adds a block to the run before it, if it is of the same kind and follows it.
fn extend(runs: &mut Vec<Run>, index: u64, fill: Fill) {
    match runs.last_mut() {
        Some(run) if run.fill == fill && run.index + run.count == index => run.count += 1,
        _ => runs.push(Run { index, count: 1, fill }),
    }
}
