//! Fills a batch: decides the contents of each of its cells (HIVE, Algorithm 6, for all operations
//! of a batch at once).
//!
//! Deniability contract: cells come from public randomness, as does the salt, which is hedged, and
//! every level has its own cells among them: the cells of one level do not depend on another level.
//! A cell that no level uses is sealed under a throwaway key: all cells cost the same.

use crate::cell::{FILLER_AT, NONCE_AT};
use crate::head::{Draft, LevelRecord, PublicPart, batch_key};
use crate::keys::Keys;
use crate::level_cells::LevelCells;
use crate::limits::{CELL_LEN, MOST_TRIMS, STASH_SLOTS};
use crate::params::Params;
use crate::place::{BatchSeq, Cell, Place, StashSlot};
use crate::prepared::Prepared;
use crate::progress::Claims;
use lacuna_contracts::{BLOCK_SIZE, Plain, Result};
use lacuna_crypto::RandomSource;
use lacuna_levels::{Entry, HiddenLevel, SALT_LEN, WaitingBlock};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// The new contents of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Filler, of no level.
    Filler,
    /// The old contents: the level, its entry and its place.
    Kept(u8, Entry, Place),
    /// An entry that a level puts there.
    Put(u8, Entry),
}

/// The most pages and blocks that a level may put into a batch.
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
    params: &'a Params,
    keys: &'a Keys,
    filler: &'a dyn RandomSource,
    seq: BatchSeq,
    /// Its cells; their new contents replace the old ones.
    drawn: Prepared,
    holds: Vec<Holds>,
    /// The input of the head: random bytes, and the records of the levels.
    block: Box<[u8; BLOCK_SIZE]>,
    told: Vec<Told>,
    /// The blocks that level 0 leaves in the stash.
    stashed: Vec<(Entry, WaitingBlock)>,
}

/// The record of a level for the head, and its entries.
struct Told {
    level: u8,
    entries: Vec<Entry>,
    stashed: Vec<Entry>,
    record: LevelRecord,
}

/// A batch as it goes to the medium, without its record.
pub(crate) struct Sealed {
    pub(crate) salt: [u8; SALT_LEN],
    pub(crate) public: PublicPart,
    pub(crate) head: Box<[u8; BLOCK_SIZE]>,
    /// The memory of its cells.
    pub(crate) memory: Plain<Vec<u8>>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        params: &'a Params,
        keys: &'a Keys,
        filler: &'a dyn RandomSource,
        seq: BatchSeq,
        drawn: Prepared,
    ) -> Batch<'a> {
        let mut block = Box::new([0; BLOCK_SIZE]);
        filler.fill(&mut block[..]);
        Batch {
            params,
            keys,
            filler,
            seq,
            holds: vec![Holds::Filler; drawn.cells.len()],
            block,
            told: Vec::new(),
            drawn,
            stashed: Vec::new(),
        }
    }

    /// Lets a level fill its cells.
    pub(crate) fn fill(
        &mut self,
        level: u8,
        state: &mut HiddenLevel,
        cells: &LevelCells,
        shares: Shares,
    ) -> Result<()> {
        // A map that is two cycles behind gets all cells: at four cycles the journal would
        // overwrite changes that the map needs.
        let cycle = u64::from(self.params.cycle);
        let behind = state.tree.state().covered + 2 * cycle < self.seq.0;
        let trims = if behind && level > 0 { Vec::new() } else { trim(level, state, cells)? };
        self.keep(level, state, cells)?;
        let due = state.tree.due(self.seq.0);
        let first = if behind { usize::MAX } else { shares.pages };
        self.take_pages(level, state, cells, due.min(first))?;
        if !behind && state.queue.trims().is_empty() {
            self.take_blocks(level, state, cells, shares.blocks)?;
        }
        self.take_pages(level, state, cells, due.saturating_sub(first).min(shares.more_pages))?;
        if level == 0 {
            let pending = state.queue.waiting().take(STASH_SLOTS);
            let copy = |(addr, block): (u64, &[u8])| (Entry::Data(addr), WaitingBlock::new(block.into()));
            self.stashed = pending.map(copy).collect();
        }
        self.tell(level, state, trims);
        Ok(())
    }

    /// Keeps the record and the entries of a level for the head.
    fn tell(&mut self, level: u8, state: &HiddenLevel, trims: Vec<(u64, u64)>) {
        let slots = self.slots(level);
        let put = |holds: &Holds| match holds {
            Holds::Put(_, entry) => *entry,
            Holds::Filler | Holds::Kept(..) => Entry::Empty,
        };
        let entries: Vec<Entry> = self.holds[slots.clone()].iter().map(put).collect();
        let stashed: Vec<Entry> =
            self.stashed.iter().filter(|_| level == 0).map(|(entry, _)| *entry).collect();
        let cycle = BatchSeq(state.tree.cycle_began());
        let record = LevelRecord { state: state.tree.state(), cycle, trims };
        self.told.push(Told { level, entries, stashed, record });
    }

    fn slots(&self, level: u8) -> Range<usize> {
        self.params.slots(level)
    }

    /// Finds the cells that hold the latest version of a block or page of this level. They keep it,
    /// encrypted anew. A cell that no longer verifies is overwritten: its map goes on pointing
    /// there, and its reader gets an error.
    fn keep(&mut self, level: u8, state: &mut HiddenLevel, cells: &LevelCells) -> Result<()> {
        for slot in self.slots(level) {
            let Some((entry, place)) = self.drawn.found[slot] else { continue };
            if state.tree.place_of(entry, &cells.held())? == place.word() {
                debug_assert!(place.cell() == Some(self.drawn.cells[slot]));
                self.holds[slot] = Holds::Kept(level, entry, place);
            }
        }
        Ok(())
    }

    /// A free cell of the level.
    fn free(&self, level: u8) -> Option<usize> {
        self.slots(level).find(|slot| self.holds[*slot] == Holds::Filler)
    }

    /// The place of a block that this batch puts into one of its cells.
    fn place(&self, slot: usize) -> Place {
        Place::new(self.seq, self.drawn.cells[slot])
    }

    fn take_pages(
        &mut self,
        level: u8,
        state: &mut HiddenLevel,
        cells: &LevelCells,
        most: usize,
    ) -> Result<()> {
        for _ in 0..most {
            let Some(slot) = self.free(level) else { return Ok(()) };
            let mut page = WaitingBlock::new(vec![0; BLOCK_SIZE].into_boxed_slice());
            let emitted = state.tree.emit(self.place(slot).word(), &cells.held(), &mut page)?;
            let Some(entry) = emitted else { return Ok(()) };
            self.put(level, slot, entry, page, cells);
        }
        Ok(())
    }

    /// Takes blocks from the queue. If no cell is free, a block stays in the queue, and its old
    /// version in its cell.
    fn take_blocks(
        &mut self,
        level: u8,
        state: &mut HiddenLevel,
        cells: &LevelCells,
        most: usize,
    ) -> Result<()> {
        let HiddenLevel { tree, queue } = state;
        for _ in 0..most {
            let Some(addr) = queue.front() else { return Ok(()) };
            let Some(slot) = self.free(level) else { return Ok(()) };
            tree.set(addr, self.place(slot).word(), &cells.held())?;
            let pending = queue.pop().expect("it was just seen");
            self.put(level, slot, Entry::Data(addr), pending, cells);
        }
        Ok(())
    }

    /// Puts a block or page into a cell. Its level is locked, so a reader that finds the place in
    /// the map finds the block in memory.
    fn put(&mut self, level: u8, slot: usize, entry: Entry, block: WaitingBlock, cells: &LevelCells) {
        self.drawn.block(slot).copy_from_slice(&block);
        self.holds[slot] = Holds::Put(level, entry);
        cells.submit(self.place(slot), entry, block);
    }

    /// The index in the batch of each of its cells.
    pub(crate) fn slots_of_cells(&self) -> FxHashMap<Cell, usize> {
        self.drawn.cells.iter().enumerate().map(|(slot, cell)| (*cell, slot)).collect()
    }

    /// Encrypts everything: cells and stash into `record`, and the head.
    pub(crate) fn seal(mut self, previous: [u8; 16], claims: Claims, record: &mut Vec<u8>) -> Result<Sealed> {
        record.resize(self.params.record_len() as usize, 0);
        let (cells, rest) = record.split_at_mut(self.holds.len() * CELL_LEN);
        for (slot, out) in cells.chunks_exact_mut(CELL_LEN).enumerate() {
            let (key, place, entry) = match self.holds[slot] {
                Holds::Filler => (self.keys.throwaway(), Place::of_word(0), Entry::Empty),
                Holds::Kept(level, entry, place) => (&self.keys.level(level).cells, place, entry),
                Holds::Put(level, entry) => (&self.keys.level(level).cells, self.place(slot), entry),
            };
            key.seal(place, entry, self.drawn.block(slot), self.filler, out)?;
        }
        self.filler.fill(rest);
        let slots = self.stashed.iter().zip(rest.chunks_exact_mut(CELL_LEN));
        for (slot, ((entry, block), out)) in slots.enumerate() {
            let place = Place::in_stash(self.seq, StashSlot(slot));
            self.keys.level(0).cells.seal(place, *entry, block, self.filler, out)?;
        }
        let cells = std::mem::take(&mut self.drawn.cells);
        let public = PublicPart { seq: self.seq, previous, claims, cells };
        let salt = self.hedged_salt(&public, record);
        let write_keys = self.keys.levels().iter().map(|key| batch_key(&key.level, &salt));
        let write_keys = write_keys.collect::<Result<Vec<_>>>()?;
        let mut draft = Draft::new(salt, self.block);
        for Told { level, entries, stashed, record } in &self.told {
            let key = &write_keys[usize::from(*level)];
            draft.put_level(key, *level, self.params.slots(*level), entries, stashed, record);
        }
        let head = draft.finish(&write_keys[0], &public, record);
        Ok(Sealed { salt, public, head, memory: self.drawn.old })
    }

    /// The salt, hedged with everything that will be sealed under it: two copies of a running
    /// machine, which draw the same random bytes, get different keys for different content. If the
    /// random bytes are fresh, the salt is as random as they are, and reveals nothing (deniability
    /// contract). The nonces of cells stand for the cells, because they depend on the contents.
    fn hedged_salt(&self, public: &PublicPart, record: &[u8]) -> [u8; SALT_LEN] {
        let mut content = self.block.to_vec();
        for cell in record.chunks_exact(CELL_LEN) {
            content.extend_from_slice(&cell[NONCE_AT..FILLER_AT]);
        }
        for Told { level, entries, stashed, record } in &self.told {
            content.extend(
                [u32::from(*level), entries.len() as u32, stashed.len() as u32]
                    .map(u32::to_le_bytes)
                    .as_flattened(),
            );
            content.extend(entries.iter().chain(stashed).flat_map(|entry| entry.pack().to_le_bytes()));
            content.extend(record.encode());
        }
        content.extend(public.previous);
        content
            .extend([public.claims.synced, public.claims.applied].iter().flat_map(|seq| seq.0.to_le_bytes()));
        content.extend(public.cells.iter().flat_map(|cell| cell.0.to_le_bytes()));
        self.keys.salts().hedge(self.drawn.salt, &self.seq.0.to_le_bytes(), &content)
    }
}

/// Takes discarded ranges out of the map. They precede all writes of the batch.
fn trim(level: u8, state: &mut HiddenLevel, cells: &LevelCells) -> Result<Vec<(u64, u64)>> {
    // Each discard makes pages of the map dirty: take none while too many are. A discard of level 0
    // is recorded by the next batch in any case: pending blocks in its range were in the stash, and
    // are no longer.
    if level > 0 && state.tree.crowded() {
        return Ok(Vec::new());
    }
    let some = state.queue.trims().len().min(MOST_TRIMS);
    let trims: Vec<(u64, u64)> = state.queue.pop_trims(some).collect();
    for &(first, count) in &trims {
        state.tree.clear(first, count, &cells.held())?;
    }
    Ok(trims)
}
