//! The cells of one open level: blocks and pages of its map, decrypted.
//!
//! A map has the place of a block before the batch of that block can be read. Until then the block
//! is in memory here, so that reads need not wait for the batch.
//!
//! The metadata of cells that were read is kept, so that the next read of a cell needs its block
//! alone. It may be out of date: a batch that leaves a block in its cell encrypts it anew. The
//! block then does not verify, and is read once more with its metadata.
//!
//! Invariants: the block of a cell is returned only if it verifies at its place. No two levels
//! share memory (deniability contract).

use crate::cells::cell::Verification;
use crate::cells::cell_store::{CellBuf, CellStore};
use crate::cells::place::{CellNo, CellPlace};
use crate::keys::OpenLevelKeys;
use crate::limits::{CELL_LEN, META_LEN};
use crate::params::Params;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, BoundedCache, Error, Kind, Result};
use lacuna_levels::{PageSource, PendingBlock, SlotEntry, corrupt, retry};
use parking_lot::RwLock;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::sync::Arc;

/// Blocks and pages in memory, by their places.
type BlocksInFlight = FxHashMap<CellPlace, (SlotEntry, PendingBlock)>;

/// The metadata of a cell, as it lies on the medium.
type CellMetadata = [u8; META_LEN];

/// Bytes charged for the metadata of a cell in memory.
const KEPT_METADATA_COST: u64 = 128;

/// A cell to be read, and the memory for its block.
struct CellRead<'a> {
    cell: CellNo,
    place: CellPlace,
    entry: SlotEntry,
    block: &'a mut [u8; BLOCK_SIZE],
}

/// The cells of one open level.
pub(crate) struct LevelCells {
    level: u8,
    params: Params,
    keys: Arc<OpenLevelKeys>,
    cells: Arc<CellStore>,
    /// The blocks and pages that the batch in flight puts into cells.
    in_flight: RwLock<BlocksInFlight>,
    /// The metadata of cells that were read, by the places of their blocks.
    metadata: RwLock<BoundedCache<CellPlace, CellMetadata, FxBuildHasher>>,
}

impl LevelCells {
    /// Keeps the metadata of cells in `memory` bytes.
    pub(crate) fn new(
        level: u8,
        params: Params,
        keys: Arc<OpenLevelKeys>,
        cells: Arc<CellStore>,
        memory: u64,
    ) -> LevelCells {
        let metadata = RwLock::new(BoundedCache::new((memory / KEPT_METADATA_COST) as usize));
        LevelCells { level, params, keys, cells, in_flight: RwLock::default(), metadata }
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
                rest.push(CellRead { cell: self.cell_of(place, entry)?, place, entry, block });
            }
        }
        // Cells of one group side by side: one request reads them.
        rest.sort_unstable_by_key(|read| read.cell);
        let known = {
            let metadata = self.metadata.read();
            rest.iter().map(|read| metadata.get_shared(read.place).copied()).collect()
        };
        let outdated = self.read_cells(rest, known)?;
        if !outdated.is_empty() {
            let unknown = vec![None; outdated.len()];
            self.read_cells(outdated, unknown)?;
        }
        Ok(())
    }

    /// Reads cells, in the order of their numbers. `known` has the metadata of some, which is not
    /// read then. Returns the cells that it is out of date for.
    fn read_cells<'a>(
        &self,
        mut reads: Vec<CellRead<'a>>,
        known: Vec<Option<CellMetadata>>,
    ) -> Result<Vec<CellRead<'a>>> {
        let is_known: Vec<bool> = known.iter().map(Option::is_some).collect();
        let mut metadata: Vec<CellMetadata> =
            known.into_iter().map(|known| known.unwrap_or([0; META_LEN])).collect();
        let cells: Vec<CellNo> = reads.iter().map(|read| read.cell).collect();
        let each = reads.iter_mut().zip(&mut metadata).zip(&is_known);
        let mut bufs: Vec<CellBuf<'_>> = each
            .map(|((read, metadata), is_known)| {
                let block = read.block.as_mut_slice();
                if *is_known { CellBuf::Block(block) } else { CellBuf::Parts(block, metadata) }
            })
            .collect();
        self.cells.read_to(self.level, &cells, &mut bufs)?;
        let (mut outdated, mut fresh) = (Vec::new(), Vec::new());
        for ((read, metadata), is_known) in reads.into_iter().zip(metadata).zip(is_known) {
            match self.open_parts(read.place, read.entry, read.block.as_mut_slice(), &metadata) {
                Ok(()) if is_known => {}
                Ok(()) => fresh.push((read.place, metadata)),
                Err(e) if is_known && e.kind() == Kind::Corrupt => outdated.push(read),
                Err(e) => return Err(e),
            }
        }
        if !fresh.is_empty() {
            let mut kept = self.metadata.write();
            fresh.into_iter().for_each(|(place, metadata)| kept.insert(place, metadata));
        }
        Ok(outdated)
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
