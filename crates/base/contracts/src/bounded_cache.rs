//! A cache with a bounded number of values. It evicts the value that was unused for about the
//! longest time.
//!
//! Clock algorithm: a hand goes round over the values and evicts the first value that was not used
//! since the last pass. The cache has no lock and does no I/O. Its owner writes a dirty value
//! before it evicts it, or refuses to let it go.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicBool, Ordering};

struct CacheEntry<K, V> {
    key: K,
    value: V,
    /// Atomic, so that readers which share the cache can mark a value.
    used: AtomicBool,
}

/// A map with at most `capacity` values.
pub struct BoundedCache<K, V, S = RandomState> {
    index: HashMap<K, usize, S>,
    /// The values in the order of the hand; `None` where a value was removed.
    entries: Vec<Option<CacheEntry<K, V>>>,
    /// Indexes of the empty places.
    free: Vec<usize>,
    hand: usize,
    capacity: usize,
}

impl<K: Copy + Eq + Hash, V, S: BuildHasher + Default> BoundedCache<K, V, S> {
    /// A cache of at most `most` values, and at least one.
    pub fn new(most: usize) -> Self {
        BoundedCache {
            index: HashMap::default(),
            entries: vec![],
            free: vec![],
            hand: 0,
            capacity: most.max(1),
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether the cache has no values.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Maximum number of values.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether inserting another value needs an eviction.
    pub fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Whether there is a value for the key. Does not count as a use.
    pub fn contains(&self, key: K) -> bool {
        self.index.contains_key(&key)
    }

    /// The value of a key. Does not count as a use.
    pub fn peek(&self, key: K) -> Option<&V> {
        let place = self.entries[*self.index.get(&key)?].as_ref();
        place.map(|place| &place.value)
    }

    /// The value of a key. Counts as a use.
    pub fn get(&mut self, key: K) -> Option<&mut V> {
        let place = self.entries[*self.index.get(&key)?].as_mut()?;
        *place.used.get_mut() = true;
        Some(&mut place.value)
    }

    /// The same, for readers that share the cache.
    pub fn get_shared(&self, key: K) -> Option<&V> {
        let place = self.entries[*self.index.get(&key)?].as_ref()?;
        // A store only where it changes anything: other processors read this memory too.
        if !place.used.load(Ordering::Relaxed) {
            place.used.store(true, Ordering::Relaxed);
        }
        Some(&place.value)
    }

    /// Stores a value, marked unused, and returns the previous value of its key. The cache exceeds
    /// its bound if the caller did not make room with [`BoundedCache::evict`].
    pub fn put(&mut self, key: K, value: V) -> Option<V> {
        let place = CacheEntry { key, value, used: AtomicBool::new(false) };
        if let Some(&at) = self.index.get(&key) {
            return self.entries[at].replace(place).map(|old| old.value);
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[at] = Some(place);
        self.index.insert(key, at);
        None
    }

    /// Stores a value; a full cache evicts another one first.
    pub fn insert(&mut self, key: K, value: V) {
        if self.is_full() && !self.contains(key) {
            self.evict(|_, _| true);
        }
        self.put(key, value);
    }

    /// Removes and returns the value that was unused for about the longest time, if `may_evict`
    /// admits it. `None` if it admits no value.
    pub fn evict(&mut self, mut may_evict: impl FnMut(K, &V) -> bool) -> Option<(K, V)> {
        for _ in 0..2 * self.entries.len() {
            let at = self.hand;
            self.hand = (at + 1) % self.entries.len();
            let Some(place) = &mut self.entries[at] else { continue };
            if !std::mem::take(place.used.get_mut()) && may_evict(place.key, &place.value) {
                let key = place.key;
                return self.remove(key).map(|value| (key, value));
            }
        }
        None
    }

    /// Removes and returns a value.
    pub fn remove(&mut self, key: K) -> Option<V> {
        let at = self.index.remove(&key)?;
        self.free.push(at);
        self.entries[at].take().map(|place| place.value)
    }

    /// Drops all values.
    pub fn clear(&mut self) {
        (self.index, self.entries, self.free) = (HashMap::default(), vec![], vec![]);
        self.hand = 0;
    }

    /// All values with their keys, in no particular order. Does not count as a use.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.entries.iter().flatten().map(|place| (place.key, &place.value))
    }

    /// Like [`BoundedCache::iter`], with mutable values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.entries.iter_mut().flatten().map(|place| (place.key, &mut place.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_keeps_its_bound_and_never_mixes_values_up() {
        let mut cache: BoundedCache<u64, u64> = BoundedCache::new(50);
        let mut x = 7u64;
        for i in 0..50_000u64 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (x >> 40) % 300;
            match i % 7 {
                0 => drop(cache.remove(key)),
                1..4 => {
                    if cache.is_full() && !cache.contains(key) {
                        let (key, value) = cache.evict(|key, _| key > 20).unwrap();
                        assert!(value == key + 1 && key > 20);
                    }
                    cache.put(key, key + 1);
                }
                _ => assert!(cache.get(key).is_none_or(|value| *value == key + 1)),
            }
            assert!(cache.len() <= 50);
        }
        assert!(cache.iter().all(|(key, value)| *value == key + 1));
        assert!(cache.len() > 40);
        cache.clear();
        assert!(cache.is_empty() && !cache.contains(3));
    }

    #[test]
    fn used_values_stay_longer() {
        let mut cache: BoundedCache<u64, ()> = BoundedCache::new(4);
        for key in 0..4 {
            cache.put(key, ());
        }
        cache.get(0);
        assert_eq!((cache.get_shared(1), cache.get_shared(9)), (Some(&()), None));
        assert_eq!(cache.evict(|_, ()| true), Some((2, ())));
        cache.put(4, ());
        assert_eq!(cache.evict(|_, ()| true), Some((3, ())));
        assert_eq!(cache.evict(|_, ()| true), Some((0, ())));
        assert_eq!(cache.evict(|key, ()| key != 1), Some((4, ())));
        assert_eq!(cache.evict(|key, ()| key != 1), None);
        assert_eq!(cache.peek(1), Some(&()));
    }
}
