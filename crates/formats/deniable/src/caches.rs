//! The sizes of the caches of an open disk, for measurements.

use lacuna_contracts::BLOCK_SIZE;
use lacuna_levels::Tree;

/// The size of a cache in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The most bytes that it held at once since the disk was opened.
    pub most: u64,
    /// Its share of the memory for all caches.
    pub share: u64,
}

/// The caches of maps and summaries (PD-DM, section 3.3). Their sizes reveal every open level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Leaves of the map of each open level, starting at level 0.
    pub leaves: Vec<Cached>,
    /// Summaries, read for all levels.
    pub summaries: Cached,
}

impl Cached {
    /// The cached leaves of a map.
    pub(crate) fn leaves(tree: &Tree) -> Cached {
        let [most, share] = [tree.most_leaves(), tree.cached_leaves()].map(|n| n * BLOCK_SIZE as u64);
        Cached { most, share }
    }
}
