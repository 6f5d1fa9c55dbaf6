//! Copy-on-write segments: second slots under construction, and segments whose slots will be freed.
//!
//! Invariants: the blocks that a copy-on-write segment covers are later than anything but the
//! cache's newest; a frozen one is written by the committer alone. A block is covered after its
//! metadata is there.

use crate::address::{SegmentNo, SlotNo};
use lacuna_contracts::SEGMENT_BLOCKS;
use parking_lot::{Mutex, MutexGuard, RwLock};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What is to become of a segment at the next commit.
#[derive(Clone)]
pub(crate) enum CowSegment {
    /// It moves to a new slot, which a stream of writes is filling.
    Stream(Arc<Stream>),
    /// It was discarded whole: it reads as zeros, and its slot will be freed.
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
    /// A stream that covers nothing, with `meta_len` bytes of metadata for the whole segment.
    pub(crate) fn new(slot: SlotNo, meta_len: usize) -> Self {
        let covered = std::array::from_fn(|_| AtomicU64::new(0));
        Stream { slot, covered, meta: Mutex::new(vec![0; meta_len]), frozen: AtomicBool::new(false) }
    }

    /// Whether a commit has begun to end it.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    /// Ends writing by requests. Under all chunk locks of the segment.
    pub(crate) fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    /// Whether it holds the block with this index.
    pub(crate) fn covers(&self, index: u64) -> bool {
        self.covered[(index / 64) as usize].load(Ordering::Acquire) >> (index % 64) & 1 == 1
    }

    /// How many blocks it holds.
    pub(crate) fn covered(&self) -> u64 {
        self.covered.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    /// Whether it holds the whole segment.
    pub(crate) fn is_whole(&self) -> bool {
        self.covered() == SEGMENT_BLOCKS
    }

    /// From now on it holds the blocks from index `first` on, with this metadata.
    pub(crate) fn cover(&self, first: u64, count: u64, meta: &[u8]) {
        let mut all = self.meta.lock();
        let at = meta_at(&all, first);
        all[at..at + meta.len()].copy_from_slice(meta);
        for index in first..first + count {
            self.covered[(index / 64) as usize].fetch_or(1 << (index % 64), Ordering::Release);
        }
    }

    /// It no longer holds these blocks.
    pub(crate) fn uncover(&self, first: u64, count: u64) {
        for index in first..first + count {
            self.covered[(index / 64) as usize].fetch_and(!(1 << (index % 64)), Ordering::Release);
        }
    }

    /// Copies the metadata of the blocks from index `first` on.
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

    /// All of them, by segment.
    pub(crate) fn list(&self) -> Vec<(SegmentNo, CowSegment)> {
        let open = self.open.read();
        let mut list: Vec<_> =
            open.iter().map(|(segment, cow_segment)| (*segment, cow_segment.clone())).collect();
        list.sort_unstable_by_key(|(segment, _)| *segment);
        list
    }

    /// How many streams are whole, and how many discards are pending.
    pub(crate) fn ready(&self) -> (usize, usize) {
        self.open.read().values().fold((0, 0), |(whole, discards), cow_segment| match cow_segment {
            CowSegment::Stream(stream) => (whole + usize::from(stream.is_whole()), discards),
            CowSegment::PendingDiscard => (whole, discards + 1),
        })
    }
}
