//! The layout `interleaved`: the entry of each block right behind it (the paper's *unaligned*).

use crate::chain::Tails;
use crate::change::Change;
use crate::chunks::Chunks;
use crate::pages::Learned;
use crate::placement::{Placement, Source};
use lacuna_contracts::BLOCK_SIZE;
use lacuna_medium::Step;
use std::ops::Range;

pub(crate) struct Interleaved {
    meta: usize,
}

impl Interleaved {
    pub(crate) fn new(meta: usize) -> Self {
        Interleaved { meta }
    }
}

impl Placement for Interleaved {
    fn slot(&self) -> usize {
        BLOCK_SIZE + self.meta
    }

    fn write<'a>(&self, _: &'a Change, _: Learned, _: &mut Tails, _: &mut Vec<Step<'a>>) {
        // The slots hold the entries.
    }

    fn source(&self, _: &Range<u64>, _: Chunks) -> Source {
        Source::Slots
    }
}
