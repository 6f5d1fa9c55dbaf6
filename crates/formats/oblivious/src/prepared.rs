//! A batch before its turn: the cells that it rewrites, and their contents.
//!
//! Deniability contract: all cells of every region are read. Each costs one check whether its level
//! uses it, and one decryption: under the key of that level, or under a throwaway key if the level
//! is not open or does not use the cell. Cells come from public randomness alone.

use crate::cell::Opened;
use crate::cell_store::CellStore;
use crate::draw::draw_cells;
use crate::durability::Durability;
use crate::keys::Keys;
use crate::limits::{CELL_LEN, GROUP};
use crate::params::Params;
use crate::place::{BatchSeq, Cell, Place};
use crate::regions::REGIONS;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Plain, Result};
use lacuna_crypto::RandomSource;
use lacuna_levels::{Entry, SALT_LEN};
use std::sync::Arc;

/// Draws batches, and reads and decrypts their cells. A cell states its own place, so no map is
/// needed.
pub(crate) struct Preparer {
    params: Params,
    keys: Arc<Keys>,
    /// Public randomness.
    random: Arc<dyn RandomSource>,
    cells: Arc<CellStore>,
    durability: Arc<Durability>,
}

impl Preparer {
    pub(crate) fn new(
        params: Params,
        keys: Arc<Keys>,
        random: Arc<dyn RandomSource>,
        cells: Arc<CellStore>,
        durability: Arc<Durability>,
    ) -> Preparer {
        Preparer { params, keys, random, cells, durability }
    }

    /// Draws the next batch and reads its cells into `old`. If the system refuses to read them,
    /// `hold` gets the error, and either waits until the next try or returns the error: the batch
    /// is then given up with everything that was drawn for it.
    ///
    /// Deniability contract: cells of all levels are read alike, so a held batch reveals nothing
    /// about them.
    pub(crate) fn prepare(
        &self,
        mut old: Plain<Vec<u8>>,
        hold: impl Fn(Error) -> Result<()>,
    ) -> Result<Prepared> {
        let mut salt = [0; SALT_LEN];
        self.random.fill(&mut salt);
        let mut cells = Vec::with_capacity(self.params.batch_cells());
        for region in self.params.regions() {
            let groups = draw_cells(&*self.random, region.cells / GROUP, region.drawn / GROUP as usize);
            let firsts = groups.into_iter().map(|group| region.first.0 + group * GROUP);
            cells.extend(firsts.flat_map(|first| first..first + GROUP).map(Cell));
        }
        let as_of = self.durability.progress().written;
        old.resize(cells.len() * CELL_LEN, 0);
        while let Err(e) = self.cells.read_last(&cells, &mut old) {
            if !e.kind().is_refusal() {
                return Err(e);
            }
            hold(e)?;
        }
        let mut prepared = Prepared {
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
pub(crate) struct Prepared {
    params: Params,
    keys: Arc<Keys>,
    pub(crate) salt: [u8; SALT_LEN],
    /// The cells that it rewrites.
    pub(crate) cells: Vec<Cell>,
    /// The last batch that had been written when the cells were read.
    pub(crate) as_of: BatchSeq,
    /// The old contents of the cells; if an entry was found, the block is decrypted.
    pub(crate) old: Plain<Vec<u8>>,
    /// For each cell the entry that the level of its region has, or had, there, and the place that
    /// it was written under.
    pub(crate) found: Vec<Option<(Entry, Place)>>,
}

impl Prepared {
    /// Finds the entry of the region's level in a cell, and decrypts the block.
    fn open(&mut self, slot: usize) -> Result<()> {
        let level = (0..REGIONS as u8).find(|level| self.params.slots(*level).contains(&slot));
        let key = self.keys.of_region(level);
        let cell = &mut self.old[slot * CELL_LEN..(slot + 1) * CELL_LEN];
        let (block, metadata) = cell.split_at_mut(BLOCK_SIZE);
        let (entry, place) = key.claim(metadata);
        let claimed = entry.filter(|_| place.cell() == Some(self.cells[slot]));
        let (key, entry) = claimed.map_or((self.keys.throwaway(), Entry::Empty), |entry| (key, entry));
        let verified = key.open(place, entry, block, metadata)? == Opened::Verified;
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
            let addr = |(entry, _): &(Entry, Place)| match entry {
                Entry::Data(addr) => Some(BlockAddr(*addr)),
                _ => None,
            };
            found.filter_map(addr).collect()
        };
        (0..self.keys.levels().len() as u8).map(data).collect()
    }
}
