//! Segments of a disk. Each is one object of the store, with the same number.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, SEGMENT_BLOCKS};
use std::fmt;
use std::ops::Range;

/// The number of a segment, and of the data object that holds its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Segment(pub(crate) u64);

impl Segment {
    /// The address of the block with this index in the segment.
    pub(crate) fn block(self, index: u64) -> BlockAddr {
        BlockAddr(self.0 * SEGMENT_BLOCKS + index)
    }

    /// The number of its blocks that a disk of `disk` blocks has.
    pub(crate) fn blocks_on(self, disk: u64) -> u64 {
        disk.saturating_sub(self.block(0).0).min(SEGMENT_BLOCKS)
    }
}

/// Formats the name of its object in the store.
impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object {:016x}", self.0)
    }
}

/// The segments that a range of blocks touches, each with the touched blocks by index in the
/// segment.
pub(crate) fn segments_of(first: BlockAddr, count: u64) -> impl Iterator<Item = (Segment, Range<u64>)> {
    let end = first.0 + count;
    (first.0 / SEGMENT_BLOCKS..end.div_ceil(SEGMENT_BLOCKS)).map(move |number| {
        let start = number * SEGMENT_BLOCKS;
        (Segment(number), first.0.max(start) - start..end.min(start + SEGMENT_BLOCKS) - start)
    })
}

/// The number of blocks in a buffer.
pub(crate) fn blocks_in(buf: &[u8]) -> u64 {
    (buf.len() / BLOCK_SIZE) as u64
}
