//! Copy-on-write segments: second slots under construction, and segments about to become nowhere.
//!
//! Invariants: a copy-on-write segment's covered blocks are later than anything but the cache's newest; a frozen
//! copy-on-write segment is written by the committer alone; a segment's copy-on-write segment appears and disappears
//! only under all its chunk locks.

use lacuna_core::SEGMENT_BLOCKS;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What is to become of a segment at the next commit.
#[derive(Clone)]
pub(crate) enum CowSegment {
    /// It moves to a new slot, which a stream of writes is filling.
    Stream(Arc<Stream>),
    /// It was discarded whole: it reads as zeros and its slot will be freed.
    Void,
}

pub(crate) struct Stream {
    pub(crate) slot: u32,
    state: Mutex<StreamState>,
}

pub(crate) struct StreamState {
    covered: [u64; (SEGMENT_BLOCKS / 64) as usize],
    /// Metadata of all blocks of the segment; zeros where not covered.
    pub(crate) meta: Vec<u8>,
    pub(crate) frozen: bool,
}

impl Stream {
    pub(crate) fn new(slot: u32, meta_size: usize) -> Self {
        let state = StreamState {
            covered: [0; (SEGMENT_BLOCKS / 64) as usize],
            meta: vec![0; SEGMENT_BLOCKS as usize * meta_size],
            frozen: false,
        };
        Stream { slot, state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamState {
    pub(crate) fn covers(&self, index: u64) -> bool {
        self.covered[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    pub(crate) fn cover(&mut self, first: u64, count: u64, meta: &[u8]) {
        for index in first..first + count {
            self.covered[(index / 64) as usize] |= 1 << (index % 64);
        }
        let size = self.meta.len() / SEGMENT_BLOCKS as usize;
        let at = first as usize * size;
        self.meta[at..at + count as usize * size].copy_from_slice(meta);
    }

    pub(crate) fn uncover(&mut self, first: u64, count: u64) {
        for index in first..first + count {
            self.covered[(index / 64) as usize] &= !(1 << (index % 64));
        }
    }

    pub(crate) fn covered(&self) -> u64 {
        self.covered.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.covered() == SEGMENT_BLOCKS
    }
}

/// The copy-on-write segments of a disk.
#[derive(Default)]
pub(crate) struct CowSegments {
    open: RwLock<HashMap<u64, CowSegment>>,
    count: AtomicUsize,
}

impl CowSegments {
    pub(crate) fn get(&self, segment: u64) -> Option<CowSegment> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&segment).cloned()
    }

    pub(crate) fn insert(&self, segment: u64, cow_segment: CowSegment) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.insert(segment, cow_segment);
        self.count.store(open.len(), Ordering::Release);
    }

    pub(crate) fn remove(&self, segment: u64) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.remove(&segment);
        self.count.store(open.len(), Ordering::Release);
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// All of them, by segment.
    pub(crate) fn list(&self) -> Vec<(u64, CowSegment)> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<_> =
            open.iter().map(|(segment, cow_segment)| (*segment, cow_segment.clone())).collect();
        list.sort_unstable_by_key(|(segment, _)| *segment);
        list
    }

    /// How many streams are whole, and how many segments are void.
    pub(crate) fn ready(&self) -> (usize, usize) {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().fold((0, 0), |(full, void), cow_segment| match cow_segment {
            CowSegment::Stream(stream) => (full + usize::from(stream.state().is_full()), void),
            CowSegment::Void => (full, void + 1),
        })
    }
}
