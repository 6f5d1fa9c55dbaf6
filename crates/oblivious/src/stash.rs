//! The stash of one volume: blocks that wait for a cell, oldest first.

use std::collections::{HashMap, VecDeque};

/// A block of a volume: where it belongs, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block<T> {
    /// Its number in the volume.
    pub number: u64,
    /// Its content.
    pub data: T,
}

/// What of one volume waits. A block is in it once, in its latest version.
#[derive(Debug)]
pub struct Stash<T> {
    blocks: HashMap<u64, T>,
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

    /// The block that waits, if this one does.
    pub fn get(&self, number: u64) -> Option<&T> {
        self.blocks.get(&number)
    }

    /// Puts a block at the end, or in the place of its older version.
    pub fn put(&mut self, block: Block<T>) {
        if self.blocks.insert(block.number, block.data).is_none() {
            self.order.push_back(block.number);
        }
    }

    /// Takes the oldest out.
    pub fn pop(&mut self) -> Option<Block<T>> {
        let number = self.order.pop_front()?;
        let data = self.blocks.remove(&number)?;
        Some(Block { number, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_waits_once_in_its_latest_version() {
        let mut stash = Stash::default();
        for (number, data) in [(7, 'a'), (3, 'b'), (7, 'c')] {
            stash.put(Block { number, data });
        }
        assert_eq!((stash.len(), stash.get(7)), (2, Some(&'c')));
        assert_eq!(stash.pop(), Some(Block { number: 7, data: 'c' }));
        assert_eq!(stash.pop(), Some(Block { number: 3, data: 'b' }));
        assert!(stash.pop().is_none() && stash.is_empty());
    }
}
