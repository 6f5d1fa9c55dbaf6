//! RTree and RArr of the reference schemes (EINT, sections 5.2 and 5.3, Figure 9): hashes of only
//! those blocks that cannot be authenticated otherwise, in the order of their insertion.
//!
//! RArr and its inverse for SearchOffset lie in US and are not authenticated: a wrong entry
//! contradicts the tree, or the hash of a block, which binds its index. Two lines of Figure 9 are
//! read as the text around it describes them: j is compared with the last position, and the last
//! leaf is deleted after it was copied too.

use crate::binary_tree::BinaryTree;
use crate::node_cache::NodeCache;
use crate::node_hash::NodeHash;
use lacuna_contracts::Result;
use lacuna_integrity::{Part, Untrusted};

pub(crate) struct RTree(BinaryTree);

impl RTree {
    pub(crate) fn new(cache: Option<Box<dyn NodeCache>>) -> Self {
        RTree(BinaryTree::new(Part::Tree(Part::RTREE), cache))
    }

    pub(crate) fn items(&self) -> u64 {
        self.0.leaves()
    }

    /// SearchOffset: the position of a block in RArr, if it is there.
    pub(crate) fn search_offset(us: &dyn Untrusted, block: u64) -> Result<Option<u64>> {
        Ok(read_number(us, Part::Position, block)?.and_then(|position| position.checked_sub(1)))
    }

    /// Sets the block's hash to `value`: updates its leaf, or appends one.
    pub(crate) fn set(&mut self, us: &dyn Untrusted, block: u64, value: &NodeHash) -> Result<()> {
        match Self::search_offset(us, block)? {
            Some(position) => self.0.update(us, position, value),
            None => self.append(us, block, value),
        }
    }

    /// AppendTree; also appends the block to RArr.
    pub(crate) fn append(&mut self, us: &dyn Untrusted, block: u64, value: &NodeHash) -> Result<()> {
        let position = self.items();
        self.0.append(us, value)?;
        place(us, position, block)
    }

    /// Whether the hash at this position is `value`.
    pub(crate) fn check(&self, us: &dyn Untrusted, position: u64, value: &NodeHash) -> Result<bool> {
        self.0.check(us, position, value)
    }

    /// DelOffsetTree: removes the block's leaf if the block is in RArr; the last leaf takes its
    /// place.
    pub(crate) fn remove(&mut self, us: &dyn Untrusted, block: u64) -> Result<()> {
        let Some(position) = Self::search_offset(us, block)? else { return Ok(()) };
        let last = self.items().saturating_sub(1);
        if position != last {
            let moved = self.0.leaf(us, last)?;
            self.0.update(us, position, &moved)?;
            if let Some(moved) = read_number(us, Part::Order, last)? {
                place(us, position, moved)?;
            }
        }
        self.0.delete(us)?;
        us.write_part(Part::Order, last, None)?;
        us.write_part(Part::Position, block, None)
    }
}

/// RArr\[position\] = block.
fn place(us: &dyn Untrusted, position: u64, block: u64) -> Result<()> {
    us.write_part(Part::Order, position, Some(&block.to_le_bytes()))?;
    us.write_part(Part::Position, block, Some(&(position + 1).to_le_bytes()))
}

/// Reads a number from US; `None` unless the page has eight bytes.
fn read_number(us: &dyn Untrusted, part: Part, page: u64) -> Result<Option<u64>> {
    let bytes = us.read_part(part, page)?;
    Ok(bytes.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok()).map(u64::from_le_bytes))
}
