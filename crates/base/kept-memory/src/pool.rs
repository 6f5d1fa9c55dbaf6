//! A pool: records of one size in a mapping.

use crate::layout::PoolPlace;
use crate::mapping::{Mapping, OwnedRange};
use lacuna_contracts::wipe;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};

/// The value of a record's first word while it is published; otherwise the word is 0.
const PUBLISHED: u64 = 1;

/// Records of one size.
pub struct KeptPool {
    mapping: Arc<Mapping>,
    place: PoolPlace,
    free: Mutex<FreeRecords>,
    /// Whether this process has left the memory to a successor.
    left: Arc<AtomicBool>,
    #[cfg(feature = "simulation")]
    observer: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

/// The records without an owner.
struct FreeRecords {
    /// Records that had an owner. The last one is taken first, so that few pages are in use.
    returned: Vec<u32>,
    /// The first record that never had an owner; all later ones never had one either.
    untouched: u32,
    /// Records that were published by a predecessor and are not taken yet.
    adopted: Vec<u32>,
}

impl KeptPool {
    /// The pool at a place. Records that were published there are [`KeptPool::take_adopted`]'s.
    /// `left` is shared by all pools of a memory.
    pub(crate) fn new(mapping: Arc<Mapping>, place: PoolPlace, left: Arc<AtomicBool>) -> KeptPool {
        let untouched = mapping.word(place.reached).load(Ordering::Acquire).min(place.layout.records.into());
        let mut free = FreeRecords { returned: vec![], untouched: untouched as u32, adopted: vec![] };
        for index in (0..free.untouched).rev() {
            let state = mapping.word(place.words_of(index).start);
            if state.load(Ordering::Acquire) == PUBLISHED {
                free.adopted.push(index);
            } else {
                free.returned.push(index);
            }
        }
        let pool = KeptPool {
            mapping,
            place,
            free: Mutex::new(free),
            left,
            #[cfg(feature = "simulation")]
            observer: Mutex::default(),
        };
        pool.wipe_unpublished();
        pool
    }

    /// A predecessor may have died while it wrote these records.
    fn wipe_unpublished(&self) {
        for index in &self.free.lock().returned {
            wipe(self.owned(*index).bytes_mut(&self.mapping));
        }
    }

    /// Takes a record of zeros, which is not published. `None` if all records have owners, or if
    /// the memory was left to a successor, which would not find the record.
    pub fn take(self: &Arc<Self>) -> Option<KeptRecord> {
        if self.is_left() {
            return None;
        }
        let mut free = self.free.lock();
        let index = match free.returned.pop() {
            Some(index) => index,
            None if free.untouched < self.place.layout.records => {
                free.untouched += 1;
                self.mapping.word(self.place.reached).store(free.untouched.into(), Ordering::Release);
                free.untouched - 1
            }
            None => return None,
        };
        drop(free);
        Some(self.record(index))
    }

    /// Takes the records that a predecessor published.
    pub fn take_adopted(self: &Arc<Self>) -> Vec<KeptRecord> {
        let adopted = std::mem::take(&mut self.free.lock().adopted);
        adopted.into_iter().map(|index| self.record(index)).collect()
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn observe_changes(&self, observer: Arc<dyn Fn() + Send + Sync>) {
        *self.observer.lock() = Some(observer);
    }

    /// Sets the word that says whether a record is published.
    fn set_state(&self, index: u32, state: u64) {
        if self.is_left() {
            return;
        }
        let word = self.mapping.word(self.place.words_of(index).start);
        #[cfg(feature = "simulation")]
        if word.load(Ordering::Acquire) != state
            && let Some(observer) = self.observer.lock().clone()
        {
            observer();
        }
        word.store(state, Ordering::Release);
        // The process may die at any instruction: no later write to the record may come before it.
        compiler_fence(Ordering::SeqCst);
    }

    fn record(self: &Arc<Self>, index: u32) -> KeptRecord {
        KeptRecord { range: self.owned(index), pool: self.clone(), index }
    }

    fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    fn owned(&self, index: u32) -> OwnedRange {
        OwnedRange::of_record(self.place.bytes_of(index))
    }
}

/// A record with its owner. It is withdrawn and wiped when it is dropped, unless the memory was
/// left to a successor.
pub struct KeptRecord {
    pool: Arc<KeptPool>,
    index: u32,
    range: OwnedRange,
}

impl KeptRecord {
    /// The words of the record. The owner gives them a meaning.
    pub fn words(&self) -> &[AtomicU64] {
        let words = self.pool.place.words_of(self.index);
        self.pool.mapping.words(words.start + 8, self.pool.place.layout.words as usize)
    }

    /// The bytes of the record.
    pub fn bytes(&self) -> &[u8] {
        self.range.bytes(&self.pool.mapping)
    }

    /// The bytes of the record, to be written. Unless every state of them is whole, the record must
    /// not be published.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.range.bytes_mut(&self.pool.mapping)
    }

    /// Makes a successor find the record.
    pub fn publish(&self) {
        self.pool.set_state(self.index, PUBLISHED);
    }

    /// Makes a successor not find the record.
    pub fn withdraw(&self) {
        self.pool.set_state(self.index, 0);
    }
}

impl Drop for KeptRecord {
    fn drop(&mut self) {
        if self.pool.is_left() {
            return;
        }
        self.withdraw();
        wipe(self.bytes_mut());
        self.pool.free.lock().returned.push(self.index);
    }
}
