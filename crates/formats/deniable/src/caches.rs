//! How much the caches of an open disk hold, for measurements.

use lacuna_contracts::BLOCK_SIZE;
use lacuna_levels::Tree;

/// Bytes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The most it held at once since the disk was opened.
    pub most: u64,
    /// Its share of the memory for all caches.
    pub share: u64,
}

/// What is kept of maps and summaries (PD-DM, section 3.3). It tells about every open level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Leaves of the map of each open level, from 0 up.
    pub leaves: Vec<Cached>,
    /// Summaries, as read for any level.
    pub summaries: Cached,
}

impl Cached {
    /// Of the leaves of a map.
    pub(crate) fn leaves(tree: &Tree) -> Cached {
        let [most, share] = [tree.most_leaves(), tree.cached_leaves()].map(|n| n * BLOCK_SIZE as u64);
        Cached { most, share }
    }
}
