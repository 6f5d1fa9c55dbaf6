//! Segments of a disk: each is one object of the store, under the same number.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, SEGMENT_BLOCKS};
use std::fmt;
use std::ops::Range;

/// The number of a segment, and of the data object that holds its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Segment(pub(crate) u64);

impl Segment {
    /// The address of a block by its index in the segment.
    pub(crate) fn block(self, index: u64) -> BlockAddr {
        BlockAddr(self.0 * SEGMENT_BLOCKS + index)
    }

    /// How many of its blocks lie on a disk of so many blocks.
    pub(crate) fn blocks_on(self, disk: u64) -> u64 {
        disk.saturating_sub(self.block(0).0).min(SEGMENT_BLOCKS)
    }
}

/// As the store calls its object.
impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object {:016x}", self.0)
    }
}

/// The segments that a range of blocks falls into, each with the part of it by index in the
/// segment.
pub(crate) fn segments(first: BlockAddr, count: u64) -> impl Iterator<Item = (Segment, Range<u64>)> {
    let end = first.0 + count;
    (first.0 / SEGMENT_BLOCKS..end.div_ceil(SEGMENT_BLOCKS)).map(move |number| {
        let start = number * SEGMENT_BLOCKS;
        (Segment(number), first.0.max(start) - start..end.min(start + SEGMENT_BLOCKS) - start)
    })
}

/// The blocks of a buffer.
pub(crate) fn blocks_in(buf: &[u8]) -> u64 {
    (buf.len() / BLOCK_SIZE) as u64
}
