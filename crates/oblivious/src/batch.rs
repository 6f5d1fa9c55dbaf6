//! Filling a batch: what each of its cells takes (the paper's Algorithm 6, for all operations of a batch at once).
//!
//! Deniability contract: cells and salt come from public randomness; then the levels take their turn, the lowest first, and
//! what a level gets does not depend on those above it. What nobody takes is filled with random bytes.

use crate::cell::CELL_LEN;
use crate::core::{Core, NewPage, Source};
use crate::draw::draw_cells;
use crate::head::{Draft, LevelRecord, MOST_TRIMS, PublicPart, STASH_SLOTS, batch_key};
use crate::place::{cell_of, place, stash_place};
use crate::placement::Placement;
use lacuna_core::{BLOCK_SIZE, Result};
use lacuna_levels::{Entry, HiddenLevel, SALT_LEN, WriteKey};

/// Memory of a batch, used again for the next.
#[derive(Default)]
pub(crate) struct Buffers {
    /// The cells as they were.
    old: Vec<u8>,
    /// The cells as they will be, and the slots of the stash.
    record: Vec<u8>,
}

/// A batch that is being filled.
pub(crate) struct Batch<'a> {
    core: &'a Core,
    seq: u64,
    cells: Vec<u64>,
    buffers: Buffers,
    placement: Placement,
    draft: Draft,
    keys: Vec<WriteKey>,
    /// Pages that the level whose turn it is has put into this batch.
    pages: Vec<NewPage>,
    /// Slots of the stash that are taken.
    stashed: usize,
}

impl<'a> Batch<'a> {
    /// Draws the cells of batch `seq` and reads them.
    pub(crate) fn draw(core: &'a Core, seq: u64, mut buffers: Buffers) -> Result<Batch<'a>> {
        let params = &core.store.params;
        let mut salt = [0; SALT_LEN];
        core.public_random.fill(&mut salt);
        let cells = draw_cells(&*core.public_random, params.cells, params.batch_cells());
        buffers.old.resize(cells.len() * CELL_LEN, 0);
        buffers.record.resize(params.record_len() as usize, 0);
        core.store.read_last(&cells, &mut buffers.old)?;
        let mut block = Box::new([0; BLOCK_SIZE]);
        core.filler.fill(&mut block[..]);
        let keys = core.keys.iter().map(|key| batch_key(&key.level, &salt)).collect::<Result<_>>()?;
        Ok(Batch {
            core,
            seq,
            placement: Placement::new(cells.len()),
            cells,
            buffers,
            draft: Draft::new(salt, block),
            keys,
            pages: Vec::new(),
            stashed: 0,
        })
    }

    /// A level takes its turn. Up to `most_pages` pages of its map go with it.
    pub(crate) fn fill(&mut self, level: u8, state: &mut HiddenLevel, most_pages: usize) -> Result<()> {
        self.pages.clear();
        let trims = self.trim(level, state)?;
        self.keep(level, state)?;
        self.take_displaced(level, state)?;
        self.take_pages(level, state, most_pages)?;
        if state.queue.trims().is_empty() {
            self.take_blocks(level, state)?;
        }
        self.leave_in_stash(level, state)?;
        let (state, cycle) = (state.tree.state(), state.tree.cycle_began());
        let record = LevelRecord { state, cycle, trims };
        self.draft.put_level(&self.keys[usize::from(level)], level, &record);
        Ok(())
    }

    fn source(&self, level: u8) -> Source<'_> {
        Source { core: self.core, level, written: &self.pages }
    }

    /// Takes ranges that were discarded out of the map. They come before everything that the batch writes.
    fn trim(&mut self, level: u8, state: &mut HiddenLevel) -> Result<Vec<(u64, u64)>> {
        // Each makes pages of the map wait to be written: not too many.
        if state.tree.crowded() {
            return Ok(Vec::new());
        }
        let some = state.queue.trims().len().min(MOST_TRIMS);
        let trims: Vec<(u64, u64)> = state.queue.pop_trims(some).collect();
        for &(first, count) in &trims {
            state.tree.clear(first, count, &self.source(level))?;
            let within = |packed| match Entry::unpack(packed) {
                Some(Entry::Data(addr)) => (first..first + count).contains(&addr),
                _ => false,
            };
            self.core.displaced()[usize::from(level)].forget(within);
        }
        Ok(trims)
    }

    /// Finds the cells that hold the latest version of something of this level. They keep it, encrypted anew; what a lower
    /// level took the cell from goes to the stash. What does not verify any more is left to be overwritten: its map goes on
    /// pointing there, and its readers will find out.
    fn keep(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        let key = &self.core.keys[usize::from(level)].cells;
        for slot in 0..self.cells.len() {
            let old = slot * CELL_LEN..(slot + 1) * CELL_LEN;
            let Some(entry) = key.entry(&self.buffers.old[old.clone()]) else { continue };
            let cell = self.cells[slot];
            let place = state.tree.place_of(entry, &self.source(level))?;
            if cell_of(place) != Some(cell) {
                continue;
            }
            let old = &mut self.buffers.old[old.clone()];
            if key.open(place, entry, old)?.is_err() {
                continue;
            }
            let block = &old[..BLOCK_SIZE];
            if self.placement.keep(level, slot) {
                let new = &mut self.buffers.record[slot * CELL_LEN..(slot + 1) * CELL_LEN];
                key.seal(place, entry, block, &*self.core.filler, new)?;
            } else {
                self.core.displaced()[usize::from(level)].put(entry.pack(), block.into());
            }
        }
        Ok(())
    }

    /// Where what this batch puts into one of its cells lies.
    fn place(&self, slot: usize) -> u64 {
        place(self.seq, self.cells[slot])
    }

    /// Puts a block into a free cell, which becomes the level's.
    fn put(&mut self, level: u8, slot: usize, entry: Entry, block: &[u8]) -> Result<()> {
        let (at, place) = (usize::from(level), self.place(slot));
        let new = &mut self.buffers.record[slot * CELL_LEN..(slot + 1) * CELL_LEN];
        self.core.keys[at].cells.seal(place, entry, block, &*self.core.filler, new)?;
        self.placement.take(level, slot);
        self.draft.list(&self.keys[at], slot, entry);
        Ok(())
    }

    fn take_displaced(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        while let Some(slot) = self.placement.free() {
            let Some((packed, block)) = self.core.displaced()[usize::from(level)].pop() else { break };
            let Some(entry) = Entry::unpack(packed) else { continue };
            let place = self.place(slot);
            match entry {
                Entry::Data(addr) => drop(state.tree.set(addr, place, &self.source(level))?),
                _ => state.tree.move_page(entry, place),
            }
            self.put(level, slot, entry, &block)?;
            if let Entry::Page { .. } = entry {
                // Whoever needs it before the batch is written finds it here; whoever opens the disk learns that it says no
                // more than where it was before.
                self.draft.list_moved(&self.keys[usize::from(level)], slot, entry);
                let page = block[..].try_into().expect("a block");
                self.pages.push((place, entry, Box::new(page)));
            }
        }
        Ok(())
    }

    fn take_pages(&mut self, level: u8, state: &mut HiddenLevel, most: usize) -> Result<()> {
        for _ in 0..state.tree.due(self.seq).min(most) {
            let Some(slot) = self.placement.free() else { return Ok(()) };
            let (place, mut page) = (self.place(slot), Box::new([0; BLOCK_SIZE]));
            let emitted = state.tree.emit(place, &self.source(level), &mut page[..])?;
            let Some(entry) = emitted else { return Ok(()) };
            self.core.displaced()[usize::from(level)].forget(|packed| packed == entry.pack());
            self.put(level, slot, entry, &page[..])?;
            self.pages.push((place, entry, page));
        }
        Ok(())
    }

    fn take_blocks(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        let HiddenLevel { tree, queue } = state;
        while let Some(addr) = queue.front()
            && let Some(slot) = self.placement.free()
        {
            tree.set(addr, self.place(slot), &self.source(level))?;
            let waiting = queue.pop().expect("it was just seen");
            let entry = Entry::Data(addr);
            // An older version that was displaced does not matter any more.
            self.core.displaced()[usize::from(level)].forget(|packed| packed == entry.pack());
            self.put(level, slot, entry, &waiting.block)?;
        }
        Ok(())
    }

    /// What found no cell and must not be lost goes to the slots of the stash: of level 0 what was acknowledged, of the
    /// others what was displaced.
    fn leave_in_stash(&mut self, level: u8, state: &HiddenLevel) -> Result<()> {
        if level == 0 {
            for (addr, block) in state.queue.waiting() {
                self.stash(level, Entry::Data(addr), block)?;
            }
            return Ok(());
        }
        let core = self.core;
        for (packed, block) in core.displaced()[usize::from(level)].iter() {
            if let Some(entry) = Entry::unpack(packed) {
                self.stash(level, entry, block)?;
            }
        }
        Ok(())
    }

    fn stash(&mut self, level: u8, entry: Entry, block: &[u8]) -> Result<()> {
        if self.stashed == STASH_SLOTS {
            return Ok(());
        }
        let (at, slot) = (usize::from(level), self.stashed);
        let from = (self.cells.len() + slot) * CELL_LEN;
        let out = &mut self.buffers.record[from..from + CELL_LEN];
        self.core.keys[at].cells.seal(stash_place(self.seq, slot), entry, block, &*self.core.filler, out)?;
        self.draft.list_stash(&self.keys[at], slot, entry);
        self.stashed += 1;
        Ok(())
    }

    /// Fills what is left with random bytes and writes everything to ring and journal. Returns the salt, and the memory.
    pub(crate) fn write(mut self, previous: [u8; 16]) -> Result<([u8; SALT_LEN], Buffers)> {
        let unowned = self.placement.unowned();
        let unused = self.cells.len() + self.stashed..self.cells.len() + STASH_SLOTS;
        for slot in unowned.chain(unused) {
            self.core.filler.fill(&mut self.buffers.record[slot * CELL_LEN..(slot + 1) * CELL_LEN]);
        }
        let progress = *self.core.store.progress();
        let public = PublicPart {
            seq: self.seq,
            previous,
            synced: progress.synced(),
            applied: progress.applied_durable(),
            cells: std::mem::take(&mut self.cells),
        };
        let salt = self.draft.salt;
        let head = self.draft.finish(&self.keys[0], &public, &self.buffers.record);
        self.core.store.put(&head, &public, &self.buffers.record)?;
        Ok((salt, self.buffers))
    }
}
