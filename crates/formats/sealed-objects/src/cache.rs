//! The write-back cache: acknowledged blocks that are not yet in the store, per segment, and the
//! objects that have a transaction in flight.
//!
//! Invariants:
//! - Only the thread that began a transaction of a segment writes to its object; all other
//!   threads put blocks into the cache.
//! - A slot stays until the store acknowledges a transaction with this version of it, or a later
//!   direct write.
//! - A segment with pending work is in the queue, or has a transaction in flight that queues it at
//!   its end.
//! - The bit of an absent object is set and cleared under the lock of its shard. It is set only if
//!   no transaction of the shard began since the query.

use crate::absent::Absent;
use crate::segment::Segment;
use lacuna_contracts::{BLOCK_SIZE, Error, Plain};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::btree_map::Entry as SlotEntry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

const SHARDS: usize = 256;
/// The budget charged for a hole or a discarded segment.
pub(crate) const HOLE_COST: u64 = 160;
/// The budget charged for a block of data beyond its bytes: the cache's own structures, which cost
/// most for a block that is alone in its segment.
const PLACE_COST: u64 = 512;

/// The content of a block.
#[derive(Clone)]
pub(crate) enum Content {
    /// Plain data of one block, wiped when the last reference goes.
    Data(Arc<Plain<[u8; BLOCK_SIZE]>>),
    Hole,
}

impl Content {
    /// A copy of a block.
    pub(crate) fn data(block: &[u8; BLOCK_SIZE]) -> Content {
        let mut data = Arc::new(Plain::new([0; BLOCK_SIZE]));
        // There is no other reference yet, so this copies only `block`.
        Arc::make_mut(&mut data).copy_from_slice(block);
        Content::Data(data)
    }

    pub(crate) fn cost(&self) -> u64 {
        match self {
            Content::Data(_) => BLOCK_SIZE as u64 + PLACE_COST,
            Content::Hole => HOLE_COST,
        }
    }
}

/// The order of puts and of transactions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u64);

/// The version of a block or a discard in the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Age {
    version: Version,
    /// No version before this one is pending. A flush must write this version even if a newer one
    /// has replaced it in the cache.
    since: Version,
}

impl Age {
    /// Notes that version `done` is in the store. True if this version is not pending any more.
    fn settle(&mut self, done: Version) -> bool {
        self.since = self.since.max(Version(done.0 + 1));
        self.version <= done
    }
}

/// The newest version of a block.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) content: Content,
    age: Age,
}

/// The blocks that are in flight to an object.
#[derive(Clone, PartialEq, Eq)]
enum InFlight {
    /// Blocks that also stay in the cache, or the discard of the segment.
    Cached,
    /// Blocks of this range, which are not in the cache.
    Direct(Range<u64>),
}

/// The pending state of a segment.
#[derive(Default)]
struct Pending {
    slots: BTreeMap<u64, Slot>,
    /// A discard of the whole segment, which precedes the slots.
    discard: Option<Age>,
    in_flight: Option<InFlight>,
    listed: bool,
    /// The start of the next batch, so that all slots are written in rotation.
    cursor: u64,
}

impl Pending {
    fn has_work(&self) -> bool {
        !self.slots.is_empty() || self.discard.is_some()
    }

    /// Whether the segment should be queued now; if so it is marked as listed.
    fn list(&mut self) -> bool {
        self.in_flight.is_none() && self.has_work() && !std::mem::replace(&mut self.listed, true)
    }

    /// Version `done` of a block is in the store: drops the slot unless it holds a later one, and
    /// returns the freed bytes.
    fn settle(&mut self, index: u64, done: Version) -> u64 {
        let SlotEntry::Occupied(mut slot) = self.slots.entry(index) else { return 0 };
        if slot.get_mut().age.settle(done) { slot.remove().content.cost() } else { 0 }
    }

    /// At most `most` blocks in ascending order; blocks at or after the cursor take precedence.
    fn batch(&mut self, most: usize) -> Vec<(u64, Slot)> {
        let copy = |(index, slot): (&u64, &Slot)| (*index, slot.clone());
        let mut batch: Vec<_> = self.slots.range(self.cursor..).take(most).map(copy).collect();
        let around: Vec<_> = self.slots.range(..self.cursor).take(most - batch.len()).map(copy).collect();
        let last = if batch.len() < most { around.last() } else { batch.last() };
        self.cursor = last.map_or(0, |(index, _)| index + 1);
        batch.splice(0..0, around);
        batch
    }
}

/// One part of the cache.
#[derive(Default)]
struct Shard {
    state: Mutex<State>,
    /// Signalled when a transaction of a segment of this shard ends.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    segments: HashMap<Segment, Pending>,
    begun: Moment,
}

/// A point in time: the number of transactions of a shard that began before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl State {
    fn is_written(&self, segment: Segment, newest: Version) -> bool {
        self.segments.get(&segment).is_none_or(|here| {
            here.discard.is_none_or(|age| age.since > newest)
                && here.slots.values().all(|slot| slot.age.since > newest)
        })
    }
}

/// The work of one transaction, taken out of the cache.
pub(crate) enum Work {
    /// Discard the segment.
    Discard(Version),
    /// Write these blocks, in ascending order.
    Blocks(Vec<(u64, Slot)>),
    /// Write blocks of this range, which bypass the cache.
    Direct(Range<u64>, Version),
}

/// A transaction that has begun: its work, and whether the object was known to be absent.
pub(crate) struct Begun {
    pub(crate) work: Work,
    pub(crate) absent: bool,
}

/// The cache's knowledge of a range of a segment at one moment.
#[derive(Default)]
pub(crate) struct Lookup {
    /// The cached blocks, ascending.
    pub(crate) here: Vec<(u64, Content)>,
    /// Every block that is not cached reads as zeros.
    pub(crate) empty: bool,
    /// The part of the range that is in flight and bypasses the cache.
    pub(crate) passing: Option<Range<u64>>,
    /// Set if blocks or a discard of the range can never reach the store: the reason.
    pub(crate) stranded: Option<Error>,
    /// For [`Cache::if_quiet`]. `None` if a transaction of the segment is in flight.
    pub(crate) moment: Option<Moment>,
}

/// The write-back cache of a disk.
pub(crate) struct Cache {
    shards: Box<[Shard]>,
    /// Bytes held or reserved.
    dirty: AtomicU64,
    /// At this many bytes writers wait.
    most: u64,
    /// The next version.
    clock: AtomicU64,
    absent: Absent,
    /// Why the cache's content can never reach the store.
    stranded: OnceLock<Error>,
}

impl Cache {
    /// The cache of a disk of `segments` segments, for at most `most` bytes.
    pub(crate) fn new(segments: u64, most: u64) -> Self {
        Cache {
            most,
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            dirty: AtomicU64::new(0),
            clock: AtomicU64::new(1),
            absent: Absent::unknown(segments),
            stranded: OnceLock::new(),
        }
    }

    /// Bytes that are acknowledged and not yet in the store, plus reservations for blocks about to
    /// be put.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::Acquire)
    }

    /// Whether the cache is full enough to start writing without a request.
    pub(crate) fn is_filling(&self) -> bool {
        self.dirty_bytes() > self.most / 2
    }

    /// Reserves space for blocks to be put, if there is any. An empty cache accepts any size.
    pub(crate) fn reserve(&self, cost: u64) -> bool {
        self.dirty
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                (now == 0 || now + cost <= self.most).then_some(now + cost)
            })
            .is_ok()
    }

    /// Takes space beyond the limit, for work that frees more of it in the end.
    pub(crate) fn take_room(&self, cost: u64) {
        self.dirty.fetch_add(cost, Ordering::AcqRel);
    }

    fn free(&self, cost: u64) {
        self.dirty.fetch_sub(cost, Ordering::AcqRel);
    }

    /// Puts the newest versions of consecutive blocks; the caller has reserved the space. True: the
    /// caller must queue the segment.
    pub(crate) fn put(&self, segment: Segment, index: u64, contents: Vec<Content>) -> bool {
        let mut state = self.state(segment);
        let version = self.tick();
        let here = state.segments.entry(segment).or_default();
        for (index, content) in (index..).zip(contents) {
            match here.slots.entry(index) {
                SlotEntry::Vacant(place) => {
                    place.insert(Slot { content, age: Age { version, since: version } });
                }
                SlotEntry::Occupied(mut place) => {
                    let since = place.get().age.since;
                    let old = place.insert(Slot { content, age: Age { version, since } });
                    self.free(old.content.cost());
                }
            }
        }
        here.list()
    }

    /// Discards a whole segment and drops the blocks that the cache holds for it. The caller has
    /// reserved space for a hole. True: the caller must queue the segment.
    pub(crate) fn put_discard(&self, segment: Segment) -> bool {
        let mut state = self.state(segment);
        let version = self.tick();
        if self.absent.get(segment) {
            // Nothing is in flight: the start of a transaction would have cleared the bit. The
            // pending blocks are dropped for good.
            let here = state.segments.remove(&segment).unwrap_or_default();
            drop(state);
            let discards = 1 + u64::from(here.discard.is_some());
            self.free(
                discards * HOLE_COST + here.slots.values().map(|slot| slot.content.cost()).sum::<u64>(),
            );
            self.shard(segment).ended.notify_all();
            return false;
        }
        let here = state.segments.entry(segment).or_default();
        let slots = std::mem::take(&mut here.slots);
        self.free(slots.values().map(|slot| slot.content.cost()).sum());
        let oldest = slots.values().map(|slot| slot.age).chain(here.discard).map(|age| age.since).min();
        if here.discard.replace(Age { version, since: oldest.unwrap_or(version) }).is_some() {
            self.free(HOLE_COST);
        }
        here.list()
    }

    /// The state of a range of a segment now.
    pub(crate) fn look(&self, segment: Segment, range: Range<u64>) -> Lookup {
        let state = self.state(segment);
        let absent = self.absent.get(segment);
        let Some(here) = state.segments.get(&segment) else {
            return Lookup { empty: absent, moment: Some(state.begun), ..Lookup::default() };
        };
        let slots = here.slots.range(range.clone());
        let slots: Vec<_> = slots.map(|(index, slot)| (*index, slot.content.clone())).collect();
        let waits = here.discard.is_some() || !slots.is_empty();
        Lookup {
            here: slots,
            stranded: self.stranded.get().filter(|_| waits).cloned(),
            empty: absent || here.discard.is_some(),
            passing: match &here.in_flight {
                Some(InFlight::Direct(passing)) => {
                    let overlap = passing.start.max(range.start)..passing.end.min(range.end);
                    (!overlap.is_empty()).then_some(overlap)
                }
                _ => None,
            },
            moment: here.in_flight.is_none().then_some(state.begun),
        }
    }

    /// Runs `learn` if no transaction of the segment can have begun since `moment`.
    pub(crate) fn if_quiet(&self, segment: Segment, moment: Moment, learn: impl FnOnce()) {
        let state = self.state(segment);
        if state.begun == moment {
            learn();
        }
    }

    /// Notes that the object does not exist. To be called within [`Cache::if_quiet`].
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
    pub(crate) fn begin(&self, segment: Segment, most: usize) -> Option<Begun> {
        let mut state = self.state(segment);
        let here = state.segments.get_mut(&segment)?;
        here.listed = false;
        if here.in_flight.is_some() {
            return None;
        }
        let work = match here.discard {
            Some(age) => Work::Discard(age.version),
            None => Work::Blocks(here.batch(most)),
        };
        here.in_flight = Some(InFlight::Cached);
        state.begun.0 += 1;
        Some(Begun { work, absent: self.absent.take(segment) })
    }

    /// Begins a transaction with blocks that bypass the cache. `None`: another one is in flight, or
    /// a discard is pending.
    pub(crate) fn begin_direct(&self, segment: Segment, range: Range<u64>) -> Option<Begun> {
        let mut state = self.state(segment);
        let here = state.segments.entry(segment).or_default();
        if here.in_flight.is_some() || here.discard.is_some() {
            return None;
        }
        here.in_flight = Some(InFlight::Direct(range.clone()));
        state.begun.0 += 1;
        Some(Begun { work: Work::Direct(range, self.tick()), absent: self.absent.take(segment) })
    }

    /// Waits while another transaction of the segment is in flight or a discard is pending, unless
    /// `stop` returns true.
    pub(crate) fn wait_idle(&self, segment: Segment, stop: impl Fn() -> bool) {
        let mut state = self.state(segment);
        let is_busy = |here: &Pending| here.in_flight.is_some() || here.discard.is_some();
        while !stop() && state.segments.get(&segment).is_some_and(is_busy) {
            self.shard(segment).ended.wait(&mut state);
        }
    }

    /// Ends an acknowledged transaction, after which the object is `absent` or not. True: the
    /// caller must queue the segment again.
    pub(crate) fn end(&self, segment: Segment, work: &Work, absent: bool) -> bool {
        self.finish(segment, absent, |here| match work {
            Work::Discard(done) => {
                if here.discard.as_mut().is_some_and(|age| age.settle(*done)) {
                    here.discard = None;
                    self.free(HOLE_COST);
                }
            }
            Work::Blocks(blocks) => {
                blocks.iter().for_each(|(index, done)| self.free(here.settle(*index, done.age.version)));
            }
            // Blocks of the range that the cache held when the transaction began are older.
            Work::Direct(range, version) => {
                let touched: Vec<u64> = here.slots.range(range.clone()).map(|(index, _)| *index).collect();
                touched.into_iter().for_each(|index| self.free(here.settle(index, *version)));
            }
        })
    }

    /// Ends a transaction that did not happen: the state is that of before it began. True: the
    /// caller must queue the segment again.
    pub(crate) fn put_back(&self, segment: Segment, begun: &Begun) -> bool {
        self.finish(segment, begun.absent, |_| ())
    }

    fn finish(&self, segment: Segment, absent: bool, settle: impl FnOnce(&mut Pending)) -> bool {
        let mut state = self.state(segment);
        let Some(here) = state.segments.get_mut(&segment) else { return false };
        settle(here);
        here.in_flight = None;
        if absent {
            self.absent.set(segment);
        }
        let list = here.list();
        if !here.has_work() {
            state.segments.remove(&segment);
        }
        drop(state);
        self.shard(segment).ended.notify_all();
        list
    }

    /// The segments with pending work, and the newest version.
    pub(crate) fn unwritten(&self) -> (Vec<Segment>, Version) {
        let newest = self.tick();
        let mut segments = vec![];
        for shard in &self.shards {
            let state = shard.state.lock();
            segments.extend(state.segments.iter().filter(|(_, here)| here.has_work()).map(|(n, _)| *n));
        }
        segments.sort_unstable();
        (segments, newest)
    }

    /// Waits until all versions of the segment up to `newest` are in the store, or no transaction
    /// of it is in flight, or `stop` returns true.
    pub(crate) fn wait_written(&self, segment: Segment, newest: Version, stop: impl Fn() -> bool) {
        let mut state = self.state(segment);
        while !stop() && !state.is_written(segment, newest) {
            if state.segments.get(&segment).is_none_or(|here| here.in_flight.is_none()) {
                // It is in the queue, or about to be.
                drop(state);
                return std::thread::yield_now();
            }
            self.shard(segment).ended.wait(&mut state);
        }
    }

    /// Whether all versions of the segment up to `newest` are in the store.
    pub(crate) fn is_written(&self, segment: Segment, newest: Version) -> bool {
        self.state(segment).is_written(segment, newest)
    }

    /// Notes that the cache's content can never reach the store, with the reason. Wakes the threads
    /// that wait for the end of a transaction, which may never come.
    pub(crate) fn strand(&self, why: Error) {
        let _first_stays = self.stranded.set(why);
        for shard in &self.shards {
            drop(shard.state.lock());
            shard.ended.notify_all();
        }
    }

    /// Forgets which objects are absent, and ignores answers to earlier queries. No transaction may
    /// be in flight.
    pub(crate) fn forget_absent(&self) {
        self.shards.iter().for_each(|shard| shard.state.lock().begun.0 += 1);
        self.absent.clear();
    }

    fn tick(&self) -> Version {
        Version(self.clock.fetch_add(1, Ordering::AcqRel))
    }

    fn shard(&self, segment: Segment) -> &Shard {
        &self.shards[segment.0 as usize % SHARDS]
    }

    fn state(&self, segment: Segment) -> MutexGuard<'_, State> {
        self.shard(segment).state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_discard_of_what_turned_out_absent_gives_back_what_both_cost() {
        let (cache, segment) = (Cache::new(1, 1 << 20), Segment(0));
        assert!(cache.reserve(HOLE_COST) && cache.put_discard(segment));
        let moment = cache.look(segment, 0..1).moment.expect("nothing in flight");
        cache.if_quiet(segment, moment, || cache.set_absent(segment));
        assert!(cache.reserve(HOLE_COST));
        assert!(!cache.put_discard(segment));
        assert_eq!(cache.dirty_bytes(), 0);
    }
}
