//! Which places of a file the system may have in its cache alone, and which are being read past the
//! cache.
//!
//! Deniability contract: before the system reads a place past its cache, it writes whatever piece
//! of the cache lies there and is not on the medium yet. When bytes reach the medium must not
//! follow from what is read for hidden levels. So a place that was written is read through the
//! cache until it is synced, and a write waits for the reads of its place that are under way.
//!
//! Invariant: no part is being read past the cache in which something is being written, or was
//! written and is not synced.

use parking_lot::{Condvar, Mutex};
use std::ops::RangeInclusive;

/// Parts of a file of which each is synced or not: 32 KiB of memory, however long the file is.
const PARTS: usize = 1 << 18;
/// Parts have a multiple of this many bytes: a huge page, in which a system may keep neighbouring
/// bytes and write them together.
const PIECE: u64 = 2 << 20;

/// A bit for each part.
type Bits = Vec<u64>;

/// The places of one file, for all handles of this process on it.
pub(crate) struct Unsynced {
    /// Bytes of a part.
    part: u64,
    state: Mutex<State>,
    /// A read has ended.
    ended: Condvar,
}

struct State {
    /// What was written since the last sync that takes it along.
    written: Bits,
    /// What the sync under way takes along.
    syncing: Option<Bits>,
    /// The parts of each place that is being written.
    writing: Vec<RangeInclusive<usize>>,
    /// The parts of each read that is under way.
    reading: Vec<RangeInclusive<usize>>,
}

impl State {
    fn is_unsynced(&self, parts: &RangeInclusive<usize>) -> bool {
        let has = |bits: &[u64], part: usize| (bits[part / 64] >> (part % 64)) & 1 == 1;
        let is_syncing = |part| self.syncing.as_ref().is_some_and(|bits| has(bits, part));
        self.writing.iter().any(|place| meet(place, parts))
            || parts.clone().any(|part| has(&self.written, part) || is_syncing(part))
    }
}

/// Whether two ranges have a part in common.
fn meet(one: &RangeInclusive<usize>, other: &RangeInclusive<usize>) -> bool {
    one.start() <= other.end() && other.start() <= one.end()
}

/// A write that is under way, until it is dropped.
pub(crate) struct Writing<'a> {
    places: &'a Unsynced,
    parts: Vec<RangeInclusive<usize>>,
}

/// A sync that is under way. One that does not end makes nothing synced.
pub(crate) struct Syncing<'a>(&'a Unsynced);

/// A read past the cache that is under way, until it is dropped.
pub(crate) struct Reading<'a> {
    places: &'a Unsynced,
    parts: RangeInclusive<usize>,
}

impl Unsynced {
    /// Of a file of `len` bytes, of which nothing is known to be synced yet.
    pub(crate) fn new(len: u64) -> Unsynced {
        let written = vec![u64::MAX; PARTS / 64];
        let state = State { written, syncing: None, writing: Vec::new(), reading: Vec::new() };
        let part = len.div_ceil(PARTS as u64).next_multiple_of(PIECE).max(PIECE);
        Unsynced { part, state: Mutex::new(state), ended: Condvar::new() }
    }

    /// The parts that a place lies in. What lies beyond all of them counts as the last one.
    fn parts(&self, offset: u64, len: u64) -> RangeInclusive<usize> {
        let part = |at: u64| ((at / self.part) as usize).min(PARTS - 1);
        part(offset)..=part(offset.saturating_add(len.max(1) - 1))
    }

    /// Places, each an offset and a length, are going to be written. Waits for the reads of them
    /// that are under way.
    pub(crate) fn begin_write(&self, places: impl Iterator<Item = (u64, u64)>) -> Writing<'_> {
        let parts: Vec<_> = places.map(|(offset, len)| self.parts(offset, len)).collect();
        let mut state = self.state.lock();
        state.writing.extend(parts.iter().cloned());
        while state.reading.iter().any(|read| parts.iter().any(|place| meet(read, place))) {
            self.ended.wait(&mut state);
        }
        Writing { places: self, parts }
    }

    /// Everything that was written is going to be synced; what is being written meanwhile counts as
    /// not synced. None if another sync is under way: what is synced is known after a later one.
    pub(crate) fn begin_sync(&self) -> Option<Syncing<'_>> {
        let mut state = self.state.lock();
        if state.syncing.is_some() {
            return None;
        }
        state.syncing = Some(std::mem::replace(&mut state.written, vec![0; PARTS / 64]));
        Some(Syncing(self))
    }

    /// Begins to read a place past the cache. None if the cache may hold something of it that the
    /// medium does not have.
    pub(crate) fn begin_read(&self, offset: u64, len: u64) -> Option<Reading<'_>> {
        let parts = self.parts(offset, len);
        let mut state = self.state.lock();
        if state.is_unsynced(&parts) {
            return None;
        }
        state.reading.push(parts.clone());
        Some(Reading { places: self, parts })
    }
}

impl Syncing<'_> {
    /// The sync has ended, and whether it succeeded.
    pub(crate) fn end(self, synced: bool) {
        let mut state = self.0.state.lock();
        let taken = state.syncing.take().filter(|_| !synced);
        for (word, bits) in state.written.iter_mut().zip(taken.into_iter().flatten()) {
            *word |= bits;
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut state = self.places.state.lock();
        for parts in &self.parts {
            // A sync that began before the end of this write may have missed it.
            for part in parts.clone() {
                state.written[part / 64] |= 1 << (part % 64);
            }
            if let Some(at) = state.writing.iter().position(|place| place == parts) {
                state.writing.swap_remove(at);
            }
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.places.state.lock();
        if let Some(at) = state.reading.iter().position(|parts| *parts == self.parts) {
            state.reading.swap_remove(at);
        }
        drop(state);
        self.places.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::once;
    use std::sync::mpsc::{TryRecvError, channel};

    fn synced(len: u64) -> Unsynced {
        let places = Unsynced::new(len);
        places.begin_sync().unwrap().end(true);
        places
    }

    #[test]
    fn what_is_not_synced_is_not_read_past_the_cache() {
        let places = Unsynced::new(1 << 30);
        let may_read = |offset, len| places.begin_read(offset, len).is_some();
        assert!(!may_read(0, 4096), "what was written before is not known to be synced");
        places.begin_sync().unwrap().end(true);
        assert!(may_read(0, 1 << 30));
        let written = [(3 * PIECE, 4096), (5 * PIECE - 1, 2), (1 << 40, 64)];
        drop(places.begin_write(written.into_iter()));
        assert!(may_read(0, 3 * PIECE) && may_read(6 * PIECE, 20 * PIECE));
        for part in [3, 4, 5] {
            assert!(!may_read(part * PIECE, 1) && !may_read((part + 1) * PIECE - 1, 1), "{part}");
        }
        assert!(!may_read(0, u64::MAX) && !may_read(1 << 41, 1));
        places.begin_sync().unwrap().end(false);
        assert!(!may_read(3 * PIECE, 1));
        places.begin_sync().unwrap().end(true);
        assert!(may_read(0, u64::MAX));
    }

    #[test]
    fn a_sync_takes_along_what_ended_before_it() {
        let places = synced(1 << 30);
        let may_read = |part: u64| places.begin_read(part * PIECE, 1).is_some();
        let writing = places.begin_write(once((0, 1)));
        assert!(!may_read(0) && may_read(1), "a write is under way");
        places.begin_sync().unwrap().end(true);
        assert!(!may_read(0), "the write may have ended after the sync began");
        drop(writing);
        assert!(!may_read(0));
        let sync = places.begin_sync().unwrap();
        drop(places.begin_write(once((PIECE, 1))));
        assert!(places.begin_sync().is_none(), "a sync is under way");
        assert!(!may_read(0) && !may_read(1) && may_read(2));
        sync.end(true);
        assert!(may_read(0) && !may_read(1));
    }

    #[test]
    fn every_place_of_a_large_file_is_in_a_part() {
        let len = (3 << 40) + 4096;
        let places = synced(len);
        drop(places.begin_write(once((len - 1, 1))));
        assert!(places.begin_read(len - 1, 1).is_none() && places.begin_read(0, len / 2).is_some());
        drop(places.begin_write(once((0, u64::MAX))));
        assert!(places.begin_read(len / 2, 1).is_none());
    }

    #[test]
    fn a_write_waits_for_the_reads_of_its_place_alone() {
        let places = synced(1 << 30);
        let reading = places.begin_read(PIECE, 2 * PIECE).unwrap();
        let elsewhere = places.begin_read(9 * PIECE, 4096).unwrap();
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _writing = places.begin_write(once((2 * PIECE, 4096)));
                tell.send(()).unwrap();
            });
            // The writer has noted its place, and waits.
            while places.begin_read(2 * PIECE, 4096).is_some() {
                std::thread::yield_now();
            }
            assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
            drop(reading);
            told.recv().unwrap();
        });
        // A write that waits holds up no other.
        let waits = places.begin_read(2 * PIECE, 1);
        assert!(waits.is_none(), "what was written is not synced");
        drop(elsewhere);
    }
}
