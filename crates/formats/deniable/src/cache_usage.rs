//! The sizes of the caches of an open disk, for measurements.

use lacuna_contracts::BLOCK_SIZE;
use lacuna_levels::LevelMap;

/// The size of a cache in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUsage {
    /// The most bytes that it held at once since the disk was opened.
    pub peak: u64,
    /// Its share of the memory for all caches.
    pub budget: u64,
}

/// The caches of maps and summaries (PD-DM, section 3.3). Their sizes reveal every open level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCacheUsage {
    /// Leaves of the map of each open level, starting at level 0.
    pub leaves: Vec<CacheUsage>,
    /// Summaries, read for all levels.
    pub summaries: CacheUsage,
}

impl CacheUsage {
    /// The cached leaves of a map.
    pub(crate) fn leaves(tree: &LevelMap) -> CacheUsage {
        let [most, share] = [tree.peak_leaves(), tree.cache_capacity()].map(|n| n * BLOCK_SIZE as u64);
        CacheUsage { peak: most, budget: share }
    }
}
