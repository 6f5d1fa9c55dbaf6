//! The counters of a disk for `status`.

use std::sync::atomic::{AtomicU64, Ordering};

/// One count.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    /// Batches appended to the journal.
    Batches,
    /// Their bytes.
    JournalBytes,
    /// Bytes of the journal in use.
    JournalUsed,
    /// How often the journal tail moved.
    Retirements,
    /// Blocks that were destaged.
    Destaged,
    /// Segments that changed their slot.
    Moves,
    /// 1 if checkpoints are made beside commits, through a second handle on the medium.
    BesideCommits,
    /// Batches that opening replayed.
    Replayed,
}

/// All counts, by [`Count`].
#[derive(Default)]
pub(crate) struct Counters([AtomicU64; Count::Replayed as usize + 1]);

impl Counters {
    /// Adds to a count.
    pub(crate) fn add(&self, count: Count, more: u64) {
        self.0[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    /// Sets a count.
    pub(crate) fn set(&self, count: Count, value: u64) {
        self.0[count as usize].store(value, Ordering::Relaxed);
    }

    /// The value of a count.
    pub(crate) fn get(&self, count: Count) -> u64 {
        self.0[count as usize].load(Ordering::Relaxed)
    }
}
