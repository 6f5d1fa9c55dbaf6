//! Fills a batch: decides the contents of each of its cells (HIVE, Algorithm 6, for all operations
//! of a batch at once).
//!
//! Deniability contract: cells come from public randomness, as does the salt, which is hedged, and
//! every level has its own cells among them: the cells of one level do not depend on another level.
//! A cell that no level uses is sealed under a throwaway key: all cells cost the same.

pub(crate) mod draw;
pub(crate) mod head;
pub(crate) mod prepared;
pub(crate) mod prepared_queue;
pub(crate) mod writer;

use crate::batch::head::{HeadBuilder, LevelRecord, PublicHead, batch_key};
use crate::batch::prepared::PreparedBatch;
use crate::cells::cell::{FILLER_AT, NONCE_AT};
use crate::cells::level_cells::LevelCells;
use crate::cells::place::{BatchSeq, CellNo, CellPlace, StashSlot};
use crate::keys::OpenLevelKeys;
use crate::limits::{CELL_LEN, MAX_TRIMS, STASH_SLOTS};
use crate::params::Params;
use crate::progress::Claims;
use lacuna_contracts::{BLOCK_SIZE, Result, WipeOnDrop};
use lacuna_crypto::RandomSource;
use lacuna_levels::{PendingBlock, QueuedLevel, SALT_LEN, SlotEntry};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// The new contents of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CellContent {
    /// Filler, of no level.
    Filler,
    /// The old contents: the level, its entry and its place.
    Kept(u8, SlotEntry, CellPlace),
    /// An entry that a level puts there.
    Put(u8, SlotEntry),
}

/// The most pages and blocks that a level may put into a batch.
#[derive(Clone, Copy)]
pub(crate) struct BatchShares {
    /// Pages of its map that come before any data.
    pub(crate) pages: usize,
    pub(crate) blocks: usize,
    /// Pages that come after all data.
    pub(crate) more_pages: usize,
}

/// A batch that is being filled.
pub(crate) struct CellBatch<'a> {
    params: &'a Params,
    keys: &'a OpenLevelKeys,
    filler: &'a dyn RandomSource,
    seq: BatchSeq,
    /// Its cells; their new contents replace the old ones.
    drawn: PreparedBatch,
    contents: Vec<CellContent>,
    /// The input of the head: random bytes, and the records of the levels.
    block: Box<[u8; BLOCK_SIZE]>,
    head_parts: Vec<LevelHeadPart>,
    /// The blocks that level 0 leaves in the stash.
    stashed: Vec<(SlotEntry, PendingBlock)>,
}

/// The record of a level for the head, and its entries.
struct LevelHeadPart {
    level: u8,
    entries: Vec<SlotEntry>,
    stashed: Vec<SlotEntry>,
    record: LevelRecord,
}

/// A batch as it goes to the medium, without its record.
pub(crate) struct SealedBatch {
    pub(crate) salt: [u8; SALT_LEN],
    pub(crate) public: PublicHead,
    pub(crate) head: Box<[u8; BLOCK_SIZE]>,
    /// The memory of its cells.
    pub(crate) memory: WipeOnDrop<Vec<u8>>,
}

impl<'a> CellBatch<'a> {
    pub(crate) fn new(
        params: &'a Params,
        keys: &'a OpenLevelKeys,
        filler: &'a dyn RandomSource,
        seq: BatchSeq,
        drawn: PreparedBatch,
    ) -> CellBatch<'a> {
        let mut block = Box::new([0; BLOCK_SIZE]);
        filler.fill(&mut block[..]);
        CellBatch {
            params,
            keys,
            filler,
            seq,
            contents: vec![CellContent::Filler; drawn.cells.len()],
            block,
            head_parts: Vec::new(),
            drawn,
            stashed: Vec::new(),
        }
    }

    /// Lets a level fill its cells.
    pub(crate) fn fill(
        &mut self,
        level: u8,
        state: &mut QueuedLevel,
        cells: &LevelCells,
        shares: BatchShares,
    ) -> Result<()> {
        // A map that is two cycles behind gets all cells: at four cycles the journal would
        // overwrite changes that the map needs.
        let cycle = u64::from(self.params.cycle);
        let behind = state.tree.state().covered + 2 * cycle < self.seq.0;
        let trims = if behind && level > 0 { Vec::new() } else { take_discards(level, state, cells)? };
        self.keep_live_cells(level, state, cells)?;
        let due = state.tree.pages_due(self.seq.0);
        let first = if behind { usize::MAX } else { shares.pages };
        self.take_pages(level, state, cells, due.min(first))?;
        if !behind && state.queue.trims().is_empty() {
            self.take_blocks(level, state, cells, shares.blocks)?;
        }
        self.take_pages(level, state, cells, due.saturating_sub(first).min(shares.more_pages))?;
        if level == 0 {
            let pending = state.queue.pending().take(STASH_SLOTS);
            let copy = |(addr, block): (u64, &[u8])| (SlotEntry::Data(addr), PendingBlock::new(block.into()));
            self.stashed = pending.map(copy).collect();
        }
        self.add_head_part(level, state, trims);
        Ok(())
    }

    /// Keeps the record and the entries of a level for the head.
    fn add_head_part(&mut self, level: u8, state: &QueuedLevel, trims: Vec<(u64, u64)>) {
        let slots = self.slots(level);
        let put = |holds: &CellContent| match holds {
            CellContent::Put(_, entry) => *entry,
            CellContent::Filler | CellContent::Kept(..) => SlotEntry::Empty,
        };
        let entries: Vec<SlotEntry> = self.contents[slots.clone()].iter().map(put).collect();
        let stashed: Vec<SlotEntry> =
            self.stashed.iter().filter(|_| level == 0).map(|(entry, _)| *entry).collect();
        let cycle = BatchSeq(state.tree.cycle_start());
        let record = LevelRecord { state: state.tree.state(), cycle, trims };
        self.head_parts.push(LevelHeadPart { level, entries, stashed, record });
    }

    fn slots(&self, level: u8) -> Range<usize> {
        self.params.slots(level)
    }

    /// Finds the cells that hold the latest version of a block or page of this level. They keep it,
    /// encrypted anew. A cell that no longer verifies is overwritten: its map goes on pointing
    /// there, and its reader gets an error.
    fn keep_live_cells(&mut self, level: u8, state: &mut QueuedLevel, cells: &LevelCells) -> Result<()> {
        for slot in self.slots(level) {
            let Some((entry, place)) = self.drawn.found[slot] else { continue };
            if state.tree.place_of(entry, &cells.retrying_pages())? == place.word() {
                debug_assert!(place.cell() == Some(self.drawn.cells[slot]));
                self.contents[slot] = CellContent::Kept(level, entry, place);
            }
        }
        Ok(())
    }

    /// A free cell of the level.
    fn free_cell(&self, level: u8) -> Option<usize> {
        self.slots(level).find(|slot| self.contents[*slot] == CellContent::Filler)
    }

    /// The place of a block that this batch puts into one of its cells.
    fn place(&self, slot: usize) -> CellPlace {
        CellPlace::new(self.seq, self.drawn.cells[slot])
    }

    fn take_pages(
        &mut self,
        level: u8,
        state: &mut QueuedLevel,
        cells: &LevelCells,
        most: usize,
    ) -> Result<()> {
        for _ in 0..most {
            let Some(slot) = self.free_cell(level) else { return Ok(()) };
            let mut page = PendingBlock::new(vec![0; BLOCK_SIZE].into_boxed_slice());
            let emitted =
                state.tree.write_next_page(self.place(slot).word(), &cells.retrying_pages(), &mut page)?;
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
        state: &mut QueuedLevel,
        cells: &LevelCells,
        most: usize,
    ) -> Result<()> {
        let QueuedLevel { tree, queue } = state;
        for _ in 0..most {
            let Some(addr) = queue.front() else { return Ok(()) };
            let Some(slot) = self.free_cell(level) else { return Ok(()) };
            tree.set(addr, self.place(slot).word(), &cells.retrying_pages())?;
            let pending = queue.pop().expect("it was just seen");
            self.put(level, slot, SlotEntry::Data(addr), pending, cells);
        }
        Ok(())
    }

    /// Puts a block or page into a cell. Its level is locked, so a reader that finds the place in
    /// the map finds the block in memory.
    fn put(&mut self, level: u8, slot: usize, entry: SlotEntry, block: PendingBlock, cells: &LevelCells) {
        self.drawn.block(slot).copy_from_slice(&block);
        self.contents[slot] = CellContent::Put(level, entry);
        cells.submit(self.place(slot), entry, block);
    }

    /// The index in the batch of each of its cells.
    pub(crate) fn slots_of_cells(&self) -> FxHashMap<CellNo, usize> {
        self.drawn.cells.iter().enumerate().map(|(slot, cell)| (*cell, slot)).collect()
    }

    /// Encrypts everything: cells and stash into `record`, and the head.
    pub(crate) fn seal(
        mut self,
        previous: [u8; 16],
        claims: Claims,
        record: &mut Vec<u8>,
    ) -> Result<SealedBatch> {
        record.resize(self.params.record_len() as usize, 0);
        let (cells, rest) = record.split_at_mut(self.contents.len() * CELL_LEN);
        for (slot, out) in cells.chunks_exact_mut(CELL_LEN).enumerate() {
            let (key, place, entry) = match self.contents[slot] {
                CellContent::Filler => (self.keys.throwaway(), CellPlace::from_word(0), SlotEntry::Empty),
                CellContent::Kept(level, entry, place) => (&self.keys.level(level).cells, place, entry),
                CellContent::Put(level, entry) => (&self.keys.level(level).cells, self.place(slot), entry),
            };
            key.seal(place, entry, self.drawn.block(slot), self.filler, out)?;
        }
        self.filler.fill(rest);
        let slots = self.stashed.iter().zip(rest.chunks_exact_mut(CELL_LEN));
        for (slot, ((entry, block), out)) in slots.enumerate() {
            let place = CellPlace::in_stash(self.seq, StashSlot(slot));
            self.keys.level(0).cells.seal(place, *entry, block, self.filler, out)?;
        }
        let cells = std::mem::take(&mut self.drawn.cells);
        let public = PublicHead { seq: self.seq, previous, claims, cells };
        let salt = self.hedged_salt(&public, record);
        let write_keys = self.keys.levels().iter().map(|key| batch_key(&key.level, &salt));
        let write_keys = write_keys.collect::<Result<Vec<_>>>()?;
        let mut draft = HeadBuilder::new(salt, self.block);
        for LevelHeadPart { level, entries, stashed, record } in &self.head_parts {
            let key = &write_keys[usize::from(*level)];
            draft.put_level(key, *level, self.params.slots(*level), entries, stashed, record);
        }
        let head = draft.finish(&write_keys[0], &public, record);
        Ok(SealedBatch { salt, public, head, memory: self.drawn.old })
    }

    /// The salt, hedged with everything that will be sealed under it: two copies of a running
    /// machine, which draw the same random bytes, get different keys for different content. If the
    /// random bytes are fresh, the salt is as random as they are, and reveals nothing (deniability
    /// contract). The nonces of cells stand for the cells, because they depend on the contents.
    fn hedged_salt(&self, public: &PublicHead, record: &[u8]) -> [u8; SALT_LEN] {
        let mut content = self.block.to_vec();
        for cell in record.chunks_exact(CELL_LEN) {
            content.extend_from_slice(&cell[NONCE_AT..FILLER_AT]);
        }
        for LevelHeadPart { level, entries, stashed, record } in &self.head_parts {
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
fn take_discards(level: u8, state: &mut QueuedLevel, cells: &LevelCells) -> Result<Vec<(u64, u64)>> {
    // Each discard makes pages of the map dirty: take none while too many are. A discard of level 0
    // is recorded by the next batch in any case: pending blocks in its range were in the stash, and
    // are no longer.
    if level > 0 && state.tree.is_over_dirty_limit() {
        return Ok(Vec::new());
    }
    let some = state.queue.trims().len().min(MAX_TRIMS);
    let trims: Vec<(u64, u64)> = state.queue.pop_trims(some).collect();
    for &(first, count) in &trims {
        state.tree.clear(first, count, &cells.retrying_pages())?;
    }
    Ok(trims)
}
