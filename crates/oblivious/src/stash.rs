//! The stash of one level: blocks that wait for a cell, oldest first.

use std::collections::{HashMap, VecDeque};

/// What of one level waits. A block is in it once, in its latest version.
#[derive(Debug)]
pub struct Stash<T> {
    blocks: HashMap<u64, T>,
    /// In the order of arrival; of those that were removed some are left.
    order: VecDeque<u64>,
}

impl<T> Default for Stash<T> {
    fn default() -> Self {
        Stash { blocks: HashMap::new(), order: VecDeque::new() }
    }
}

impl<T> Stash<T> {
    /// Blocks that wait.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block that waits under this number.
    pub fn get(&self, number: u64) -> Option<&T> {
        self.blocks.get(&number)
    }

    /// Puts a block at the end, or in the place of its older version.
    pub fn put(&mut self, number: u64, block: T) {
        if self.blocks.insert(number, block).is_none() {
            self.order.retain(|waiting| *waiting != number);
            self.order.push_back(number);
        }
    }

    /// Takes the oldest out.
    pub fn pop(&mut self) -> Option<(u64, T)> {
        while let Some(number) = self.order.pop_front() {
            if let Some(block) = self.blocks.remove(&number) {
                return Some((number, block));
            }
        }
        None
    }

    /// Forgets the blocks of these numbers.
    pub fn forget(&mut self, which: impl Fn(u64) -> bool) {
        self.blocks.retain(|number, _| !which(*number));
    }

    /// What waits, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.order.iter().filter_map(|number| Some((*number, self.blocks.get(number)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_waits_once_in_its_latest_version() {
        let mut stash = Stash::default();
        for (number, data) in [(7, 'a'), (3, 'b'), (7, 'c'), (9, 'd')] {
            stash.put(number, data);
        }
        stash.forget(|number| number == 3);
        stash.put(3, 'e');
        assert_eq!((stash.len(), stash.get(7)), (3, Some(&'c')));
        assert_eq!(stash.iter().collect::<Vec<_>>(), [(7, &'c'), (9, &'d'), (3, &'e')]);
        assert_eq!((stash.pop(), stash.pop(), stash.pop()), (Some((7, 'c')), Some((9, 'd')), Some((3, 'e'))));
        assert!(stash.pop().is_none() && stash.is_empty());
    }
}
