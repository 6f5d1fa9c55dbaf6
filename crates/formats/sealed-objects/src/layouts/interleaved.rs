//! The layout `interleaved`: the entry of each block right behind it (the paper's *unaligned*).

use crate::layouts::chain::ChainTails;
use crate::layouts::chunks::ChunkSet;
use crate::layouts::metadata_pages::FetchedPages;
use crate::layouts::placement::{EntrySource, Placement};
use crate::writing::object_change::ObjectChange;
use lacuna_contracts::BLOCK_SIZE;
use lacuna_medium::ObjectStep;
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

    fn add_steps<'a>(
        &self,
        _: &'a ObjectChange,
        _: FetchedPages,
        _: &mut ChainTails,
        _: &mut Vec<ObjectStep<'a>>,
    ) {
        // The slots hold the entries.
    }

    fn source(&self, _: &Range<u64>, _: ChunkSet) -> EntrySource {
        EntrySource::Slots
    }
}
