//! The numbers of segments, slots and chunks.
//!
//! Invariant: a number read from a medium becomes a [`SegmentNo`] or a [`SlotNo`] only after a
//! check against their number on this disk.

use lacuna_contracts::{BlockAddr, SEGMENT_BLOCKS};
use std::ops::Range;

/// Blocks under one chunk lock, and the most in one access of a request to the medium.
pub(crate) const CHUNK_BLOCKS: u64 = 64;

/// The number of a segment of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentNo(u32);

impl SegmentNo {
    /// The segment of a block.
    pub(crate) fn of(block: BlockAddr) -> SegmentNo {
        SegmentNo((block.0 / SEGMENT_BLOCKS) as u32)
    }

    /// The segment with this number on a disk of `segments` segments.
    pub(crate) fn checked(number: u64, segments: u32) -> Option<SegmentNo> {
        u32::try_from(number).ok().filter(|number| *number < segments).map(SegmentNo)
    }

    /// The plain number.
    pub(crate) fn get(self) -> u32 {
        self.0
    }

    /// The block with this index in the segment.
    pub(crate) fn block(self, index: u64) -> BlockAddr {
        BlockAddr(u64::from(self.0) * SEGMENT_BLOCKS + index)
    }

    /// The range of blocks of a whole segment.
    pub(crate) fn blocks(self) -> Range<BlockAddr> {
        self.block(0)..self.block(SEGMENT_BLOCKS)
    }
}

/// The number of a slot of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotNo(u32);

impl SlotNo {
    /// The slot with this number on a medium of `slots` slots.
    pub(crate) fn checked(number: u64, slots: u32) -> Option<SlotNo> {
        u32::try_from(number).ok().filter(|number| *number < slots).map(SlotNo)
    }

    /// All slots of a medium of `slots` slots.
    pub(crate) fn all(slots: u32) -> impl DoubleEndedIterator<Item = SlotNo> {
        (0..slots).map(SlotNo)
    }

    /// The plain number.
    pub(crate) fn get(self) -> u32 {
        self.0
    }

    /// The address of the first block of the slot.
    pub(crate) fn start(self) -> SlotAddr {
        SlotAddr { slot: self, index: 0 }
    }

    /// The address of a block if this is the slot of its segment.
    pub(crate) fn at(self, block: BlockAddr) -> SlotAddr {
        SlotAddr { slot: self, index: index_of(block) }
    }
}

/// The address of a block on the medium: a slot, and the block's index in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotAddr {
    pub(crate) slot: SlotNo,
    pub(crate) index: u64,
}

/// The index of a block in its segment.
pub(crate) fn index_of(block: BlockAddr) -> u64 {
    block.0 % SEGMENT_BLOCKS
}

/// `count` blocks, starting at `first`.
pub(crate) fn run(first: BlockAddr, count: u64) -> impl Iterator<Item = BlockAddr> {
    (first.0..first.0 + count).map(BlockAddr)
}

/// A run cut at multiples of `unit` blocks: the first block of each piece and its length.
pub(crate) fn pieces(first: BlockAddr, count: u64, unit: u64) -> impl Iterator<Item = (BlockAddr, u64)> {
    let end = first.0 + count;
    let next = move |at: u64| (at / unit + 1) * unit;
    std::iter::successors(Some(first.0), move |at| Some(next(*at)))
        .take_while(move |at| *at < end)
        .map(move |at| (BlockAddr(at), next(at).min(end) - at))
}
