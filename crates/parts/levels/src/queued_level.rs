//! A level with its map and its pending blocks.

use crate::level_map::{LevelMap, PageSource};
use crate::queue::PendingQueue;
use lacuna_contracts::{BLOCK_SIZE, Result};

/// One level with blocks that are pending before they are taken in: every hidden level, and the
/// public one of a format that takes blocks in by the batch.
pub struct QueuedLevel {
    /// Its map.
    pub tree: LevelMap,
    /// The pending blocks and discards.
    pub queue: PendingQueue,
}

impl QueuedLevel {
    /// A level with this map and nothing pending.
    pub fn new(tree: LevelMap) -> QueuedLevel {
        QueuedLevel { tree, queue: PendingQueue::default() }
    }

    /// Sets the places of blocks that were taken in. All other blocks are read at once, and their
    /// places set to 0.
    pub fn locate(
        &mut self,
        first: u64,
        buf: &mut [u8],
        places: &mut [u64],
        source: &dyn PageSource,
    ) -> Result<()> {
        self.tree.places(first, places, source)?;
        self.read_pending(first, buf, places);
        Ok(())
    }

    /// The same, if no leaf of the map has to be loaded. Returns false if one has to: `places` then
    /// has no meaning.
    pub fn locate_in_memory(&self, first: u64, buf: &mut [u8], places: &mut [u64]) -> bool {
        let is_in_memory = self.tree.places_in_memory(first, places);
        if is_in_memory {
            self.read_pending(first, buf, places);
        }
        is_in_memory
    }

    /// Reads the blocks that are pending or unwritten, and sets their places to 0.
    fn read_pending(&self, first: u64, buf: &mut [u8], places: &mut [u64]) {
        let blocks = (first..).zip(buf.chunks_exact_mut(BLOCK_SIZE)).zip(places);
        for ((addr, out), place) in blocks {
            if self.queue.trims_cover(addr) {
                *place = 0;
            }
            if let Some(waiting) = self.queue.get(addr) {
                out.copy_from_slice(waiting);
                *place = 0;
            } else if *place == 0 {
                out.fill(0);
            }
        }
    }

    /// Which of `count` blocks are written.
    pub fn are_written(&mut self, first: u64, count: usize, source: &dyn PageSource) -> Result<Vec<bool>> {
        let QueuedLevel { tree, queue } = self;
        let mut places = vec![0; count];
        tree.places(first, &mut places, source)?;
        let written =
            |(addr, place): (u64, u64)| queue.get(addr).is_some() || (place != 0 && !queue.trims_cover(addr));
        Ok((first..).zip(places).map(written).collect())
    }
}
