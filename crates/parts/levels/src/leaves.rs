//! The leaves of a map that are in memory: a bounded cache of leaves, and the changes of leaves
//! that are not cached.

use crate::map_size::FANOUT;
use lacuna_contracts::BoundedCache;
use rustc_hash::{FxBuildHasher, FxHashMap};

/// In a change: every place of the leaf.
pub(crate) const WHOLE_LEAF: u16 = u16::MAX;
/// The fewest leaves that a cache holds.
const MIN_CACHED: usize = 4;

/// One page: places, packed.
pub(crate) type MapPage = Box<[u64; FANOUT as usize]>;

/// Places of a leaf, or all of them, and their new values; later ones replace earlier ones.
type LeafChanges = Vec<(u16, u64)>;

struct Leaf {
    places: MapPage,
    /// The changes since it was last written, if it may be evicted before it is written again.
    changes: LeafChanges,
}

/// A cache of leaves.
pub(crate) struct LeafCache {
    cache: BoundedCache<u64, Leaf, FxBuildHasher>,
    /// The most leaves that were in memory at once.
    peak: usize,
    /// Whether changed leaves may be evicted. Otherwise they stay until they are written.
    may_evict_dirty: bool,
    /// The changes of leaves that are not cached.
    uncached_changes: FxHashMap<u64, LeafChanges>,
}

impl LeafCache {
    pub(crate) fn new(cached: usize) -> LeafCache {
        let cache = BoundedCache::new(cached.max(MIN_CACHED));
        LeafCache { cache, peak: 0, may_evict_dirty: false, uncached_changes: FxHashMap::default() }
    }

    pub(crate) fn allow_dirty_eviction(&mut self) {
        self.may_evict_dirty = true;
    }

    /// The most leaves that are cached, not counting changed ones that must stay.
    pub(crate) fn capacity(&self) -> usize {
        self.cache.capacity()
    }

    /// The most leaves that were in memory at once, changed ones included.
    pub(crate) fn peak(&self) -> usize {
        self.peak
    }

    pub(crate) fn is_cached(&self, number: u64) -> bool {
        self.cache.contains(number)
    }

    /// Whether a leaf may have changes that its page on the medium does not.
    pub(crate) fn may_have_changes(&self, number: u64) -> bool {
        self.is_cached(number) || self.uncached_changes.contains_key(&number)
    }

    fn leaf(&mut self, number: u64) -> &mut Leaf {
        self.cache.get(number).expect("it is cached")
    }

    /// The places of a leaf, if it is cached. Counts as a use.
    pub(crate) fn cached(&self, number: u64) -> Option<&MapPage> {
        self.cache.get_shared(number).map(|leaf| &leaf.places)
    }

    /// The places of a cached leaf.
    pub(crate) fn places(&self, number: u64) -> &MapPage {
        self.cached(number).expect("it is cached")
    }

    /// Changes a place in a cached leaf and returns its old value.
    pub(crate) fn set(&mut self, number: u64, at: usize, packed: u64) -> u64 {
        let spills = self.may_evict_dirty;
        let leaf = self.leaf(number);
        let was = std::mem::replace(&mut leaf.places[at], packed);
        if spills && leaf.changes.len() > 2 * FANOUT as usize {
            leaf.changes = (0..).zip(leaf.places.iter().copied()).collect();
        } else if spills {
            leaf.changes.push((at as u16, packed));
        }
        was
    }

    /// Records that every place of a cached leaf has become 0: its earlier changes no longer
    /// matter.
    pub(crate) fn note_cleared(&mut self, number: u64) {
        let spills = self.may_evict_dirty;
        let leaf = self.leaf(number);
        debug_assert!(leaf.places.iter().all(|packed| *packed == 0));
        if spills {
            leaf.changes = vec![(WHOLE_LEAF, 0)];
        }
    }

    /// Records that a cached leaf is being written as it is.
    pub(crate) fn note_written(&mut self, number: u64) {
        self.leaf(number).changes = LeafChanges::new();
    }

    /// Remembers a change of a leaf that is not cached.
    pub(crate) fn add_change(&mut self, number: u64, at: u16, packed: u64) {
        debug_assert!(!self.is_cached(number), "nothing is cached while changes are repeated");
        if at == WHOLE_LEAF {
            self.uncached_changes.insert(number, vec![(at, packed)]);
        } else {
            self.uncached_changes.entry(number).or_default().push((at, packed));
        }
    }

    /// Puts a leaf into the cache: its page, with the remembered changes applied. `is_dirty` tells
    /// which leaves are to be written.
    pub(crate) fn put(&mut self, number: u64, mut places: MapPage, is_dirty: impl Fn(u64) -> bool) {
        let known = self.uncached_changes.remove(&number).unwrap_or_default();
        for (at, packed) in &known {
            if *at == WHOLE_LEAF {
                places.fill(*packed);
            } else {
                places[usize::from(*at)] = *packed;
            }
        }
        self.make_room(is_dirty);
        let changes = if self.may_evict_dirty { known } else { LeafChanges::new() };
        self.cache.put(number, Leaf { places, changes });
        self.peak = self.peak.max(self.cache.len());
    }

    /// Evicts leaves to make room for one, unless all are changed and must stay.
    fn make_room(&mut self, is_dirty: impl Fn(u64) -> bool) {
        while self.cache.is_full() {
            let spills = self.may_evict_dirty;
            let Some((number, leaf)) = self.cache.evict(|number, _| spills || !is_dirty(number)) else {
                return;
            };
            if !leaf.changes.is_empty() && is_dirty(number) {
                self.uncached_changes.insert(number, leaf.changes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evicted_leaf_keeps_its_changes() {
        for spills in [true, false] {
            let mut leaves = LeafCache::new(16);
            if spills {
                leaves.allow_dirty_eviction();
            }
            let fresh = || Box::new([1; FANOUT as usize]);
            for number in 0..100 {
                leaves.put(number, fresh(), |_| true);
                assert_eq!(leaves.set(number, 3, number + 10), 1);
            }
            assert_eq!(leaves.cache.len(), if spills { 16 } else { 100 });
            assert_eq!(leaves.peak(), leaves.cache.len());
            assert!(leaves.may_have_changes(0));
            for number in (0..100).rev() {
                if !leaves.is_cached(number) {
                    leaves.put(number, fresh(), |_| true);
                }
                assert_eq!((leaves.places(number)[3], leaves.places(number)[4]), (number + 10, 1));
            }
        }
    }

    #[test]
    fn written_and_cleared_leaves_drop_their_changes() {
        let mut leaves = LeafCache::new(16);
        leaves.allow_dirty_eviction();
        leaves.put(7, Box::new([1; FANOUT as usize]), |_| true);
        for at in 0..FANOUT as usize {
            leaves.set(7, at, 0);
        }
        leaves.note_cleared(7);
        leaves.set(7, 5, 9);
        assert_eq!(leaves.cache.peek(7).unwrap().changes, [(WHOLE_LEAF, 0), (5, 9)]);
        leaves.note_written(7);
        assert!(leaves.cache.peek(7).unwrap().changes.is_empty());
    }
}
