//! The write-back cache: acknowledged blocks that are not yet in the store, per segment, and the
//! objects that have a transaction in flight.
//!
//! Invariants:
//! - Only the thread that began a transaction of a segment writes to its object; all other
//!   threads put blocks into the cache.
//! - A cached block stays until the store acknowledges a transaction with this version of it, or a
//!   later direct write.
//! - A segment with pending work is in the queue, or has a transaction in flight that queues it at
//!   its end.
//! - The bit of an absent object is set and cleared under the lock of its shard. It is set only if
//!   no transaction of the shard began since the query.
//! - Cached blocks and pending discards are published records (`write_records.rs`). All changes of
//!   records of a segment are made under the lock of its shard, and before the space is freed.

use crate::absent_objects::AbsentObjects;
use crate::segment::Segment;
use crate::writing::pending_segment::{
    BlockContent, CacheVersion, CachedBlock, HOLE_COST, PendingDiscard, PendingSegment, SegmentInFlight,
    VersionSpan,
};
use crate::writing::write_records::{LeftBlock, LeftDiscard, LeftRecords, WriteRecords};
use lacuna_contracts::{Error, SEGMENT_BLOCKS};
use lacuna_kept_memory::KeptRecord;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::btree_map::Entry as BlockEntry;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 256;

/// One part of the cache.
#[derive(Default)]
struct CacheShard {
    state: Mutex<CacheShardState>,
    /// Signalled when a transaction of a segment of this shard ends.
    ended: Condvar,
}

#[derive(Default)]
struct CacheShardState {
    segments: HashMap<Segment, PendingSegment>,
    begin_count: BeginCount,
}

/// A point in time: the number of transactions of a shard that began before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BeginCount(u64);

impl CacheShardState {
    fn is_written(&self, segment: Segment, newest: CacheVersion) -> bool {
        self.segments.get(&segment).is_none_or(|pending| {
            pending.discard.as_ref().is_none_or(|discard| discard.span.oldest > newest)
                && pending.blocks.values().all(|slot| slot.span.oldest > newest)
        })
    }
}

/// The work of one transaction, taken out of the cache.
pub(crate) enum TransactionWork {
    /// Discard the segment.
    Discard(CacheVersion),
    /// Write these blocks, in ascending order.
    Blocks(Vec<(u64, CachedBlock)>),
    /// Write blocks of this range, which bypass the cache.
    Direct(Range<u64>, CacheVersion),
}

/// A transaction that has begun: its work, and whether the object was known to be absent.
pub(crate) struct BegunTransaction {
    pub(crate) work: TransactionWork,
    pub(crate) absent: bool,
}

/// The cache's knowledge of a range of a segment at one moment.
#[derive(Default)]
pub(crate) struct CacheLookup {
    /// The cached blocks, ascending.
    pub(crate) cached: Vec<(u64, BlockContent)>,
    /// Every block that is not cached reads as zeros.
    pub(crate) rest_is_zeros: bool,
    /// The part of the range that is in flight and bypasses the cache.
    pub(crate) bypassing: Option<Range<u64>>,
    /// Set if blocks or a discard of the range can never reach the store: the reason.
    pub(crate) write_failure: Option<Error>,
    /// For [`DirtyCache::if_none_begun`]. `None` if a transaction of the segment is in flight.
    pub(crate) begin_count: Option<BeginCount>,
}

/// The write-back cache of a disk.
pub(crate) struct DirtyCache {
    records: WriteRecords,
    shards: Box<[CacheShard]>,
    /// Bytes held or reserved.
    dirty: AtomicU64,
    /// At this many bytes writers wait.
    max_bytes: u64,
    /// The next version.
    next_version: AtomicU64,
    absent: AbsentObjects,
    /// Why the cache's content can never reach the store.
    write_failure: OnceLock<Error>,
}

impl DirtyCache {
    /// The cache of a disk of `segments` segments, for at most `most` bytes.
    pub(crate) fn new(segments: u64, most: u64, records: WriteRecords) -> Self {
        DirtyCache {
            records,
            max_bytes: most,
            shards: (0..SHARDS).map(|_| CacheShard::default()).collect(),
            dirty: AtomicU64::new(0),
            next_version: AtomicU64::new(1),
            absent: AbsentObjects::unknown(segments),
            write_failure: OnceLock::new(),
        }
    }

    /// The records for blocks and discards to be put.
    pub(crate) fn records(&self) -> &WriteRecords {
        &self.records
    }

    /// Takes over the records that a predecessor left: the newest version of each block, unless a
    /// later discard of its segment voids it. Returns the segments that the caller must queue.
    pub(crate) fn adopt(&self, LeftRecords { blocks, discards }: LeftRecords) -> Vec<Segment> {
        let versions = blocks.iter().map(|left| left.version).chain(discards.iter().map(|left| left.version));
        let newest = versions.max().map_or(0, |version| version.0);
        self.next_version.fetch_max(newest.saturating_add(1), Ordering::AcqRel);
        let mut segments = BTreeSet::new();
        for LeftDiscard { segment, version, record } in discards {
            let mut state = self.state(segment);
            let pending = state.segments.entry(segment).or_default();
            let discard = PendingDiscard::publish(record, segment, VersionSpan::of(version));
            if pending.discard.replace(discard).is_none() {
                self.reserve_beyond_limit(HOLE_COST);
            }
            segments.insert(segment);
        }
        for LeftBlock { block, version, content } in blocks {
            let (segment, index) = (Segment(block.0 / SEGMENT_BLOCKS), block.0 % SEGMENT_BLOCKS);
            let mut state = self.state(segment);
            let pending = state.segments.entry(segment).or_default();
            if pending.discard.as_ref().is_some_and(|discard| discard.span.version > version) {
                continue;
            }
            self.reserve_beyond_limit(content.cost());
            let cached = CachedBlock { content, span: VersionSpan::of(version) };
            if let Some(old) = pending.blocks.insert(index, cached) {
                old.content.withdraw();
                self.free(old.content.cost());
            }
            segments.insert(segment);
        }
        let must_queue = |segment: &Segment| {
            let mut state = self.state(*segment);
            state.segments.get_mut(segment).is_some_and(PendingSegment::mark_queued)
        };
        segments.into_iter().filter(must_queue).collect()
    }

    /// Bytes that are acknowledged and not yet in the store, plus reservations for blocks about to
    /// be put.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::Acquire)
    }

    /// Whether the cache is full enough to start writing without a request.
    pub(crate) fn is_filling(&self) -> bool {
        self.dirty_bytes() > self.max_bytes / 2
    }

    /// Reserves space for blocks to be put, if there is any. An empty cache accepts any size.
    pub(crate) fn reserve(&self, cost: u64) -> bool {
        self.dirty
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                (now == 0 || now + cost <= self.max_bytes).then_some(now + cost)
            })
            .is_ok()
    }

    /// Takes space beyond the limit, for work that frees more of it in the end.
    pub(crate) fn reserve_beyond_limit(&self, cost: u64) {
        self.dirty.fetch_add(cost, Ordering::AcqRel);
    }

    fn free(&self, cost: u64) {
        self.dirty.fetch_sub(cost, Ordering::AcqRel);
    }

    /// Puts the newest versions of consecutive blocks; the caller has reserved the space. True: the
    /// caller must queue the segment.
    pub(crate) fn put(&self, segment: Segment, index: u64, contents: Vec<BlockContent>) -> bool {
        let mut state = self.state(segment);
        let version = self.tick();
        let pending = state.segments.entry(segment).or_default();
        for (index, content) in (index..).zip(contents) {
            content.publish(segment.block(index), version);
            match pending.blocks.entry(index) {
                BlockEntry::Vacant(place) => {
                    place.insert(CachedBlock { content, span: VersionSpan::of(version) });
                }
                BlockEntry::Occupied(mut place) => {
                    let since = place.get().span.oldest;
                    let old =
                        place.insert(CachedBlock { content, span: VersionSpan { version, oldest: since } });
                    old.content.withdraw();
                    self.free(old.content.cost());
                }
            }
        }
        pending.mark_queued()
    }

    /// Discards a whole segment and drops the blocks that the cache holds for it. The caller has
    /// reserved space for a hole. True: the caller must queue the segment.
    pub(crate) fn put_discard(&self, segment: Segment, record: KeptRecord) -> bool {
        let mut state = self.state(segment);
        let version = self.tick();
        if self.absent.get(segment) {
            // Nothing is in flight: the start of a transaction would have cleared the bit. The
            // pending blocks are dropped for good, and the store needs no discard.
            let pending = state.segments.remove(&segment).unwrap_or_default();
            pending.blocks.values().for_each(|slot| slot.content.withdraw());
            let discards = 1 + u64::from(pending.discard.is_some());
            drop(pending.discard);
            drop(state);
            self.free(
                discards * HOLE_COST + pending.blocks.values().map(|slot| slot.content.cost()).sum::<u64>(),
            );
            self.shard(segment).ended.notify_all();
            return false;
        }
        let pending = state.segments.entry(segment).or_default();
        let spans =
            pending.blocks.values().map(|slot| slot.span).chain(pending.discard.iter().map(|old| old.span));
        let oldest = spans.map(|span| span.oldest).min().unwrap_or(version);
        // From here on a successor finds neither the blocks nor an older discard.
        let discard = PendingDiscard::publish(record, segment, VersionSpan { version, oldest });
        let slots = std::mem::take(&mut pending.blocks);
        slots.values().for_each(|slot| slot.content.withdraw());
        self.free(slots.values().map(|slot| slot.content.cost()).sum());
        if pending.discard.replace(discard).is_some() {
            self.free(HOLE_COST);
        }
        pending.mark_queued()
    }

    /// The state of a range of a segment now.
    pub(crate) fn lookup(&self, segment: Segment, range: Range<u64>) -> CacheLookup {
        let state = self.state(segment);
        let absent = self.absent.get(segment);
        let Some(pending) = state.segments.get(&segment) else {
            return CacheLookup {
                rest_is_zeros: absent,
                begin_count: Some(state.begin_count),
                ..CacheLookup::default()
            };
        };
        let slots = pending.blocks.range(range.clone());
        let slots: Vec<_> = slots.map(|(index, slot)| (*index, slot.content.clone())).collect();
        let is_pending = pending.discard.is_some() || !slots.is_empty();
        CacheLookup {
            cached: slots,
            write_failure: self.write_failure.get().filter(|_| is_pending).cloned(),
            rest_is_zeros: absent || pending.discard.is_some(),
            bypassing: match &pending.in_flight {
                Some(SegmentInFlight::Direct(passing)) => {
                    let overlap = passing.start.max(range.start)..passing.end.min(range.end);
                    (!overlap.is_empty()).then_some(overlap)
                }
                _ => None,
            },
            begin_count: pending.in_flight.is_none().then_some(state.begin_count),
        }
    }

    /// Runs `learn` if no transaction of the segment can have begun since `moment`.
    pub(crate) fn if_none_begun(&self, segment: Segment, moment: BeginCount, learn: impl FnOnce()) {
        let state = self.state(segment);
        if state.begin_count == moment {
            learn();
        }
    }

    /// Notes that the object does not exist. To be called within [`DirtyCache::if_none_begun`].
    pub(crate) fn set_absent(&self, segment: Segment) {
        self.absent.set(segment);
    }

    /// Whether the object is known not to exist, and nothing is pending for it.
    pub(crate) fn is_absent(&self, segment: Segment) -> bool {
        let state = self.state(segment);
        self.absent.get(segment) && !state.segments.contains_key(&segment)
    }

    /// Begins a transaction with at most `most` blocks of a listed segment. `None`: another one is
    /// in flight, or nothing is pending.
    pub(crate) fn begin(&self, segment: Segment, most: usize) -> Option<BegunTransaction> {
        let mut state = self.state(segment);
        let pending = state.segments.get_mut(&segment)?;
        pending.is_queued = false;
        if pending.in_flight.is_some() {
            return None;
        }
        let work = match &pending.discard {
            Some(discard) => TransactionWork::Discard(discard.span.version),
            None => TransactionWork::Blocks(pending.next_batch(most)),
        };
        pending.in_flight = Some(SegmentInFlight::Cached);
        state.begin_count.0 += 1;
        Some(BegunTransaction { work, absent: self.absent.take(segment) })
    }

    /// Begins a transaction with blocks that bypass the cache. `None`: another one is in flight, or
    /// a discard is pending.
    pub(crate) fn begin_direct(&self, segment: Segment, range: Range<u64>) -> Option<BegunTransaction> {
        let mut state = self.state(segment);
        let pending = state.segments.entry(segment).or_default();
        if pending.in_flight.is_some() || pending.discard.is_some() {
            return None;
        }
        pending.in_flight = Some(SegmentInFlight::Direct(range.clone()));
        state.begin_count.0 += 1;
        Some(BegunTransaction {
            work: TransactionWork::Direct(range, self.tick()),
            absent: self.absent.take(segment),
        })
    }

    /// Waits while another transaction of the segment is in flight or a discard is pending, unless
    /// `stop` returns true.
    pub(crate) fn wait_idle(&self, segment: Segment, stop: impl Fn() -> bool) {
        let mut state = self.state(segment);
        let is_busy = |pending: &PendingSegment| pending.in_flight.is_some() || pending.discard.is_some();
        while !stop() && state.segments.get(&segment).is_some_and(is_busy) {
            self.shard(segment).ended.wait(&mut state);
        }
    }

    /// Ends an acknowledged transaction, after which the object is `absent` or not. True: the
    /// caller must queue the segment again.
    pub(crate) fn commit(&self, segment: Segment, work: &TransactionWork, absent: bool) -> bool {
        self.end_transaction(segment, absent, |pending| match work {
            TransactionWork::Discard(done) => {
                if pending.discard.as_mut().is_some_and(|discard| discard.span.mark_written(*done)) {
                    pending.discard = None;
                    self.free(HOLE_COST);
                }
            }
            TransactionWork::Blocks(blocks) => {
                blocks
                    .iter()
                    .for_each(|(index, done)| self.free(pending.mark_written(*index, done.span.version)));
            }
            // Blocks of the range that the cache held when the transaction began are older.
            TransactionWork::Direct(range, version) => {
                let touched: Vec<u64> =
                    pending.blocks.range(range.clone()).map(|(index, _)| *index).collect();
                touched.into_iter().for_each(|index| self.free(pending.mark_written(index, *version)));
            }
        })
    }

    /// Ends a transaction that did not happen: the state is that of before it began. True: the
    /// caller must queue the segment again.
    pub(crate) fn abort(&self, segment: Segment, begun: &BegunTransaction) -> bool {
        self.end_transaction(segment, begun.absent, |_| ())
    }

    fn end_transaction(
        &self,
        segment: Segment,
        absent: bool,
        settle: impl FnOnce(&mut PendingSegment),
    ) -> bool {
        let mut state = self.state(segment);
        let Some(pending) = state.segments.get_mut(&segment) else { return false };
        settle(pending);
        pending.in_flight = None;
        if absent {
            self.absent.set(segment);
        }
        let list = pending.mark_queued();
        if !pending.has_work() {
            state.segments.remove(&segment);
        }
        drop(state);
        self.shard(segment).ended.notify_all();
        list
    }

    /// The segments with pending work, and the newest version.
    pub(crate) fn pending_segments(&self) -> (Vec<Segment>, CacheVersion) {
        let newest = self.tick();
        let mut segments = vec![];
        for shard in &self.shards {
            let state = shard.state.lock();
            segments.extend(state.segments.iter().filter(|(_, pending)| pending.has_work()).map(|(n, _)| *n));
        }
        segments.sort_unstable();
        (segments, newest)
    }

    /// Waits until all versions of the segment up to `newest` are in the store, or no transaction
    /// of it is in flight, or `stop` returns true.
    pub(crate) fn wait_written(&self, segment: Segment, newest: CacheVersion, stop: impl Fn() -> bool) {
        let mut state = self.state(segment);
        while !stop() && !state.is_written(segment, newest) {
            if state.segments.get(&segment).is_none_or(|pending| pending.in_flight.is_none()) {
                // It is in the queue, or about to be.
                drop(state);
                return std::thread::yield_now();
            }
            self.shard(segment).ended.wait(&mut state);
        }
    }

    /// Whether all versions of the segment up to `newest` are in the store.
    pub(crate) fn is_written(&self, segment: Segment, newest: CacheVersion) -> bool {
        self.state(segment).is_written(segment, newest)
    }

    /// Notes that the cache's content can never reach the store, with the reason. Wakes the threads
    /// that wait for the end of a transaction, which may never come.
    pub(crate) fn set_write_failure(&self, why: Error) {
        let _first_stays = self.write_failure.set(why);
        for shard in &self.shards {
            drop(shard.state.lock());
            shard.ended.notify_all();
        }
    }

    /// Forgets which objects are absent, and ignores answers to earlier queries. No transaction may
    /// be in flight.
    pub(crate) fn forget_absent(&self) {
        self.shards.iter().for_each(|shard| shard.state.lock().begin_count.0 += 1);
        self.absent.clear();
    }

    fn tick(&self) -> CacheVersion {
        CacheVersion(self.next_version.fetch_add(1, Ordering::AcqRel))
    }

    fn shard(&self, segment: Segment) -> &CacheShard {
        &self.shards[segment.0 as usize % SHARDS]
    }

    fn state(&self, segment: Segment) -> MutexGuard<'_, CacheShardState> {
        self.shard(segment).state.lock()
    }
}

impl Drop for DirtyCache {
    /// Leaves blocks and discards that are not in the store to a successor.
    fn drop(&mut self) {
        if self.dirty_bytes() > 0 {
            self.records.leave();
        }
    }
}

#[cfg(test)]
#[path = "dirty_cache_tests.rs"]
mod tests;
