//! Filling a batch: what each of its cells takes (the paper's Algorithm 6, for all operations of a batch at once).
//!
//! Deniability contract: cells and salt come from public randomness, and every level has cells of its own among them: what a
//! level gets does not depend on any other. What nobody takes is sealed under a key that nobody else has: all cells cost the
//! same.

use crate::ahead::Prepared;
use crate::core::{Core, NewPage, Source};
use crate::head::{Draft, LevelRecord, MOST_TRIMS, PublicPart, batch_key};
use crate::params::STASH_SLOTS;
use crate::place::{cell_of, place, stash_place};
use crate::progress::Claims;
use lacuna_core::{BLOCK_SIZE, Result};
use lacuna_levels::{Entry, HiddenLevel, SALT_LEN, WriteKey};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// What a cell is going to hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Nothing of anybody.
    Filler,
    /// What it held: of which level, and under which place.
    Kept(u8, Entry, u64),
    /// What a level puts there.
    Put(u8, Entry),
}

/// How many pending pages and blocks a level may put into a batch.
#[derive(Clone, Copy)]
pub(crate) struct Shares {
    /// Pages of its map that come before any data.
    pub(crate) pages: usize,
    pub(crate) blocks: usize,
    /// Pages that come after all data.
    pub(crate) more_pages: usize,
}

/// A batch that is being filled.
pub(crate) struct Batch<'a> {
    core: &'a Core,
    seq: u64,
    /// Its cells; what they are going to hold takes the place of what they held.
    drawn: Prepared,
    holds: Vec<Holds>,
    draft: Draft,
    keys: Vec<WriteKey>,
    /// Pages that the level whose turn it is has put into this batch.
    pages: Vec<NewPage>,
    /// What level 0 leaves in the stash.
    stashed: Vec<(Entry, Box<[u8]>)>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(core: &'a Core, seq: u64, drawn: Prepared) -> Result<Batch<'a>> {
        let mut block = Box::new([0; BLOCK_SIZE]);
        core.random.filler.fill(&mut block[..]);
        let keys = core.keys.iter().map(|key| batch_key(&key.level, &drawn.salt)).collect::<Result<_>>()?;
        Ok(Batch {
            core,
            seq,
            holds: vec![Holds::Filler; drawn.cells.len()],
            draft: Draft::new(drawn.salt, block),
            drawn,
            keys,
            pages: Vec::new(),
            stashed: Vec::new(),
        })
    }

    /// A level takes its turn.
    pub(crate) fn fill(&mut self, level: u8, state: &mut HiddenLevel, shares: Shares) -> Result<()> {
        self.pages.clear();
        // A map that is two cycles behind gets everything: were it four, the journal would come round.
        let cycle = u64::from(self.core.store.params.cycle);
        let behind = state.tree.state().covered + 2 * cycle < self.seq;
        let trims = if behind && level > 0 { Vec::new() } else { self.trim(level, state)? };
        self.keep(level, state)?;
        let due = state.tree.due(self.seq);
        let first = if behind { usize::MAX } else { shares.pages };
        self.take_pages(level, state, due.min(first))?;
        if !behind && state.queue.trims().is_empty() {
            self.take_blocks(level, state, shares.blocks)?;
        }
        self.take_pages(level, state, due.saturating_sub(first).min(shares.more_pages))?;
        if level == 0 {
            let waiting = state.queue.waiting().take(STASH_SLOTS);
            self.stashed = waiting.map(|(addr, block)| (Entry::Data(addr), block.into())).collect();
        }
        self.tell(level, state, trims);
        Ok(())
    }

    /// The head says what the level did.
    fn tell(&mut self, level: u8, state: &HiddenLevel, trims: Vec<(u64, u64)>) {
        let slots = self.slots(level);
        let put = |holds: &Holds| match holds {
            Holds::Put(_, entry) => *entry,
            Holds::Filler | Holds::Kept(..) => Entry::Empty,
        };
        let entries: Vec<Entry> = self.holds[slots.clone()].iter().map(put).collect();
        let stashed: Vec<Entry> =
            self.stashed.iter().filter(|_| level == 0).map(|(entry, _)| *entry).collect();
        let record = LevelRecord { state: state.tree.state(), cycle: state.tree.cycle_began(), trims };
        self.draft.put_level(&self.keys[usize::from(level)], level, slots, &entries, &stashed, &record);
    }

    fn slots(&self, level: u8) -> Range<usize> {
        self.core.store.params.slots(level)
    }

    fn source(&self, level: u8) -> Source<'_> {
        Source { core: self.core, level, written: &self.pages }
    }

    /// Takes ranges that were discarded out of the map. They come before everything that the batch writes.
    fn trim(&mut self, level: u8, state: &mut HiddenLevel) -> Result<Vec<(u64, u64)>> {
        // Each makes pages of the map wait to be written: not too many. A discard of level 0 is recorded by the next batch all the
        // same: what waited in its range was in the stash, and is not any more.
        if level > 0 && state.tree.crowded() {
            return Ok(Vec::new());
        }
        let some = state.queue.trims().len().min(MOST_TRIMS);
        let trims: Vec<(u64, u64)> = state.queue.pop_trims(some).collect();
        for &(first, count) in &trims {
            state.tree.clear(first, count, &self.source(level))?;
        }
        Ok(trims)
    }

    /// Finds the cells that hold the latest version of something of this level. They keep it, encrypted anew. What does not
    /// verify any more is left to be overwritten: its map goes on pointing there, and its readers will find out.
    fn keep(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        for slot in self.slots(level) {
            let Some((entry, place)) = self.drawn.found[slot] else { continue };
            if state.tree.place_of(entry, &self.source(level))? == place {
                debug_assert!(cell_of(place) == Some(self.drawn.cells[slot]));
                self.holds[slot] = Holds::Kept(level, entry, place);
            }
        }
        Ok(())
    }

    /// A cell of the level's that is free.
    fn free(&self, level: u8) -> Option<usize> {
        self.slots(level).find(|slot| self.holds[*slot] == Holds::Filler)
    }

    /// Where what this batch puts into one of its cells lies.
    fn place(&self, slot: usize) -> u64 {
        place(self.seq, self.drawn.cells[slot])
    }

    fn take_pages(&mut self, level: u8, state: &mut HiddenLevel, most: usize) -> Result<()> {
        for _ in 0..most {
            let Some(slot) = self.free(level) else { return Ok(()) };
            let (place, mut page) = (self.place(slot), Box::new([0; BLOCK_SIZE]));
            let emitted = state.tree.emit(place, &self.source(level), &mut page[..])?;
            let Some(entry) = emitted else { return Ok(()) };
            self.drawn.block(slot).copy_from_slice(&page[..]);
            self.holds[slot] = Holds::Put(level, entry);
            self.pages.push((place, entry, page));
        }
        Ok(())
    }

    /// Takes blocks from the queue. One that finds no cell stays there, and its old version where it is.
    fn take_blocks(&mut self, level: u8, state: &mut HiddenLevel, most: usize) -> Result<()> {
        let HiddenLevel { tree, queue } = state;
        for _ in 0..most {
            let Some(addr) = queue.front() else { return Ok(()) };
            let Some(slot) = self.free(level) else { return Ok(()) };
            tree.set(addr, self.place(slot), &self.source(level))?;
            let waiting = queue.pop().expect("it was just seen");
            self.drawn.block(slot).copy_from_slice(&waiting.block);
            self.holds[slot] = Holds::Put(level, Entry::Data(addr));
        }
        Ok(())
    }

    /// Encrypts all cells, whatever they hold, into `record`, then the stash.
    fn seal(&mut self, record: &mut [u8]) -> Result<()> {
        let (core, len) = (self.core, self.core.store.params.cell_len());
        for (slot, out) in record.chunks_exact_mut(len).enumerate().take(self.holds.len()) {
            let (key, place, entry) = match self.holds[slot] {
                Holds::Filler => (&core.nobody, 0, Entry::Empty),
                Holds::Kept(level, entry, place) => (&core.keys[usize::from(level)].cells, place, entry),
                Holds::Put(level, entry) => (&core.keys[usize::from(level)].cells, self.place(slot), entry),
            };
            key.seal(place, entry, self.drawn.block(slot), &*core.random.filler, out)?;
        }
        let (_, rest) = record.split_at_mut(self.holds.len() * len);
        core.random.filler.fill(rest);
        for (slot, ((entry, block), out)) in self.stashed.iter().zip(rest.chunks_exact_mut(len)).enumerate() {
            let place = stash_place(self.seq, slot);
            core.keys[0].cells.seal(place, *entry, block, &*core.random.filler, out)?;
        }
        Ok(())
    }

    /// Which of its cells is which.
    pub(crate) fn slots_of_cells(&self) -> FxHashMap<u64, usize> {
        self.drawn.cells.iter().enumerate().map(|(slot, cell)| (*cell, slot)).collect()
    }

    /// Encrypts everything and writes it to ring and journal. Returns the salt, and the memory of the cells.
    pub(crate) fn write(
        mut self,
        previous: [u8; 16],
        claims: Claims,
        record: &mut Vec<u8>,
    ) -> Result<([u8; SALT_LEN], Vec<u8>)> {
        record.resize(self.core.store.params.record_len() as usize, 0);
        self.seal(record)?;
        let public = PublicPart {
            seq: self.seq,
            previous,
            synced: claims.synced,
            applied: claims.applied,
            cells: std::mem::take(&mut self.drawn.cells),
        };
        let salt = self.draft.salt;
        let head = self.draft.finish(&self.keys[0], &public, record);
        self.core.store.put(&head, &public, record)?;
        Ok((salt, self.drawn.old))
    }
}
