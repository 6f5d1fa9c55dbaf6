//! The layout `segment-end`: the entries of an object follow all its blocks (the paper's *object
//! end*).

use crate::layouts::chain::ChainTails;
use crate::layouts::chunks::ChunkSet;
use crate::layouts::metadata_pages::FetchedPages;
use crate::layouts::placement::{DATA_END, EntrySource, Placement};
use crate::writing::object_change::ObjectChange;
use lacuna_medium::ObjectStep;
use std::ops::Range;

pub(crate) struct SegmentEnd {
    meta: usize,
}

impl SegmentEnd {
    pub(crate) fn new(meta: usize) -> Self {
        SegmentEnd { meta }
    }

    fn at(&self, index: u64) -> u64 {
        DATA_END + index * self.meta as u64
    }
}

impl Placement for SegmentEnd {
    fn add_steps<'a>(
        &self,
        change: &'a ObjectChange,
        _: FetchedPages,
        _: &mut ChainTails,
        steps: &mut Vec<ObjectStep<'a>>,
    ) {
        if self.meta == 0 {
            return;
        }
        let mut left = &change.entries[..];
        // Entries of adjacent blocks go in one piece, whether the blocks get data or lose it.
        let mut runs = change.runs.iter().peekable();
        while let Some(first) = runs.next() {
            let mut end = first.index + first.count;
            while let Some(next) = runs.next_if(|next| next.index == end) {
                end += next.count;
            }
            let (data, rest) = left.split_at((end - first.index) as usize * self.meta);
            left = rest;
            steps.push(ObjectStep::Write { offset: self.at(first.index), data });
        }
    }

    fn source(&self, range: &Range<u64>, _: ChunkSet) -> EntrySource {
        EntrySource::Bytes(self.at(range.start))
    }
}
