//! The blocks of writes that a level refused while it gave up. They are lost unless the writes are
//! repeated.

use rustc_hash::FxHashSet;

/// The most blocks that are remembered one by one.
const MAX_BLOCKS: usize = 1 << 16;

/// Blocks of refused writes that were neither written nor discarded since.
#[derive(Default)]
pub(crate) struct RefusedBlocks {
    blocks: FxHashSet<u64>,
    /// Whether there were too many to remember: the loss of the others is never taken back.
    is_overfull: bool,
}

impl RefusedBlocks {
    /// Adds the blocks of a refused write.
    pub(crate) fn add(&mut self, first: u64, count: u64) {
        for addr in first..first + count {
            if self.blocks.len() == MAX_BLOCKS && !self.blocks.contains(&addr) {
                self.is_overfull = true;
                return;
            }
            self.blocks.insert(addr);
        }
    }

    /// Removes blocks that were written or discarded, in one request or in parts.
    pub(crate) fn remove(&mut self, first: u64, count: u64) {
        let range = first..first + count;
        if count < self.blocks.len() as u64 {
            for addr in range {
                self.blocks.remove(&addr);
            }
        } else {
            self.blocks.retain(|addr| !range.contains(addr));
        }
    }

    /// Whether no write is missing.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && !self.is_overfull
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_write_may_be_repeated_in_parts_and_with_more_around_it() {
        for parts in
            [&[(10, 4)][..], &[(12, 2), (10, 2)], &[(0, 11), (11, 1000)], &[(11, 1), (12, 9), (3, 8)]]
        {
            let mut refused = RefusedBlocks::default();
            assert!(refused.is_empty());
            refused.add(10, 4);
            refused.add(12, 1);
            for (first, count) in parts {
                assert!(!refused.is_empty(), "{parts:?}");
                refused.remove(*first, *count);
            }
            assert!(refused.is_empty(), "{parts:?}");
        }
    }

    #[test]
    fn more_blocks_than_are_remembered_stay_lost() {
        let all = MAX_BLOCKS as u64;
        for (count, is_repeated) in [(all, true), (all + 1, false)] {
            let mut refused = RefusedBlocks::default();
            refused.add(0, count);
            // A write that is refused again takes no more memory.
            refused.add(7, 2);
            refused.remove(0, count);
            assert_eq!(refused.is_empty(), is_repeated, "{count}");
        }
    }
}
