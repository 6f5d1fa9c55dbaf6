//! Loads, in a thread, the leaves of maps that a prepared batch needs. The locks of the levels are
//! not held during the reads.
//!
//! Deniability contract: the deepest level comes first. Front ends of level 0 may take its lock any
//! number of times; if the leaves of a hidden level had to wait for it, their batch would take
//! longer.

use crate::batch::prepared_queue::{LeafRequest, PreparedQueue};
use crate::open_levels::OpenLevels;
use lacuna_levels::LevelMap;
use std::sync::Arc;

/// Loads leaves for batches that are prepared ahead.
pub(crate) struct LeafLoader {
    pub(crate) prepared_queue: Arc<PreparedQueue>,
    pub(crate) levels: Arc<OpenLevels>,
}

impl LeafLoader {
    /// The work of the thread that looks ahead in the maps. It waits for the locks of levels, which
    /// the thread that prepares batches must not do: hence there are two threads.
    pub(crate) fn load_leaves(&self) {
        while let Some(due) = self.prepared_queue.next_leaf_request() {
            self.load(&due);
        }
    }

    /// Loads the leaves that show whether the blocks found are the latest, as long as the batch has
    /// not been taken.
    fn load(&self, due: &LeafRequest) {
        for (level, addrs) in due.addrs.iter().enumerate().rev() {
            let level = level as u8;
            let mut most = 1;
            let is_due = self.with_map(due, level, |map| most = (map.cache_capacity() / 2).max(1) as usize);
            for addrs in addrs.chunks(most).take_while(|_| is_due) {
                let mut missing = Vec::new();
                self.with_map(due, level, |map| {
                    missing.extend(addrs.iter().filter_map(|addr| map.first_uncached(addr.0, 1)));
                });
                let wanted = missing.into_iter().take_while(|_| self.prepared_queue.is_pending(due.number));
                // The reader of the map notices pages that cannot be read.
                let loaded: Vec<_> =
                    wanted.filter_map(|leaf| leaf.load(self.levels.cells(level)).ok()).collect();
                if !loaded.is_empty() {
                    self.with_map(due, level, |map| {
                        loaded.into_iter().for_each(|leaf| map.insert_leaf(leaf));
                    });
                }
            }
        }
    }

    /// Runs `act` on the map of a level, unless the batch was taken. Returns whether it ran.
    fn with_map(&self, due: &LeafRequest, level: u8, act: impl FnOnce(&mut LevelMap)) -> bool {
        let is_due = self.prepared_queue.is_pending(due.number);
        if is_due {
            self.levels.with_map(level, act);
        }
        is_due
    }
}
