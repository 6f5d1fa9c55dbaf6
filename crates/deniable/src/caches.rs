//! How much the caches of an open disk hold, for measurements.

use crate::core::Core;
use lacuna_core::BLOCK_SIZE;
use lacuna_levels::Tree;

/// Bytes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The most it held at once since the disk was opened.
    pub most: u64,
    /// Its share of the memory for all caches.
    pub share: u64,
}

/// What is kept of maps and summaries (paper 000, section 3.3). It tells about every open level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Leaves of the map of each open level, from 0 up.
    pub leaves: Vec<Cached>,
    /// Summaries, as read for any level.
    pub summaries: Cached,
}

impl Caches {
    pub(crate) fn of(core: &Core) -> Caches {
        let leaves = |tree: &Tree| {
            let [most, share] = [tree.most_leaves(), tree.cached_leaves()].map(|n| n * BLOCK_SIZE as u64);
            Cached { most, share }
        };
        let mut levels = vec![leaves(&core.public().tree)];
        for level in 1..=core.hidden.count() as u8 {
            levels.push(leaves(&core.hidden.lock(&core.health, level).level.tree));
        }
        let [most, share] = core.log.bytes_of_heads();
        Caches { leaves: levels, summaries: Cached { most, share } }
    }
}
