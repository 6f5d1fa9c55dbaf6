//! Loads leaves of a map ahead of need, without the lock that front ends wait for.

use crate::level_map::{LevelMap, PageSource};
use crate::map_size::FANOUT;

/// Loads the leaves of a range of blocks into memory. `locked` runs its argument on the map, under
/// the map's lock; the leaves are read from `source` between those runs. Stops at a leaf that
/// cannot be read, which the reader of the map will notice, and loads no more leaves than a part of
/// the cache.
pub fn warm(first: u64, count: u64, source: &dyn PageSource, locked: impl Fn(&mut dyn FnMut(&mut LevelMap))) {
    let mut most = u64::MAX;
    let mut loaded = None;
    let mut tried = 0;
    loop {
        let mut missing = None;
        locked(&mut |tree: &mut LevelMap| {
            most = (tree.cache_capacity() / 2).min(count / FANOUT + 2);
            if let Some(leaf) = loaded.take() {
                tree.insert_leaf(leaf);
            }
            missing = tree.first_uncached(first, count);
        });
        let Some(missing) = missing.filter(|_| tried < most) else { return };
        tried += 1;
        let Ok(leaf) = missing.load(source) else { return };
        loaded = Some(leaf);
    }
}
