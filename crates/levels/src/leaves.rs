//! The leaves of a map that are in memory: cached within a bound, with what changed of those that are not.

use crate::map_size::FANOUT;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// In a change: every place of the leaf.
pub(crate) const WHOLE_LEAF: u16 = u16::MAX;
/// The least leaves that a cache holds.
const LEAST_CACHED: usize = 4;

/// One page: places, packed.
pub(crate) type Page = Box<[u64; FANOUT as usize]>;

/// Places of a leaf, or all of them, and what they are now; later ones count.
type Changes = Vec<(u16, u64)>;

struct Leaf {
    places: Page,
    touched: bool,
    /// Since it was last written, if it may be evicted before it is written again.
    changes: Changes,
}

/// A cache of leaves.
pub(crate) struct Leaves {
    leaves: FxHashMap<u64, Leaf>,
    order: VecDeque<u64>,
    cached: usize,
    /// How many there were at once, at most.
    most: usize,
    /// Whether changed leaves may be evicted. Otherwise they stay until they are written.
    spills: bool,
    /// What changed of leaves that are not cached.
    delta: FxHashMap<u64, Changes>,
}

impl Leaves {
    pub(crate) fn new(cached: usize) -> Leaves {
        Leaves {
            leaves: FxHashMap::default(),
            order: VecDeque::new(),
            cached: cached.max(LEAST_CACHED),
            most: 0,
            spills: false,
            delta: FxHashMap::default(),
        }
    }

    pub(crate) fn spill(&mut self) {
        self.spills = true;
    }

    /// How many are cached at most, changed ones apart if they stay.
    pub(crate) fn cached(&self) -> usize {
        self.cached
    }

    /// How many there were in memory at once, at most, changed ones among them.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// How many are cached.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.leaves.len()
    }

    pub(crate) fn is_cached(&self, number: u64) -> bool {
        self.leaves.contains_key(&number)
    }

    /// Whether anything is known of a leaf that its page may not say.
    pub(crate) fn knows(&self, number: u64) -> bool {
        self.is_cached(number) || self.delta.contains_key(&number)
    }

    /// The places of a cached leaf.
    pub(crate) fn places(&mut self, number: u64) -> &Page {
        let leaf = self.leaves.get_mut(&number).expect("it is cached");
        leaf.touched = true;
        &leaf.places
    }

    /// Changes a place in a cached leaf and returns what it was.
    pub(crate) fn set(&mut self, number: u64, at: usize, packed: u64) -> u64 {
        let leaf = self.leaves.get_mut(&number).expect("it is cached");
        leaf.touched = true;
        let was = std::mem::replace(&mut leaf.places[at], packed);
        if self.spills && leaf.changes.len() > 2 * FANOUT as usize {
            leaf.changes = (0..).zip(leaf.places.iter().copied()).collect();
        } else if self.spills {
            leaf.changes.push((at as u16, packed));
        }
        was
    }

    /// Every place of a cached leaf has become 0: what changed of it before does not matter any more.
    pub(crate) fn cleared(&mut self, number: u64) {
        let leaf = self.leaves.get_mut(&number).expect("it is cached");
        debug_assert!(leaf.places.iter().all(|packed| *packed == 0));
        if self.spills {
            leaf.changes = vec![(WHOLE_LEAF, 0)];
        }
    }

    /// A cached leaf is being written as it is.
    pub(crate) fn written(&mut self, number: u64) {
        self.leaves.get_mut(&number).expect("it is cached").changes = Changes::new();
    }

    /// Remembers a change of a leaf that is not cached.
    pub(crate) fn remember(&mut self, number: u64, at: u16, packed: u64) {
        debug_assert!(!self.is_cached(number), "nothing is cached while changes are repeated");
        if at == WHOLE_LEAF {
            self.delta.insert(number, vec![(at, packed)]);
        } else {
            self.delta.entry(number).or_default().push((at, packed));
        }
    }

    /// Puts a leaf into the cache, as its page says it and changed as is known. `is_dirty` says which leaves are to be
    /// written.
    pub(crate) fn put(&mut self, number: u64, mut places: Page, is_dirty: impl Fn(u64) -> bool) {
        let known = self.delta.remove(&number).unwrap_or_default();
        for (at, packed) in &known {
            if *at == WHOLE_LEAF {
                places.fill(*packed);
            } else {
                places[usize::from(*at)] = *packed;
            }
        }
        self.evict(is_dirty);
        let changes = if self.spills { known } else { Changes::new() };
        self.leaves.insert(number, Leaf { places, touched: false, changes });
        self.order.push_back(number);
        self.most = self.most.max(self.leaves.len());
    }

    /// Makes room for a leaf: the oldest that nobody touched since it was last looked at goes.
    fn evict(&mut self, is_dirty: impl Fn(u64) -> bool) {
        let mut looks = 2 * self.order.len();
        while self.leaves.len() >= self.cached && looks > 0 {
            looks -= 1;
            let Some(number) = self.order.pop_front() else { return };
            let dirty = is_dirty(number);
            let touched = self.leaves.get_mut(&number).is_some_and(|leaf| std::mem::take(&mut leaf.touched));
            if touched || (dirty && !self.spills) {
                self.order.push_back(number);
                continue;
            }
            let gone = self.leaves.remove(&number);
            if let Some(leaf) = gone.filter(|leaf| dirty && !leaf.changes.is_empty()) {
                self.delta.insert(number, leaf.changes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_leaf_that_goes_leaves_its_changes() {
        for spills in [true, false] {
            let mut leaves = Leaves::new(16);
            if spills {
                leaves.spill();
            }
            let fresh = || Box::new([1; FANOUT as usize]);
            for number in 0..100 {
                leaves.put(number, fresh(), |_| true);
                assert_eq!(leaves.set(number, 3, number + 10), 1);
            }
            assert_eq!(leaves.len(), if spills { 16 } else { 100 });
            assert_eq!(leaves.most(), leaves.len());
            assert!(leaves.knows(0));
            for number in (0..100).rev() {
                if !leaves.is_cached(number) {
                    leaves.put(number, fresh(), |_| true);
                }
                assert_eq!((leaves.places(number)[3], leaves.places(number)[4]), (number + 10, 1));
            }
        }
    }

    #[test]
    fn what_was_written_or_cleared_is_not_remembered_twice() {
        let mut leaves = Leaves::new(16);
        leaves.spill();
        leaves.put(7, Box::new([1; FANOUT as usize]), |_| true);
        for at in 0..FANOUT as usize {
            leaves.set(7, at, 0);
        }
        leaves.cleared(7);
        leaves.set(7, 5, 9);
        assert_eq!(leaves.leaves[&7].changes, [(WHOLE_LEAF, 0), (5, 9)]);
        leaves.written(7);
        assert!(leaves.leaves[&7].changes.is_empty());
    }
}
