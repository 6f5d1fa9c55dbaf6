//! The caches of tree nodes that section 7.1 of EINT compares. Both replace the least recently used
//! node. The list finds that node in constant time and searches linearly for any other; the table
//! finds any node in constant time and searches all nodes for the least recently used one.

use crate::node_hash::NodeHash;
use std::collections::HashMap;

/// A bounded cache of nodes by their numbers.
pub trait NodeCache: Send {
    /// The hash of a node, which becomes the most recently used.
    fn get(&mut self, node: u64) -> Option<NodeHash>;
    /// Inserts a node as the most recently used, in place of the least recently used if the cache
    /// is full.
    fn put(&mut self, node: u64, hash: NodeHash);
    /// Removes a node.
    fn remove(&mut self, node: u64);
    /// Removes all nodes.
    fn clear(&mut self);
    /// Calls of `get` that found a node, and calls that did not.
    fn hits_and_misses(&self) -> (u64, u64);
}

/// No neighbour in the list.
const NONE: usize = usize::MAX;

/// The first algorithm: a doubly linked list with the most recently used node in front. Searching
/// is linear in the number of nodes; replacing takes the node at the end.
pub struct ListCache {
    entries: Vec<ListEntry>,
    free: Vec<usize>,
    front: usize,
    back: usize,
    capacity: usize,
    hits: u64,
    misses: u64,
}

struct ListEntry {
    node: u64,
    hash: NodeHash,
    before: usize,
    behind: usize,
}

impl ListCache {
    /// A cache of at most `bytes / 32` hashes.
    pub fn new(bytes: usize) -> ListCache {
        let capacity = bytes / size_of::<NodeHash>();
        let entries = Vec::with_capacity(capacity);
        ListCache { entries, free: Vec::new(), front: NONE, back: NONE, capacity, hits: 0, misses: 0 }
    }

    fn find(&self, node: u64) -> Option<usize> {
        let mut at = self.front;
        while at != NONE {
            let entry = &self.entries[at];
            if entry.node == node {
                return Some(at);
            }
            at = entry.behind;
        }
        None
    }

    fn unlink(&mut self, at: usize) {
        let ListEntry { before, behind, .. } = self.entries[at];
        match before {
            NONE => self.front = behind,
            _ => self.entries[before].behind = behind,
        }
        match behind {
            NONE => self.back = before,
            _ => self.entries[behind].before = before,
        }
    }

    fn link_in_front(&mut self, at: usize) {
        let behind = self.front;
        (self.entries[at].before, self.entries[at].behind) = (NONE, behind);
        match behind {
            NONE => self.back = at,
            _ => self.entries[behind].before = at,
        }
        self.front = at;
    }

    /// An entry for a new node: a free one, a new one, or that of the least recently used node.
    fn take_entry(&mut self) -> usize {
        if let Some(at) = self.free.pop() {
            return at;
        }
        if self.entries.len() < self.capacity {
            self.entries.push(ListEntry { node: 0, hash: [0; 32], before: NONE, behind: NONE });
            return self.entries.len() - 1;
        }
        let at = self.back;
        self.unlink(at);
        at
    }
}

impl NodeCache for ListCache {
    fn get(&mut self, node: u64) -> Option<NodeHash> {
        let Some(at) = self.find(node) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        self.unlink(at);
        self.link_in_front(at);
        Some(self.entries[at].hash)
    }

    fn put(&mut self, node: u64, hash: NodeHash) {
        if self.capacity == 0 {
            return;
        }
        let at = match self.find(node) {
            Some(at) => {
                self.unlink(at);
                at
            }
            None => self.take_entry(),
        };
        (self.entries[at].node, self.entries[at].hash) = (node, hash);
        self.link_in_front(at);
    }

    fn remove(&mut self, node: u64) {
        if let Some(at) = self.find(node) {
            self.unlink(at);
            self.free.push(at);
        }
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.free.clear();
        (self.front, self.back) = (NONE, NONE);
    }

    fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

/// The second algorithm: a hash table that stores with each node the value of a global counter at
/// its last use. Searching is one look-up; replacing searches all nodes for the least value.
pub struct TableCache {
    nodes: HashMap<u64, (NodeHash, u64)>,
    counter: u64,
    capacity: usize,
    hits: u64,
    misses: u64,
}

impl TableCache {
    /// A cache of at most `bytes / 32` hashes.
    pub fn new(bytes: usize) -> TableCache {
        let capacity = bytes / size_of::<NodeHash>();
        TableCache { nodes: HashMap::with_capacity(capacity), counter: 0, capacity, hits: 0, misses: 0 }
    }
}

impl NodeCache for TableCache {
    fn get(&mut self, node: u64) -> Option<NodeHash> {
        self.counter += 1;
        let Some((hash, used)) = self.nodes.get_mut(&node) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        *used = self.counter;
        Some(*hash)
    }

    fn put(&mut self, node: u64, hash: NodeHash) {
        if self.capacity == 0 {
            return;
        }
        self.counter += 1;
        if self.nodes.len() >= self.capacity && !self.nodes.contains_key(&node) {
            let oldest = self.nodes.iter().min_by_key(|(_, (_, used))| *used).map(|(node, _)| *node);
            oldest.and_then(|node| self.nodes.remove(&node));
        }
        self.nodes.insert(node, (hash, self.counter));
    }

    fn remove(&mut self, node: u64) {
        self.nodes.remove(&node);
    }

    fn clear(&mut self) {
        self.nodes.clear();
    }

    fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

#[cfg(test)]
mod tests {
    use super::{ListCache, NodeCache, TableCache};
    use lacuna_sim::Rng;

    /// Both algorithms keep the same nodes: the most recently used ones.
    #[test]
    fn both_replace_the_least_recently_used() {
        let mut rng = Rng::new(1);
        let (mut list, mut table) = (ListCache::new(8 * 32), TableCache::new(8 * 32));
        let mut used: Vec<u64> = Vec::new();
        for _ in 0..20_000 {
            let node = rng.below(20);
            let known = used.iter().position(|n| *n == node).map(|at| used.remove(at)).is_some();
            if rng.chance(1, 20) {
                list.remove(node);
                table.remove(node);
                continue;
            }
            let hash = [node as u8; 32];
            assert_eq!(list.get(node), known.then_some(hash));
            assert_eq!(table.get(node), known.then_some(hash));
            list.put(node, hash);
            table.put(node, hash);
            used.insert(0, node);
            used.truncate(8);
        }
        assert_eq!(list.hits_and_misses(), table.hits_and_misses());
        let mut none = ListCache::new(31);
        none.put(1, [1; 32]);
        assert_eq!(none.get(1), None);
    }
}
