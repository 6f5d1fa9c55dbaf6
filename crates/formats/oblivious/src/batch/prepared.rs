//! A batch before its turn: the cells that it rewrites, and their contents.
//!
//! Deniability contract: all cells of every region are read. Each costs one check whether its level
//! uses it, and one decryption: under the key of that level, or under a throwaway key if the level
//! is not open or does not use the cell. Cells come from public randomness alone.

use crate::batch::draw::draw_cells;
use crate::cells::cell::Verification;
use crate::cells::cell_store::CellStore;
use crate::cells::place::{BatchSeq, CellNo, CellPlace};
use crate::cells::regions::REGIONS;
use crate::durability::Durability;
use crate::keys::OpenLevelKeys;
use crate::limits::{CELL_LEN, GROUP};
use crate::params::Params;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Result, WipeOnDrop};
use lacuna_crypto::RandomSource;
use lacuna_levels::{SALT_LEN, SlotEntry};
use std::sync::Arc;

/// Draws batches, and reads and decrypts their cells. A cell states its own place, so no map is
/// needed.
pub(crate) struct BatchPreparer {
    params: Params,
    keys: Arc<OpenLevelKeys>,
    /// Public randomness.
    random: Arc<dyn RandomSource>,
    cells: Arc<CellStore>,
    durability: Arc<Durability>,
}

impl BatchPreparer {
    pub(crate) fn new(
        params: Params,
        keys: Arc<OpenLevelKeys>,
        random: Arc<dyn RandomSource>,
        cells: Arc<CellStore>,
        durability: Arc<Durability>,
    ) -> BatchPreparer {
        BatchPreparer { params, keys, random, cells, durability }
    }

    /// Draws the next batch and reads its cells into `old`. If the system refuses to read them,
    /// `hold` gets the error, and either waits until the next try or returns the error: the batch
    /// is then given up with everything that was drawn for it.
    ///
    /// Deniability contract: cells of all levels are read alike, so a held batch reveals nothing
    /// about them.
    pub(crate) fn prepare(
        &self,
        mut old: WipeOnDrop<Vec<u8>>,
        hold: impl Fn(Error) -> Result<()>,
    ) -> Result<PreparedBatch> {
        let mut salt = [0; SALT_LEN];
        self.random.fill(&mut salt);
        let mut cells = Vec::with_capacity(self.params.batch_cells());
        for region in self.params.regions() {
            let groups = draw_cells(&*self.random, region.cells / GROUP, region.drawn / GROUP as usize);
            let firsts = groups.into_iter().map(|group| region.first.0 + group * GROUP);
            cells.extend(firsts.flat_map(|first| first..first + GROUP).map(CellNo));
        }
        let as_of = self.durability.progress().written;
        old.resize(cells.len() * CELL_LEN, 0);
        while let Err(e) = self.cells.read_before_overwrite(&cells, &mut old) {
            if !e.kind().is_refusal() {
                return Err(e);
            }
            hold(e)?;
        }
        let mut prepared = PreparedBatch {
            params: self.params,
            keys: Arc::clone(&self.keys),
            salt,
            found: vec![None; cells.len()],
            cells,
            as_of,
            old,
        };
        (0..prepared.cells.len()).try_for_each(|slot| prepared.open(slot))?;
        Ok(prepared)
    }
}

/// A batch before it is filled.
pub(crate) struct PreparedBatch {
    params: Params,
    keys: Arc<OpenLevelKeys>,
    pub(crate) salt: [u8; SALT_LEN],
    /// The cells that it rewrites.
    pub(crate) cells: Vec<CellNo>,
    /// The last batch that had been written when the cells were read.
    pub(crate) as_of: BatchSeq,
    /// The old contents of the cells; if an entry was found, the block is decrypted.
    pub(crate) old: WipeOnDrop<Vec<u8>>,
    /// For each cell the entry that the level of its region has, or had, there, and the place that
    /// it was written under.
    pub(crate) found: Vec<Option<(SlotEntry, CellPlace)>>,
}

impl PreparedBatch {
    /// Finds the entry of the region's level in a cell, and decrypts the block.
    fn open(&mut self, slot: usize) -> Result<()> {
        let level = (0..REGIONS as u8).find(|level| self.params.slots(*level).contains(&slot));
        let key = self.keys.region_key(level);
        let cell = &mut self.old[slot * CELL_LEN..(slot + 1) * CELL_LEN];
        let (block, metadata) = cell.split_at_mut(BLOCK_SIZE);
        let (entry, place) = key.decrypt_entry(metadata);
        let claimed = entry.filter(|_| place.cell() == Some(self.cells[slot]));
        let (key, entry) = claimed.map_or((self.keys.throwaway(), SlotEntry::Empty), |entry| (key, entry));
        let verified = key.open(place, entry, block, metadata)? == Verification::Verified;
        self.found[slot] = claimed.filter(|_| verified).map(|entry| (entry, place));
        Ok(())
    }

    /// Replaces the contents of one of the cells, which a later batch rewrote.
    pub(crate) fn replace(&mut self, slot: usize, cell: &[u8]) -> Result<()> {
        self.old[slot * CELL_LEN..(slot + 1) * CELL_LEN].copy_from_slice(cell);
        self.open(slot)
    }

    /// The block of a cell.
    pub(crate) fn block(&mut self, slot: usize) -> &mut [u8] {
        &mut self.old[slot * CELL_LEN..slot * CELL_LEN + BLOCK_SIZE]
    }

    /// Addresses of the blocks that were found, for every open level.
    pub(crate) fn data_by_level(&self) -> Vec<Vec<BlockAddr>> {
        let data = |level: u8| {
            let found = self.found[self.params.slots(level)].iter().flatten();
            let addr = |(entry, _): &(SlotEntry, CellPlace)| match entry {
                SlotEntry::Data(addr) => Some(BlockAddr(*addr)),
                _ => None,
            };
            found.filter_map(addr).collect()
        };
        (0..self.keys.levels().len() as u8).map(data).collect()
    }
}
