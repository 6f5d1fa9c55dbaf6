//! Copy-on-write segments: second slots being filled by streams, and discarded segments.
//!
//! Invariants: the blocks that a copy-on-write segment covers are later than all versions except
//! the cache's newest; a frozen one is written by the committer alone. A block is covered only
//! after its metadata is set. Both, and discarded segments, are published records of the memory
//! that outlives the process (`kept_writes.rs`).

use crate::address::{SegmentNo, SlotNo};
use crate::kept_writes::{COVERED_WORDS, KeptWrites};
use lacuna_contracts::{Result, SEGMENT_BLOCKS};
use lacuna_kept_memory::KeptRecord;
use parking_lot::{Mutex, RwLock};
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
    /// The blocks that it covers: a copy of the record's words, which is quicker to look up.
    covered: [AtomicU64; COVERED_WORDS],
    /// Its bytes are the metadata of all blocks of the segment; zeros where not covered.
    record: Mutex<KeptRecord>,
    frozen: AtomicBool,
}

impl Stream {
    /// A stream that covers the blocks that its record says.
    pub(crate) fn new(slot: SlotNo, record: KeptRecord) -> Self {
        let word = |at: usize| covered_words(&record)[at].load(Ordering::Relaxed);
        let covered = std::array::from_fn(|at| AtomicU64::new(word(at)));
        Stream { slot, covered, record: Mutex::new(record), frozen: AtomicBool::new(false) }
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
        let mut record = self.record.lock();
        let at = meta_at(record.bytes(), first);
        record.bytes_mut()[at..at + meta.len()].copy_from_slice(meta);
        for words in [covered_words(&record), &self.covered] {
            for index in first..first + count {
                words[(index / 64) as usize].fetch_or(1 << (index % 64), Ordering::Release);
            }
        }
    }

    /// Marks blocks as not covered.
    pub(crate) fn uncover(&self, first: u64, count: u64) {
        let record = self.record.lock();
        for words in [&self.covered, covered_words(&record)] {
            for index in first..first + count {
                words[(index / 64) as usize].fetch_and(!(1 << (index % 64)), Ordering::Release);
            }
        }
    }

    /// Copies the metadata of blocks, starting at index `first`.
    pub(crate) fn copy_meta(&self, first: u64, out: &mut [u8]) {
        let record = self.record.lock();
        let at = meta_at(record.bytes(), first);
        out.copy_from_slice(&record.bytes()[at..at + out.len()]);
    }

    /// The metadata of the whole segment.
    pub(crate) fn meta(&self) -> Vec<u8> {
        self.record.lock().bytes().to_vec()
    }

    /// Makes a successor not find the stream.
    fn withdraw(&self) {
        self.record.lock().withdraw();
    }
}

fn covered_words(record: &KeptRecord) -> &[AtomicU64] {
    &record.words()[2..]
}

fn meta_at(all: &[u8], index: u64) -> usize {
    index as usize * (all.len() / SEGMENT_BLOCKS as usize)
}

/// The copy-on-write segments of a disk.
pub(crate) struct CowSegments {
    kept: KeptWrites,
    open: RwLock<FxHashMap<SegmentNo, KeptCowSegment>>,
    count: AtomicUsize,
}

struct KeptCowSegment {
    cow_segment: CowSegment,
    /// The record of a discarded segment, withdrawn when it is dropped. A stream has its own.
    _discard: Option<KeptRecord>,
}

impl Drop for CowSegments {
    /// Leaves segments that are not committed to a successor.
    fn drop(&mut self) {
        if self.len() > 0 {
            self.kept.leave();
        }
    }
}

impl Drop for KeptCowSegment {
    fn drop(&mut self) {
        // Readers may still have references to the stream. To a successor it is void now.
        if let CowSegment::Stream(stream) = &self.cow_segment {
            stream.withdraw();
        }
    }
}

impl CowSegments {
    pub(crate) fn new(kept: KeptWrites) -> Self {
        CowSegments { kept, open: RwLock::default(), count: AtomicUsize::default() }
    }

    pub(crate) fn get(&self, segment: SegmentNo) -> Option<CowSegment> {
        if self.len() == 0 {
            return None;
        }
        self.open.read().get(&segment).map(|kept| kept.cow_segment.clone())
    }

    /// Opens a stream to a slot.
    pub(crate) fn begin_stream(&self, segment: SegmentNo, slot: SlotNo) -> Result<()> {
        let stream = Arc::new(Stream::new(slot, self.kept.stream(segment, slot)?));
        self.insert(segment, KeptCowSegment { cow_segment: CowSegment::Stream(stream), _discard: None });
        Ok(())
    }

    /// Notes that a segment was discarded. Its stream ends.
    pub(crate) fn discard(&self, segment: SegmentNo) -> Result<()> {
        // A segment that was discarded before has a record.
        if !matches!(self.get(segment), Some(CowSegment::PendingDiscard)) {
            self.insert_discard(segment, self.kept.discard(segment)?);
        }
        Ok(())
    }

    /// Takes over a discarded segment that a predecessor left.
    pub(crate) fn insert_discard(&self, segment: SegmentNo, record: KeptRecord) {
        let cow_segment = CowSegment::PendingDiscard;
        self.insert(segment, KeptCowSegment { cow_segment, _discard: Some(record) });
    }

    /// Takes over a stream that a predecessor left. It takes no more writes: the versions in the
    /// cache are later than the blocks that it covers.
    pub(crate) fn insert_frozen(&self, segment: SegmentNo, slot: SlotNo, record: KeptRecord) {
        let stream = Stream::new(slot, record);
        stream.freeze();
        let cow_segment = CowSegment::Stream(Arc::new(stream));
        self.insert(segment, KeptCowSegment { cow_segment, _discard: None });
    }

    fn insert(&self, segment: SegmentNo, kept: KeptCowSegment) {
        let mut open = self.open.write();
        // The record of an earlier one is withdrawn here, after the later one was published.
        open.insert(segment, kept);
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
            open.iter().map(|(segment, kept)| (*segment, kept.cow_segment.clone())).collect();
        list.sort_unstable_by_key(|(segment, _)| *segment);
        list
    }

    /// The numbers of whole streams and of pending discards.
    pub(crate) fn ready(&self) -> (usize, usize) {
        self.open.read().values().fold((0, 0), |(whole, discards), kept| match &kept.cow_segment {
            CowSegment::Stream(stream) => (whole + usize::from(stream.is_whole()), discards),
            CowSegment::PendingDiscard => (whole, discards + 1),
        })
    }
}
