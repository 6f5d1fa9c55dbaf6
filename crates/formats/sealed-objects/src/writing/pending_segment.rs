//! The pending state of one segment: its cached blocks and their versions, a discard, and what is
//! in flight.

use crate::segment::Segment;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr};
use lacuna_kept_memory::KeptRecord;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as BlockEntry;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The budget charged for a hole or a discarded segment.
pub(crate) const HOLE_COST: u64 = 160;
/// The budget charged for a block of data beyond its bytes: the cache's own structures, which cost
/// most for a block that is alone in its segment.
const BLOCK_OVERHEAD: u64 = 512;

/// The content of a block, in a record of memory that outlives the process.
#[derive(Clone)]
pub(crate) enum BlockContent {
    /// Plain data of one block, wiped when the last reference goes.
    Data(Arc<KeptRecord>),
    /// A hole; its record has no bytes.
    Hole(Arc<KeptRecord>),
}

impl BlockContent {
    pub(crate) fn record(&self) -> &KeptRecord {
        let (BlockContent::Data(record) | BlockContent::Hole(record)) = self;
        record
    }

    /// Makes a successor find this version of a block.
    pub(crate) fn publish(&self, block: BlockAddr, version: CacheVersion) {
        publish(self.record(), block.0, version);
    }

    /// Makes a successor not find it. Transactions and readers may still have references.
    pub(crate) fn withdraw(&self) {
        self.record().withdraw();
    }

    pub(crate) fn cost(&self) -> u64 {
        match self {
            BlockContent::Data(_) => BLOCK_SIZE as u64 + BLOCK_OVERHEAD,
            BlockContent::Hole(_) => HOLE_COST,
        }
    }
}

/// The order of puts and of transactions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CacheVersion(pub(crate) u64);

/// The version of a block or a discard in the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct VersionSpan {
    pub(crate) version: CacheVersion,
    /// No version before this one is pending. A flush must write this version even if a newer one
    /// has replaced it in the cache.
    pub(crate) oldest: CacheVersion,
}

impl VersionSpan {
    /// The only pending version.
    pub(crate) fn of(version: CacheVersion) -> VersionSpan {
        VersionSpan { version, oldest: version }
    }

    /// Notes that version `done` is in the store. True if this version is not pending any more.
    pub(crate) fn mark_written(&mut self, done: CacheVersion) -> bool {
        self.oldest = self.oldest.max(CacheVersion(done.0 + 1));
        self.version <= done
    }
}

/// The newest version of a block.
#[derive(Clone)]
pub(crate) struct CachedBlock {
    pub(crate) content: BlockContent,
    pub(crate) span: VersionSpan,
}

/// The newest discard of a segment. Dropping it makes a successor not find it.
pub(crate) struct PendingDiscard {
    pub(crate) span: VersionSpan,
    _published: KeptRecord,
}

impl PendingDiscard {
    /// Makes a successor find the discard, with `record`.
    pub(crate) fn publish(record: KeptRecord, segment: Segment, span: VersionSpan) -> PendingDiscard {
        publish(&record, segment.0, span.version);
        PendingDiscard { span, _published: record }
    }
}

/// The blocks that are in flight to an object.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum SegmentInFlight {
    /// Blocks that also stay in the cache, or the discard of the segment.
    Cached,
    /// Blocks of this range, which are not in the cache.
    Direct(Range<u64>),
}

/// The pending state of a segment.
#[derive(Default)]
pub(crate) struct PendingSegment {
    pub(crate) blocks: BTreeMap<u64, CachedBlock>,
    /// A discard of the whole segment, which precedes the blocks.
    pub(crate) discard: Option<PendingDiscard>,
    pub(crate) in_flight: Option<SegmentInFlight>,
    pub(crate) is_queued: bool,
    /// The start of the next batch, so that all blocks are written in rotation.
    cursor: u64,
}

impl PendingSegment {
    pub(crate) fn has_work(&self) -> bool {
        !self.blocks.is_empty() || self.discard.is_some()
    }

    /// Whether the segment should be queued now; if so it is marked as listed.
    pub(crate) fn mark_queued(&mut self) -> bool {
        self.in_flight.is_none() && self.has_work() && !std::mem::replace(&mut self.is_queued, true)
    }

    /// Version `done` of a block is in the store: drops the cached block unless it is of a later
    /// one, and returns the freed bytes.
    pub(crate) fn mark_written(&mut self, index: u64, done: CacheVersion) -> u64 {
        let BlockEntry::Occupied(mut slot) = self.blocks.entry(index) else { return 0 };
        if !slot.get_mut().span.mark_written(done) {
            return 0;
        }
        let content = slot.remove().content;
        content.withdraw();
        content.cost()
    }

    /// At most `most` blocks in ascending order; blocks at or after the cursor take precedence.
    pub(crate) fn next_batch(&mut self, most: usize) -> Vec<(u64, CachedBlock)> {
        let copy = |(index, slot): (&u64, &CachedBlock)| (*index, slot.clone());
        let mut batch: Vec<_> = self.blocks.range(self.cursor..).take(most).map(copy).collect();
        let around: Vec<_> = self.blocks.range(..self.cursor).take(most - batch.len()).map(copy).collect();
        let last = if batch.len() < most { around.last() } else { batch.last() };
        self.cursor = last.map_or(0, |(index, _)| index + 1);
        batch.splice(0..0, around);
        batch
    }
}

/// Notes in a record the version that it holds, and its block or segment, and publishes it.
fn publish(record: &KeptRecord, place: u64, version: CacheVersion) {
    record.words()[0].store(place, Ordering::Relaxed);
    record.words()[1].store(version.0, Ordering::Relaxed);
    record.publish();
}

/// The block or segment, and the version, that a published record holds.
pub(crate) fn place_and_version(record: &KeptRecord) -> (u64, CacheVersion) {
    let [place, version] = [0, 1].map(|at: usize| record.words()[at].load(Ordering::Relaxed));
    (place, CacheVersion(version))
}
