//! Shadows: second homes under construction, and segments about to become nowhere.
//!
//! Invariants: a shadow's covered blocks are later than anything but the cache's newest; a frozen shadow is
//! written by the committer alone; a segment's shadow appears and disappears only under all its chunk locks.

use lacuna_core::SEGMENT_BLOCKS;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What is to become of a segment at the next commit.
#[derive(Clone)]
pub(crate) enum Shadow {
    /// It moves to a new home, which a stream of writes is filling.
    Stream(Arc<Stream>),
    /// It was discarded whole: it reads as zeros and its home will be freed.
    Void,
}

pub(crate) struct Stream {
    pub(crate) home: u32,
    state: Mutex<StreamState>,
}

pub(crate) struct StreamState {
    covered: [u64; (SEGMENT_BLOCKS / 64) as usize],
    /// Metadata of all blocks of the segment; zeros where not covered.
    pub(crate) meta: Vec<u8>,
    pub(crate) frozen: bool,
}

impl Stream {
    pub(crate) fn new(home: u32, meta_size: usize) -> Self {
        let state = StreamState {
            covered: [0; (SEGMENT_BLOCKS / 64) as usize],
            meta: vec![0; SEGMENT_BLOCKS as usize * meta_size],
            frozen: false,
        };
        Stream { home, state: Mutex::new(state) }
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

/// The shadows of a disk.
#[derive(Default)]
pub(crate) struct Shadows {
    open: RwLock<HashMap<u64, Shadow>>,
    count: AtomicUsize,
}

impl Shadows {
    pub(crate) fn get(&self, segment: u64) -> Option<Shadow> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&segment).cloned()
    }

    pub(crate) fn insert(&self, segment: u64, shadow: Shadow) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.insert(segment, shadow);
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
    pub(crate) fn list(&self) -> Vec<(u64, Shadow)> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<_> = open.iter().map(|(segment, shadow)| (*segment, shadow.clone())).collect();
        list.sort_unstable_by_key(|(segment, _)| *segment);
        list
    }

    /// How many streams are whole, and how many segments are void.
    pub(crate) fn ready(&self) -> (usize, usize) {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().fold((0, 0), |(full, void), shadow| match shadow {
            Shadow::Stream(stream) => (full + usize::from(stream.state().is_full()), void),
            Shadow::Void => (full, void + 1),
        })
    }
}
