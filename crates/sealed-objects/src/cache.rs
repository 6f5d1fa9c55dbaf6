//! The write-back cache: what was acknowledged and is not yet in the store, segment by segment, and which object
//! has a transaction in flight.
//!
//! Invariants:
//! - An object whose segment has a flight is its holder's alone to write; everyone else puts into the cache.
//! - A slot stays until a transaction that held this version of it, or a later direct write, is acknowledged.
//! - A segment with something to write is listed in the queue, or has a flight whose end lists it.
//! - The bit of an absent object is set and cleared under the lock of its shard, and only set if no transaction
//!   of the shard began since the store was asked.

use super::absent::Absent;
use lacuna_core::BLOCK_SIZE;
use std::collections::btree_map::Entry as SlotEntry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 256;
/// What a hole, or a segment to be emptied, costs the budget.
pub(crate) const HOLE_COST: u64 = 160;
/// What a block of data costs it beside its bytes: its place here, which is most if it is alone in its segment.
const PLACE_COST: u64 = 512;

/// What a block holds.
#[derive(Clone)]
pub(crate) enum Content {
    /// Plain data, one block.
    Data(Arc<[u8]>),
    Hole,
}

impl Content {
    pub(crate) fn cost(&self) -> u64 {
        match self {
            Content::Data(_) => BLOCK_SIZE as u64 + PLACE_COST,
            Content::Hole => HOLE_COST,
        }
    }
}

/// The newest version of a block.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) content: Content,
    version: u64,
    /// No version before this one waits to be in the store: what a flush must have written, even if a newer
    /// version took its place here.
    since: u64,
}

/// A pending request to empty an object, before the slots are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Void {
    version: u64,
    since: u64,
}

/// What is on its way to an object.
#[derive(Clone, PartialEq, Eq)]
enum Flight {
    /// Blocks that stay in the cache meanwhile, or the emptying of the segment.
    Cached,
    /// Blocks of this range, which are not in the cache.
    Direct(Range<u64>),
}

#[derive(Default)]
struct Segment {
    slots: BTreeMap<u64, Slot>,
    void: Option<Void>,
    flight: Option<Flight>,
    listed: bool,
    /// Where the next batch begins, so that every slot has its turn.
    cursor: u64,
}

impl Segment {
    fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.void.is_none() && self.flight.is_none()
    }

    fn has_work(&self) -> bool {
        !self.slots.is_empty() || self.void.is_some()
    }

    /// Whether the segment should be put into the queue now; if so it counts as listed.
    fn list(&mut self) -> bool {
        self.flight.is_none() && self.has_work() && !std::mem::replace(&mut self.listed, true)
    }
}

/// One part of the cache.
#[derive(Default)]
struct Shard {
    state: Mutex<State>,
    /// A transaction of a segment of this shard ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    segments: HashMap<u64, Segment>,
    /// Transactions begun so far.
    begun: u64,
}

/// The work of a transaction, taken out of the cache.
pub(crate) enum Work {
    /// Empty the object.
    Void(Void),
    /// Write these blocks, in ascending order.
    Blocks(Vec<(u64, Slot)>),
}

/// A flight begun: its work, and whether the object was known to be absent.
pub(crate) struct Begun {
    pub(crate) work: Work,
    pub(crate) absent: bool,
}

/// What the cache knows of a range of a segment at one moment.
#[derive(Default)]
pub(crate) struct Lookup {
    /// The blocks that are here, ascending.
    pub(crate) here: Vec<(u64, Content)>,
    /// Every other block reads as zeros.
    pub(crate) empty: bool,
    /// The part of the range that is on its way to the store without being here.
    pub(crate) passing: Option<Range<u64>>,
    /// For [`Cache::if_quiet`]. `None` if a transaction of the segment is in flight.
    pub(crate) moment: Option<u64>,
}

pub(crate) struct Cache {
    shards: Box<[Shard]>,
    /// Bytes held or reserved.
    dirty: AtomicU64,
    /// Numbers versions.
    clock: AtomicU64,
    absent: Absent,
}

impl Cache {
    pub(crate) fn new(segments: u64) -> Self {
        Cache {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            dirty: AtomicU64::new(0),
            clock: AtomicU64::new(1),
            absent: Absent::unknown(segments),
        }
    }

    /// Bytes acknowledged and not yet in the store, with those reserved for what is about to be put.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::Acquire)
    }

    /// Reserves room for what will be put, if it is there. An empty cache takes anything.
    pub(crate) fn reserve(&self, cost: u64, limit: u64) -> bool {
        self.dirty
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                (now == 0 || now + cost <= limit).then_some(now + cost)
            })
            .is_ok()
    }

    /// Takes room that may not be there, for what gives more of it back in the end.
    pub(crate) fn take_room(&self, cost: u64) {
        self.dirty.fetch_add(cost, Ordering::AcqRel);
    }

    fn free(&self, cost: u64) {
        self.dirty.fetch_sub(cost, Ordering::AcqRel);
    }

    /// Puts newest versions of consecutive blocks, for which room was reserved. True: list the segment.
    pub(crate) fn put(&self, segment: u64, index: u64, contents: Vec<Content>) -> bool {
        let mut state = self.state(segment);
        let version = self.tick();
        let entry = state.segments.entry(segment).or_default();
        for (index, content) in (index..).zip(contents) {
            let new = Slot { content, version, since: version };
            match entry.slots.entry(index) {
                SlotEntry::Vacant(place) => {
                    place.insert(new);
                }
                SlotEntry::Occupied(mut place) => {
                    let since = place.get().since;
                    let old = place.insert(Slot { since, ..new });
                    self.free(old.content.cost());
                }
            }
        }
        entry.list()
    }

    /// Wishes the object emptied and drops what the cache holds for it. Room for a hole was reserved. True: list
    /// the segment.
    pub(crate) fn put_void(&self, segment: u64) -> bool {
        let mut state = self.state(segment);
        let version = self.tick();
        if self.absent.get(segment) {
            // No flight is under way: its beginning would have cleared the bit. What waits here is gone for good.
            let here = state.segments.remove(&segment).unwrap_or_default();
            drop(state);
            let wishes = 1 + u64::from(here.void.is_some());
            self.free(wishes * HOLE_COST + here.slots.values().map(|slot| slot.content.cost()).sum::<u64>());
            self.shard(segment).ended.notify_all();
            return false;
        }
        let here = state.segments.entry(segment).or_default();
        let slots = std::mem::take(&mut here.slots);
        self.free(slots.values().map(|slot| slot.content.cost()).sum());
        let oldest = slots.values().map(|slot| slot.since).chain(here.void.map(|void| void.since)).min();
        if here.void.replace(Void { version, since: oldest.unwrap_or(version) }).is_some() {
            self.free(HOLE_COST);
        }
        here.list()
    }

    /// What is known of a range of a segment now.
    pub(crate) fn look(&self, segment: u64, range: Range<u64>) -> Lookup {
        let state = self.state(segment);
        let absent = self.absent.get(segment);
        let Some(here) = state.segments.get(&segment) else {
            return Lookup { empty: absent, moment: Some(state.begun), ..Lookup::default() };
        };
        let slots = here.slots.range(range.clone());
        Lookup {
            here: slots.map(|(index, slot)| (*index, slot.content.clone())).collect(),
            empty: absent || here.void.is_some(),
            passing: match &here.flight {
                Some(Flight::Direct(passing)) => {
                    let overlap = passing.start.max(range.start)..passing.end.min(range.end);
                    (!overlap.is_empty()).then_some(overlap)
                }
                _ => None,
            },
            moment: here.flight.is_none().then_some(state.begun),
        }
    }

    /// Runs `learn` if no transaction of the segment can have begun since `moment`.
    pub(crate) fn if_quiet(&self, segment: u64, moment: u64, learn: impl FnOnce()) {
        let state = self.state(segment);
        if state.begun == moment {
            learn();
        }
    }

    /// The object is not there. Call it within [`Cache::if_quiet`].
    pub(crate) fn set_absent(&self, segment: u64) {
        self.absent.set(segment);
    }

    /// Whether the object is known not to be there, and nothing waits to be written to it.
    pub(crate) fn is_absent(&self, segment: u64) -> bool {
        let state = self.state(segment);
        self.absent.get(segment) && !state.segments.contains_key(&segment)
    }

    /// Starts a flight with at most `most` blocks of a listed segment. `None`: another is under way, or nothing is
    /// left to do.
    pub(crate) fn begin(&self, segment: u64, most: usize) -> Option<Begun> {
        let mut state = self.state(segment);
        let here = state.segments.get_mut(&segment)?;
        here.listed = false;
        if here.flight.is_some() {
            return None;
        }
        let work = match here.void {
            Some(wish) => Work::Void(wish),
            None => {
                let ahead = here.slots.range(here.cursor..);
                let mut batch: Vec<(u64, Slot)> = ahead.take(most).map(|(i, s)| (*i, s.clone())).collect();
                if batch.len() < most {
                    let around = here.slots.range(..here.cursor).take(most - batch.len());
                    let around: Vec<_> = around.map(|(i, s)| (*i, s.clone())).collect();
                    here.cursor = around.last().map_or(0, |(i, _)| i + 1);
                    batch.splice(0..0, around);
                } else {
                    here.cursor = batch.last().map_or(0, |(i, _)| i + 1);
                }
                Work::Blocks(batch)
            }
        };
        here.flight = Some(Flight::Cached);
        state.begun += 1;
        let absent = self.absent.take(segment);
        Some(Begun { work, absent })
    }

    /// Starts a flight of blocks that do not pass through the cache. `None`: another is under way.
    pub(crate) fn begin_direct(&self, segment: u64, range: Range<u64>) -> Option<(u64, bool)> {
        let mut state = self.state(segment);
        let here = state.segments.entry(segment).or_default();
        if here.flight.is_some() || here.void.is_some() {
            return None;
        }
        here.flight = Some(Flight::Direct(range));
        state.begun += 1;
        Some((self.tick(), self.absent.take(segment)))
    }

    /// Waits while another flight of the segment is under way, or `stop` says so.
    pub(crate) fn wait_idle(&self, segment: u64, stop: impl Fn() -> bool) {
        let shard = self.shard(segment);
        let mut state = self.state(segment);
        while !stop()
            && state.segments.get(&segment).is_some_and(|here| here.flight.is_some() || here.void.is_some())
        {
            state = shard.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A flight of cached work was acknowledged. True: list the segment again.
    pub(crate) fn end(&self, segment: u64, work: &Work, absent: bool) -> bool {
        self.finish(segment, absent, |here| match work {
            Work::Void(done) => match &mut here.void {
                Some(void) if void.version == done.version => {
                    here.void = None;
                    self.free(HOLE_COST);
                }
                Some(void) => void.since = void.since.max(done.version + 1),
                None => {}
            },
            Work::Blocks(blocks) => {
                blocks.iter().for_each(|(index, done)| self.free(here.settle(*index, done.version)));
            }
        })
    }

    /// A direct flight was acknowledged: what the range held in the cache when it began is older.
    pub(crate) fn end_direct(&self, segment: u64, range: Range<u64>, version: u64) -> bool {
        self.finish(segment, false, |here| {
            let touched: Vec<u64> = here.slots.range(range).map(|(index, _)| *index).collect();
            touched.into_iter().for_each(|index| self.free(here.settle(index, version)));
        })
    }

    /// A flight did not happen: everything stays as it was when it began, `absent` too. True: list the segment again.
    pub(crate) fn put_back(&self, segment: u64, absent: bool) -> bool {
        self.finish(segment, absent, |_| ())
    }

    fn finish(&self, segment: u64, absent: bool, settle: impl FnOnce(&mut Segment)) -> bool {
        let mut state = self.state(segment);
        let Some(here) = state.segments.get_mut(&segment) else { return false };
        settle(here);
        here.flight = None;
        if absent {
            self.absent.set(segment);
        }
        let list = here.list();
        if here.is_idle() {
            state.segments.remove(&segment);
        }
        drop(state);
        self.shard(segment).ended.notify_all();
        list
    }

    /// The segments with something acknowledged and not yet in the store, and the number of the newest version.
    pub(crate) fn unwritten(&self) -> (Vec<u64>, u64) {
        let newest = self.tick();
        let mut segments = vec![];
        for shard in &self.shards {
            let state = shard.state.lock().unwrap_or_else(PoisonError::into_inner);
            segments.extend(state.segments.iter().filter(|(_, here)| here.has_work()).map(|(n, _)| *n));
        }
        segments.sort_unstable();
        (segments, newest)
    }

    /// Waits while a flight of the segment is under way and something of it up to version `newest` is not in the
    /// store, or until `stop` says so.
    pub(crate) fn wait_flight(&self, segment: u64, newest: u64, stop: impl Fn() -> bool) {
        let shard = self.shard(segment);
        let mut state = self.state(segment);
        while !stop() && !state.is_written(segment, newest) {
            if state.segments.get(&segment).is_none_or(|here| here.flight.is_none()) {
                // It is listed, or about to be.
                drop(state);
                return std::thread::yield_now();
            }
            state = shard.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether everything of the segment up to version `newest` is in the store.
    pub(crate) fn is_written(&self, segment: u64, newest: u64) -> bool {
        self.state(segment).is_written(segment, newest)
    }

    /// Wakes the threads that wait for a transaction to end: none may.
    pub(crate) fn wake_all(&self) {
        for shard in &self.shards {
            drop(shard.state.lock().unwrap_or_else(PoisonError::into_inner));
            shard.ended.notify_all();
        }
    }

    /// Forgets which objects are absent, and lets nothing be learned from answers that are still to come. Nothing
    /// may be in flight.
    pub(crate) fn forget_absent(&self) {
        for shard in &self.shards {
            shard.state.lock().unwrap_or_else(PoisonError::into_inner).begun += 1;
        }
        self.absent.clear();
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel)
    }

    fn shard(&self, segment: u64) -> &Shard {
        &self.shards[segment as usize % SHARDS]
    }

    fn state(&self, segment: u64) -> MutexGuard<'_, State> {
        self.shard(segment).state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_written(&self, segment: u64, newest: u64) -> bool {
        self.segments.get(&segment).is_none_or(|here| {
            here.void.is_none_or(|void| void.since > newest) && here.slots.values().all(|s| s.since > newest)
        })
    }
}

impl Segment {
    /// Version `done` of a block is in the store: drops the slot unless it holds a later one, and gives what that
    /// frees.
    fn settle(&mut self, index: u64, done: u64) -> u64 {
        match self.slots.entry(index) {
            SlotEntry::Occupied(slot) if slot.get().version <= done => slot.remove().content.cost(),
            SlotEntry::Occupied(mut slot) => {
                let slot = slot.get_mut();
                slot.since = slot.since.max(done + 1);
                0
            }
            SlotEntry::Vacant(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_wish_to_empty_what_turned_out_absent_gives_back_what_both_cost() {
        let cache = Cache::new(1);
        assert!(cache.reserve(HOLE_COST, u64::MAX) && cache.put_void(0));
        let moment = cache.look(0, 0..1).moment.expect("no flight");
        cache.if_quiet(0, moment, || cache.set_absent(0));
        assert!(cache.reserve(HOLE_COST, u64::MAX));
        assert!(!cache.put_void(0));
        assert_eq!(cache.dirty_bytes(), 0);
    }
}
