//! One bit per segment: whether its object is known not to be in the store. 32 KiB per TiB of disk.

use crate::segment::Segment;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct AbsentObjects(Box<[AtomicU64]>);

impl AbsentObjects {
    /// Nothing is known about any of the `segments` objects.
    pub(crate) fn unknown(segments: u64) -> Self {
        AbsentObjects((0..segments.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn get(&self, segment: Segment) -> bool {
        self.word(segment).load(Ordering::Acquire) & bit(segment) != 0
    }

    pub(crate) fn set(&self, segment: Segment) {
        self.word(segment).fetch_or(bit(segment), Ordering::AcqRel);
    }

    /// Clears a bit and returns its old value.
    pub(crate) fn take(&self, segment: Segment) -> bool {
        self.word(segment).fetch_and(!bit(segment), Ordering::AcqRel) & bit(segment) != 0
    }

    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    fn word(&self, segment: Segment) -> &AtomicU64 {
        &self.0[(segment.0 / 64) as usize]
    }
}

fn bit(segment: Segment) -> u64 {
    1 << (segment.0 % 64)
}
