//! The layout `segment-end`: the entries of an object follow all its blocks (the paper's *object
//! end*).

use crate::chain::Tails;
use crate::change::Change;
use crate::chunks::Chunks;
use crate::pages::Learned;
use crate::placement::{DATA_END, Placement, Source};
use lacuna_medium::Step;
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
    fn write<'a>(&self, change: &'a Change, _: Learned, _: &mut Tails, steps: &mut Vec<Step<'a>>) {
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
            steps.push(Step::Write { offset: self.at(first.index), data });
        }
    }

    fn source(&self, range: &Range<u64>, _: Chunks) -> Source {
        Source::Bytes(self.at(range.start))
    }
}
