//! Copy-on-write segments: second slots being filled by streams, and discarded segments.
//!
//! Invariants: the blocks that a copy-on-write segment covers are later than all versions except
//! the cache's newest; a frozen one is written by the committer alone. A block is covered only
//! after its metadata is set.

use crate::address::{SegmentNo, SlotNo};
use lacuna_contracts::SEGMENT_BLOCKS;
use parking_lot::{Mutex, MutexGuard, RwLock};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The change of a segment at the next commit.
#[derive(Clone)]
pub(crate) enum CowSegment {
    /// It moves to a new slot, which a stream of writes is filling.
    Stream(Arc<Stream>),
    /// It was discarded as a whole: it reads as zeros, and its slot will be freed.
    PendingDiscard,
}

/// A slot that a stream of writes is filling.
pub(crate) struct Stream {
    pub(crate) slot: SlotNo,
    covered: [AtomicU64; (SEGMENT_BLOCKS / 64) as usize],
    /// Metadata of all blocks of the segment; zeros where not covered.
    meta: Mutex<Vec<u8>>,
    frozen: AtomicBool,
}

impl Stream {
    /// A stream that covers no block, with `meta_len` bytes of metadata for the whole segment.
    pub(crate) fn new(slot: SlotNo, meta_len: usize) -> Self {
        let covered = std::array::from_fn(|_| AtomicU64::new(0));
        Stream { slot, covered, meta: Mutex::new(vec![0; meta_len]), frozen: AtomicBool::new(false) }
    }

    /// Whether a commit has begun to end it.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    /// Ends writes by requests. The caller holds all chunk locks of the segment.
    pub(crate) fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    /// Whether it covers the block with this index.
    pub(crate) fn covers(&self, index: u64) -> bool {
        self.covered[(index / 64) as usize].load(Ordering::Acquire) >> (index % 64) & 1 == 1
    }

    /// The number of blocks that it covers.
    pub(crate) fn covered(&self) -> u64 {
        self.covered.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    /// Whether it covers the whole segment.
    pub(crate) fn is_whole(&self) -> bool {
        self.covered() == SEGMENT_BLOCKS
    }

    /// Marks `count` blocks as covered, starting at index `first`, and sets their metadata.
    pub(crate) fn cover(&self, first: u64, count: u64, meta: &[u8]) {
        let mut all = self.meta.lock();
        let at = meta_at(&all, first);
        all[at..at + meta.len()].copy_from_slice(meta);
        for index in first..first + count {
            self.covered[(index / 64) as usize].fetch_or(1 << (index % 64), Ordering::Release);
        }
    }

    /// Marks blocks as not covered.
    pub(crate) fn uncover(&self, first: u64, count: u64) {
        for index in first..first + count {
            self.covered[(index / 64) as usize].fetch_and(!(1 << (index % 64)), Ordering::Release);
        }
    }

    /// Copies the metadata of blocks, starting at index `first`.
    pub(crate) fn copy_meta(&self, first: u64, out: &mut [u8]) {
        let all = self.meta.lock();
        let at = meta_at(&all, first);
        out.copy_from_slice(&all[at..at + out.len()]);
    }

    /// The metadata of the whole segment.
    pub(crate) fn meta(&self) -> MutexGuard<'_, Vec<u8>> {
        self.meta.lock()
    }
}

fn meta_at(all: &[u8], index: u64) -> usize {
    index as usize * (all.len() / SEGMENT_BLOCKS as usize)
}

/// The copy-on-write segments of a disk.
#[derive(Default)]
pub(crate) struct CowSegments {
    open: RwLock<FxHashMap<SegmentNo, CowSegment>>,
    count: AtomicUsize,
}

impl CowSegments {
    pub(crate) fn get(&self, segment: SegmentNo) -> Option<CowSegment> {
        if self.len() == 0 {
            return None;
        }
        self.open.read().get(&segment).cloned()
    }

    pub(crate) fn insert(&self, segment: SegmentNo, cow_segment: CowSegment) {
        let mut open = self.open.write();
        open.insert(segment, cow_segment);
        self.count.store(open.len(), Ordering::Release);
    }

    pub(crate) fn remove(&self, segment: SegmentNo) {
        let mut open = self.open.write();
        open.remove(&segment);
        self.count.store(open.len(), Ordering::Release);
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// All of them, sorted by segment.
    pub(crate) fn list(&self) -> Vec<(SegmentNo, CowSegment)> {
        let open = self.open.read();
        let mut list: Vec<_> =
            open.iter().map(|(segment, cow_segment)| (*segment, cow_segment.clone())).collect();
        list.sort_unstable_by_key(|(segment, _)| *segment);
        list
    }

    /// The numbers of whole streams and of pending discards.
    pub(crate) fn ready(&self) -> (usize, usize) {
        self.open.read().values().fold((0, 0), |(whole, discards), cow_segment| match cow_segment {
            CowSegment::Stream(stream) => (whole + usize::from(stream.is_whole()), discards),
            CowSegment::PendingDiscard => (whole, discards + 1),
        })
    }
}
