//! Tracks the ranges of a file that may be only in the system's cache, and the ranges being read
//! past it.
//!
//! Deniability contract: before the system reads a range past its cache, it writes every cached
//! part of the range that is not on the medium yet. Reads for hidden levels must not determine when
//! bytes reach the medium. So a written range is read through the cache until it is synced, and a
//! write waits for the direct reads of its range in progress.
//!
//! Invariant: no part is read past the cache during a write to it, or after such a write until a
//! sync.

use parking_lot::{Condvar, Mutex};
use std::ops::RangeInclusive;

/// The file is divided into this number of parts, each synced or not: 32 KiB of memory for any
/// file.
const PARTS: usize = 1 << 18;
/// The size of a part is a multiple of this many bytes, the size of a huge page: a system may cache
/// and write neighbouring bytes of a huge page together.
const PIECE: u64 = 2 << 20;

/// One bit per part.
type Bits = Vec<u64>;

/// The state of one file, for all handles of this process on it.
pub(crate) struct UnsyncedRanges {
    /// Bytes per part.
    part: u64,
    state: Mutex<UnsyncedState>,
    /// Notified when a read ends.
    ended: Condvar,
}

struct UnsyncedState {
    /// The written parts that neither a successful sync nor the sync in progress covers.
    written: Bits,
    /// The parts that the sync in progress covers.
    syncing: Option<Bits>,
    /// The parts of each range being written.
    writing: Vec<RangeInclusive<usize>>,
    /// The parts of each read in progress.
    reading: Vec<RangeInclusive<usize>>,
}

impl UnsyncedState {
    fn is_unsynced(&self, parts: &RangeInclusive<usize>) -> bool {
        let has = |bits: &[u64], part: usize| (bits[part / 64] >> (part % 64)) & 1 == 1;
        let is_syncing = |part| self.syncing.as_ref().is_some_and(|bits| has(bits, part));
        self.writing.iter().any(|place| overlap(place, parts))
            || parts.clone().any(|part| has(&self.written, part) || is_syncing(part))
    }
}

/// Whether two ranges have a common part.
fn overlap(one: &RangeInclusive<usize>, other: &RangeInclusive<usize>) -> bool {
    one.start() <= other.end() && other.start() <= one.end()
}

/// A write in progress, until it is dropped.
pub(crate) struct WriteInProgress<'a> {
    places: &'a UnsyncedRanges,
    parts: Vec<RangeInclusive<usize>>,
}

/// A sync in progress. If it never ends, nothing becomes synced.
pub(crate) struct SyncInProgress<'a>(&'a UnsyncedRanges);

/// A read past the cache in progress, until it is dropped.
pub(crate) struct ReadInProgress<'a> {
    places: &'a UnsyncedRanges,
    parts: RangeInclusive<usize>,
}

impl UnsyncedRanges {
    /// For a file of `len` bytes with no part known to be synced.
    pub(crate) fn new(len: u64) -> UnsyncedRanges {
        let written = vec![u64::MAX; PARTS / 64];
        let state = UnsyncedState { written, syncing: None, writing: Vec::new(), reading: Vec::new() };
        let part = len.div_ceil(PARTS as u64).next_multiple_of(PIECE).max(PIECE);
        UnsyncedRanges { part, state: Mutex::new(state), ended: Condvar::new() }
    }

    /// The parts that a range lies in. Bytes beyond all parts count as the last part.
    fn parts(&self, offset: u64, len: u64) -> RangeInclusive<usize> {
        let part = |at: u64| ((at / self.part) as usize).min(PARTS - 1);
        part(offset)..=part(offset.saturating_add(len.max(1) - 1))
    }

    /// Announces writes to ranges, each an offset and a length. Waits for the reads of them in
    /// progress.
    pub(crate) fn begin_write(&self, places: impl Iterator<Item = (u64, u64)>) -> WriteInProgress<'_> {
        let parts: Vec<_> = places.map(|(offset, len)| self.parts(offset, len)).collect();
        let mut state = self.state.lock();
        state.writing.extend(parts.iter().cloned());
        while state.reading.iter().any(|read| parts.iter().any(|place| overlap(read, place))) {
            self.ended.wait(&mut state);
        }
        WriteInProgress { places: self, parts }
    }

    /// Announces a sync of all earlier writes; ranges being written meanwhile stay unsynced. `None`
    /// if another sync is in progress: a later sync then records the result.
    pub(crate) fn begin_sync(&self) -> Option<SyncInProgress<'_>> {
        let mut state = self.state.lock();
        if state.syncing.is_some() {
            return None;
        }
        state.syncing = Some(std::mem::replace(&mut state.written, vec![0; PARTS / 64]));
        Some(SyncInProgress(self))
    }

    /// Starts a read of a range past the cache. `None` if the cache may hold data of the range that
    /// the medium does not have.
    pub(crate) fn begin_read(&self, offset: u64, len: u64) -> Option<ReadInProgress<'_>> {
        let parts = self.parts(offset, len);
        let mut state = self.state.lock();
        if state.is_unsynced(&parts) {
            return None;
        }
        state.reading.push(parts.clone());
        Some(ReadInProgress { places: self, parts })
    }
}

impl SyncInProgress<'_> {
    /// Ends the sync; `synced` tells whether it succeeded.
    pub(crate) fn end(self, synced: bool) {
        let mut state = self.0.state.lock();
        let taken = state.syncing.take().filter(|_| !synced);
        for (word, bits) in state.written.iter_mut().zip(taken.into_iter().flatten()) {
            *word |= bits;
        }
    }
}

impl Drop for WriteInProgress<'_> {
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

impl Drop for ReadInProgress<'_> {
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

    fn synced(len: u64) -> UnsyncedRanges {
        let places = UnsyncedRanges::new(len);
        places.begin_sync().unwrap().end(true);
        places
    }

    #[test]
    fn unsynced_ranges_are_not_read_past_the_cache() {
        let places = UnsyncedRanges::new(1 << 30);
        let may_read = |offset, len| places.begin_read(offset, len).is_some();
        assert!(!may_read(0, 4096), "earlier writes count as unsynced");
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
    fn a_sync_covers_only_writes_that_ended_before_it() {
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
    fn every_byte_of_a_large_file_belongs_to_a_part() {
        let len = (3 << 40) + 4096;
        let places = synced(len);
        drop(places.begin_write(once((len - 1, 1))));
        assert!(places.begin_read(len - 1, 1).is_none() && places.begin_read(0, len / 2).is_some());
        drop(places.begin_write(once((0, u64::MAX))));
        assert!(places.begin_read(len / 2, 1).is_none());
    }

    #[test]
    fn a_write_waits_only_for_reads_of_its_range() {
        let places = synced(1 << 30);
        let reading = places.begin_read(PIECE, 2 * PIECE).unwrap();
        let elsewhere = places.begin_read(9 * PIECE, 4096).unwrap();
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _writing = places.begin_write(once((2 * PIECE, 4096)));
                sender.send(()).unwrap();
            });
            // The writer has announced its range, and waits.
            while places.begin_read(2 * PIECE, 4096).is_some() {
                std::thread::yield_now();
            }
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            drop(reading);
            receiver.recv().unwrap();
        });
        // The read elsewhere is still in progress and did not block the write. The written range is
        // unsynced.
        let waits = places.begin_read(2 * PIECE, 1);
        assert!(waits.is_none(), "the written range is unsynced");
        drop(elsewhere);
    }
}
