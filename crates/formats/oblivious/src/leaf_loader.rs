//! Loads the leaves of maps that a prepared batch is going to ask for, by a thread, without the
//! locks of the levels.
//!
//! Deniability contract: the deepest level comes first. Front ends of level 0 may hold its lock as
//! often as they like, and a hidden level whose leaves had to wait for that would make its batch
//! take longer.

use crate::ahead::{Ahead, Due};
use crate::open_levels::OpenLevels;
use lacuna_levels::Tree;
use std::sync::Arc;

/// Loads leaves for batches that are prepared ahead.
pub(crate) struct LeafLoader {
    pub(crate) ahead: Arc<Ahead>,
    pub(crate) levels: Arc<OpenLevels>,
}

impl LeafLoader {
    /// What the thread does that looks ahead into the maps. It waits for the locks of levels, which
    /// the thread that prepares batches must not: these are two.
    pub(crate) fn load_leaves(&self) {
        while let Some(due) = self.ahead.next_due() {
            self.load(&due);
        }
    }

    /// Loads the leaves that say whether what was found is the latest, as long as the batch has not
    /// been taken.
    fn load(&self, due: &Due) {
        for (level, addrs) in due.addrs.iter().enumerate().rev() {
            let level = level as u8;
            let mut most = 1;
            let is_due = self.with_map(due, level, |map| most = (map.cached_leaves() / 2).max(1) as usize);
            for addrs in addrs.chunks(most).take_while(|_| is_due) {
                let mut missing = Vec::new();
                self.with_map(due, level, |map| {
                    missing.extend(addrs.iter().filter_map(|addr| map.missing(addr.0, 1)));
                });
                let wanted = missing.into_iter().take_while(|_| self.ahead.is_due(due.number));
                // What cannot be read is found out by the reader of the map.
                let loaded: Vec<_> =
                    wanted.filter_map(|leaf| leaf.load(self.levels.cells(level)).ok()).collect();
                if !loaded.is_empty() {
                    self.with_map(due, level, |map| loaded.into_iter().for_each(|leaf| map.supply(leaf)));
                }
            }
        }
    }

    /// Runs `act` on the map of a level, unless it is too late for the batch. Whether it did.
    fn with_map(&self, due: &Due, level: u8, act: impl FnOnce(&mut Tree)) -> bool {
        let is_due = self.ahead.is_due(due.number);
        if is_due {
            self.levels.with_map(level, act);
        }
        is_due
    }
}
