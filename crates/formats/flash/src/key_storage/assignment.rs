//! Key assignment: chooses keys so that keys that are deleted soon share few blocks, and a purge
//! replaces few.
//!
//! Blocks of the disk that are written in long runs (a photo, a program) live long and are deleted
//! together; other blocks are overwritten soon (metadata, databases, small files). Each lifetime
//! has its own *current* block of keys for as long as that has room. Each purge makes room again in
//! the current block of short-lived keys, so it stays current for long, and keys of long-lived
//! blocks do not fill it. Assigning from the emptiest block after each purge would instead fill all
//! blocks equally, with deleted keys in all of them.
//!
//! Invariant: keys are assigned only from *fresh* blocks, which were renewed in this epoch.

use crate::ids::{KeyBlock, KeyPosition};
use crate::key_storage::key_state_map::{KeyState, KeyStateMap};
use std::collections::BTreeSet;

/// Neighbouring blocks of the disk that are written at once and count as a long run: 128 KiB.
const LONG_RUN: usize = 32;
/// A current block is given up if a renewal would leave fewer than one in this many keys free.
const MIN_FREE_SHARE: u32 = 64;

/// How a block of the disk is written, and so how long it is expected to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Alone or with few neighbours.
    Short,
    /// In a long run.
    Long,
}

impl Lifetime {
    /// The lifetimes of blocks that are written at once, in ascending order.
    pub(crate) fn of<T>(blocks: &[(u32, T)]) -> Vec<Lifetime> {
        let runs = blocks.chunk_by(|(a, _), (b, _)| a + 1 == *b);
        let lifetime =
            |run: &[(u32, T)]| if run.len() >= LONG_RUN { Lifetime::Long } else { Lifetime::Short };
        runs.flat_map(|run| std::iter::repeat_n(lifetime(run), run.len())).collect()
    }
}

/// The current block of a lifetime.
#[derive(Clone, Copy, Default)]
struct CurrentBlock {
    block: Option<KeyBlock>,
    /// Where to search it for the next key.
    cursor: u32,
}

/// See the module documentation.
pub(crate) struct KeyAssignment {
    /// Keys of a block.
    leb_keys: u32,
    fresh: BTreeSet<KeyBlock>,
    current: [CurrentBlock; 2],
}

impl KeyAssignment {
    /// An assignment without fresh blocks, for blocks of `leb_keys` keys.
    pub(crate) fn new(leb_keys: u32) -> KeyAssignment {
        KeyAssignment { leb_keys, fresh: BTreeSet::new(), current: [CurrentBlock::default(); 2] }
    }

    /// Fresh blocks.
    pub(crate) fn fresh(&self) -> &BTreeSet<KeyBlock> {
        &self.fresh
    }

    /// Adds blocks that were renewed to the fresh ones.
    pub(crate) fn add_fresh(&mut self, blocks: &[KeyBlock]) {
        self.fresh.extend(blocks);
        self.current.iter_mut().for_each(|current| current.cursor = 0);
    }

    /// Ends an epoch: no block is fresh any more.
    pub(crate) fn end_epoch(&mut self) {
        self.fresh.clear();
    }

    /// Assigns keys for blocks of a lifetime and marks them used, until `keys` holds `most`. If it
    /// holds fewer then, [`KeyAssignment::block_for`] must be renewed first.
    pub(crate) fn assign(
        &mut self,
        map: &mut KeyStateMap,
        lifetime: Lifetime,
        most: usize,
        keys: &mut Vec<KeyPosition>,
    ) {
        while keys.len() < most
            && let Some(block) = self.block_for(map, lifetime)
            && self.fresh.contains(&block)
        {
            let current = &mut self.current[lifetime as usize];
            if current.block != Some(block) {
                *current = CurrentBlock { block: Some(block), cursor: 0 };
            }
            while keys.len() < most
                && let Some(at) = map.next_unused(block, current.cursor)
            {
                let key = KeyPosition(block.0 * self.leb_keys + at);
                map.set(key, KeyState::Used);
                current.cursor = at + 1;
                keys.push(key);
            }
            if keys.len() < most {
                // The block has no unused keys until it is renewed.
                self.fresh.remove(&block);
            }
        }
    }

    /// Returns keys that were just assigned and encrypted nothing: they are assigned next.
    pub(crate) fn return_keys(&mut self, map: &mut KeyStateMap, keys: impl Iterator<Item = KeyPosition>) {
        for key in keys {
            map.set(key, KeyState::Unused);
            let (block, at) = (KeyBlock(key.0 / self.leb_keys), key.0 % self.leb_keys);
            for current in self.current.iter_mut().filter(|current| current.block == Some(block)) {
                current.cursor = current.cursor.min(at);
            }
        }
    }

    /// The block to assign keys from for blocks of a lifetime; `None` if all keys are used.
    pub(crate) fn block_for(&self, map: &KeyStateMap, lifetime: Lifetime) -> Option<KeyBlock> {
        // Deleted keys can be assigned only after a renewal. They count as room only if the block
        // must be renewed in any case: if it is not fresh, or has no unused keys left.
        let room = |block: KeyBlock| {
            let unused = map.unused(block);
            if unused > 0 && self.fresh.contains(&block) {
                unused
            } else {
                unused + map.counts(block).deleted
            }
        };
        let enough = |block: &KeyBlock| {
            let least = if self.fresh.contains(block) { 1 } else { (self.leb_keys / MIN_FREE_SHARE).max(1) };
            room(*block) >= least
        };
        let [this, other] = [lifetime as usize, 1 - lifetime as usize].map(|at| self.current[at].block);
        let emptiest = || {
            let rest = map.blocks().map(|(block, _)| block).filter(|block| Some(*block) != other);
            rest.max_by_key(|block| (room(*block), std::cmp::Reverse(*block)))
                .filter(|block| room(*block) > 0)
        };
        this.filter(enough).or_else(emptiest).or_else(|| other.filter(|block| room(*block) > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_storage::key_state_map::KeyCounts;

    const KEYS: u32 = 640;
    const BOTH: [Lifetime; 2] = [Lifetime::Short, Lifetime::Long];

    /// Assigns keys, renewing blocks where needed, and returns the keys and the renewed blocks.
    fn take(
        a: &mut KeyAssignment,
        map: &mut KeyStateMap,
        lifetime: Lifetime,
        most: usize,
    ) -> (Vec<KeyPosition>, Vec<u32>) {
        let (mut keys, mut renewed) = (vec![], vec![]);
        loop {
            a.assign(map, lifetime, most, &mut keys);
            if keys.len() == most {
                return (keys, renewed);
            }
            let block = a.block_for(map, lifetime).unwrap();
            map.reset_deleted(block);
            a.add_fresh(&[block]);
            renewed.push(block.0);
        }
    }

    fn purge(a: &mut KeyAssignment, map: &mut KeyStateMap) -> usize {
        a.end_epoch();
        let blocks: Vec<KeyBlock> =
            map.blocks().filter(|(_, c)| c.deleted > 0).map(|(block, _)| block).collect();
        for block in &blocks {
            map.reset_deleted(*block);
        }
        a.add_fresh(&blocks);
        blocks.len()
    }

    #[test]
    fn long_runs_get_the_long_lifetime() {
        let blocks: Vec<(u32, ())> = (5..40).chain([50, 51]).chain(60..91).map(|block| (block, ())).collect();
        let lifetimes = Lifetime::of(&blocks);
        assert_eq!(lifetimes.len(), blocks.len());
        assert!(lifetimes[..35].iter().all(|lifetime| *lifetime == Lifetime::Long));
        assert!(lifetimes[35..].iter().all(|lifetime| *lifetime == Lifetime::Short));
    }

    #[test]
    fn short_lived_keys_share_one_block() {
        let (mut map, mut a) = (KeyStateMap::new(6, KEYS), KeyAssignment::new(KEYS));
        let (photos, renewed) = take(&mut a, &mut map, Lifetime::Long, 900);
        assert_eq!(renewed, [0, 1]);
        let mut small = take(&mut a, &mut map, Lifetime::Short, 100).0;
        for epoch in 0..50 {
            for key in small.drain(..) {
                map.set(key, KeyState::Deleted);
            }
            assert_eq!(purge(&mut a, &mut map), 1, "epoch {epoch}");
            let (keys, renewed) = take(&mut a, &mut map, Lifetime::Short, 100);
            assert!(renewed.is_empty() && keys.iter().all(|key| key.0 / KEYS == 2));
            small = keys;
        }
        assert!(photos.iter().all(|key| map.get(*key) == KeyState::Used));
    }

    #[test]
    fn returned_keys_are_assigned_next() {
        let (mut map, mut a) = (KeyStateMap::new(3, KEYS), KeyAssignment::new(KEYS));
        let (keys, renewed) = take(&mut a, &mut map, Lifetime::Short, 10);
        a.return_keys(&mut map, keys[7..].iter().copied());
        assert_eq!(map.all(), KeyCounts { used: 7, ..KeyCounts::default() });
        let (again, renewed_again) = take(&mut a, &mut map, Lifetime::Short, 4);
        assert_eq!((&again[..3], renewed.len(), renewed_again.len()), (&keys[7..], 1, 0));
        // The last keys of a block that is no longer fresh by then: they are free once it is
        // renewed.
        let rest = take(&mut a, &mut map, Lifetime::Short, KEYS as usize).0;
        let (last, _) = rest.split_at((KEYS - 11) as usize);
        assert_eq!(last.last().unwrap().0 / KEYS, again[0].0 / KEYS);
        a.return_keys(&mut map, last[last.len() - 5..].iter().copied());
        let (more, renewed) = take(&mut a, &mut map, Lifetime::Short, 2 * KEYS as usize - 11 + 5);
        assert!(more.len() + 11 + rest.len() - 5 == 3 * KEYS as usize && !renewed.is_empty());
    }

    #[test]
    fn every_key_is_assigned_exactly_once() {
        for lifetime in BOTH {
            let (mut map, mut a) = (KeyStateMap::new(3, KEYS), KeyAssignment::new(KEYS));
            let mut keys: Vec<u32> = vec![];
            // The other lifetime has a current block too, and gives it up in the end.
            keys.extend(take(&mut a, &mut map, BOTH[1 - lifetime as usize], 5).0.iter().map(|key| key.0));
            keys.extend(take(&mut a, &mut map, lifetime, 3 * KEYS as usize - 5).0.iter().map(|key| key.0));
            keys.sort_unstable();
            assert_eq!(keys, (0..3 * KEYS).collect::<Vec<_>>());
            assert_eq!(a.block_for(&map, lifetime), None);
            assert_eq!(a.block_for(&map, BOTH[1 - lifetime as usize]), None);
        }
    }
}
