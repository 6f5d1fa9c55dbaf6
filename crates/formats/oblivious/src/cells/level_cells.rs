//! The cells of one open level: blocks and pages of its map, decrypted.
//!
//! A map has the place of a block before the batch of that block can be read. Until then the block
//! is in memory here, so that reads need not wait for the batch.
//!
//! Invariants: the block of a cell is returned only if it verifies at its place. No two levels
//! share memory (deniability contract).

use crate::cells::cell::Verification;
use crate::cells::cell_store::{CellBuf, CellStore};
use crate::cells::place::{CellNo, CellPlace};
use crate::keys::OpenLevelKeys;
use crate::limits::{CELL_LEN, META_LEN};
use crate::params::Params;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Kind, Result};
use lacuna_levels::{PageSource, PendingBlock, SlotEntry, corrupt, retry};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Blocks and pages in memory, by their places.
type BlocksInFlight = FxHashMap<CellPlace, (SlotEntry, PendingBlock)>;

/// The cells of one open level.
pub(crate) struct LevelCells {
    level: u8,
    params: Params,
    keys: Arc<OpenLevelKeys>,
    cells: Arc<CellStore>,
    /// The blocks and pages that the batch in flight puts into cells.
    in_flight: RwLock<BlocksInFlight>,
}

impl LevelCells {
    pub(crate) fn new(
        level: u8,
        params: Params,
        keys: Arc<OpenLevelKeys>,
        cells: Arc<CellStore>,
    ) -> LevelCells {
        LevelCells { level, params, keys, cells, in_flight: RwLock::default() }
    }

    /// Whether a read succeeded ([`CellStore::check_read`]).
    pub(crate) fn check_read(&self, read: Result<()>) -> Result<bool> {
        self.cells.check_read(read)
    }

    /// Keeps a block or page that the batch in flight puts into a cell. Called under the same lock
    /// as the change of the map.
    pub(crate) fn submit(&self, place: CellPlace, entry: SlotEntry, block: PendingBlock) {
        self.in_flight.write().insert(place, (entry, block));
    }

    /// Drops the submitted blocks: they can be read from their cells.
    pub(crate) fn complete(&self) {
        self.in_flight.write().clear();
    }

    /// Reads the blocks starting at `first` that lie at these places of the map. A block with place
    /// 0 is skipped.
    pub(crate) fn read_blocks(&self, first: BlockAddr, places: &[u64], buf: &mut [u8]) -> Result<()> {
        let mut rest = Vec::with_capacity(places.len());
        let blocks = (first.0..).map(SlotEntry::Data).zip(places).zip(buf.as_chunks_mut::<BLOCK_SIZE>().0);
        for ((entry, place), block) in blocks.filter(|((_, place), _)| **place != 0) {
            let place = CellPlace::from_word(*place);
            if !self.copy_from_memory(place, entry, block) {
                rest.push((self.cell_of(place, entry)?, place, entry, block));
            }
        }
        // Cells of one group side by side: one request reads them.
        rest.sort_unstable_by_key(|(cell, ..)| *cell);
        let cells: Vec<CellNo> = rest.iter().map(|(cell, ..)| *cell).collect();
        let mut metadata = vec![[0u8; META_LEN]; cells.len()];
        let each = rest.iter_mut().zip(&mut metadata);
        let mut bufs: Vec<CellBuf<'_>> =
            each.map(|((.., block), metadata)| CellBuf::Parts(block.as_mut_slice(), metadata)).collect();
        self.cells.read_to(self.level, &cells, &mut bufs)?;
        for ((_, place, entry, block), metadata) in rest.into_iter().zip(&metadata) {
            self.open_parts(place, entry, block, metadata)?;
        }
        Ok(())
    }

    /// Copies a block from memory. Returns whether it is there.
    fn copy_from_memory(&self, place: CellPlace, entry: SlotEntry, block: &mut [u8; BLOCK_SIZE]) -> bool {
        let in_flight = self.in_flight.read();
        let held = in_flight.get(&place).filter(|(submitted, _)| *submitted == entry);
        held.inspect(|(_, bytes)| block.copy_from_slice(bytes)).is_some()
    }

    /// The cell at a place in the map. Errors: [`corrupt`], if the place is no cell of the disk.
    fn cell_of(&self, place: CellPlace, entry: SlotEntry) -> Result<CellNo> {
        let cell = place.cell().filter(|cell| cell.0 < self.params.cells);
        cell.ok_or_else(|| corrupt(format!("{entry} cannot be read")))
    }

    /// Decrypts a cell, or a slot of the stash, in place.
    pub(crate) fn open(&self, place: CellPlace, entry: SlotEntry, buf: &mut [u8]) -> Result<()> {
        let (block, metadata) = buf.split_at_mut(BLOCK_SIZE);
        self.open_parts(place, entry, block, metadata)
    }

    /// The same for a cell that was read in two parts.
    fn open_parts(
        &self,
        place: CellPlace,
        entry: SlotEntry,
        block: &mut [u8],
        metadata: &[u8],
    ) -> Result<()> {
        let key = &self.keys.level(self.level).cells;
        let opened = key.decrypt_entry(metadata) == (Some(entry), place)
            && key.open(place, entry, block, metadata)? == Verification::Verified;
        if opened { Ok(()) } else { Err(corrupt(format!("{entry} cannot be read"))) }
    }

    /// The pages of the level, for operations that cannot do without them.
    pub(crate) fn retrying_pages(&self) -> RetryingPages<'_> {
        RetryingPages(self)
    }

    fn read_page(&self, place: CellPlace, entry: SlotEntry, page: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        let mut buf = [0; CELL_LEN];
        self.cells.read(self.level, &[self.cell_of(place, entry)?], &mut buf)?;
        self.open(place, entry, &mut buf)?;
        page.copy_from_slice(&buf[..BLOCK_SIZE]);
        Ok(())
    }
}

impl PageSource for LevelCells {
    fn load(&self, place: u64, entry: SlotEntry, block: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        let place = CellPlace::from_word(place);
        if self.copy_from_memory(place, entry, block) {
            return Ok(());
        }
        // A page that the medium cannot read is lost, unless the medium reads nothing at all: one
        // bad sector must not stop the disk, and hidden data must not stop public operations.
        let mut read = || self.read_page(place, entry, block);
        // Deniability contract: level 0 may be locked here, and must not pause for hidden data.
        let mut done =
            if self.level == 0 { self.cells.retry_with_pauses(&mut read) } else { retry(&mut read) };
        if done.is_err() && self.level > 0 && !self.cells.is_readable() {
            // Level 0 could not continue either: a transient outage costs it a pause as well.
            done = self.cells.retry_with_pauses(read);
        }
        // A read that the system refuses is no loss.
        let lost = |e: &Error| !e.kind().is_refusal() && self.cells.is_readable();
        done.map_err(|e| if lost(&e) { e.with_kind(Kind::Corrupt) } else { e })
    }
}

/// The pages of a level for the batch that is being filled, and for discards of level 0: a read
/// that the system refuses is tried again, because these operations can neither continue without
/// the page nor be undone.
pub(crate) struct RetryingPages<'a>(&'a LevelCells);

impl PageSource for RetryingPages<'_> {
    fn load(&self, place: u64, entry: SlotEntry, block: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        self.0.cells.retry_if_refused(|| self.0.load(place, entry, block))
    }
}
