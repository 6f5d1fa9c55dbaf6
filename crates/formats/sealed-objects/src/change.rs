//! A change of the blocks of one object: what a transaction writes, encrypted, before a layout
//! places its metadata.

use crate::segment::Segment;
use lacuna_contracts::BLOCK_SIZE;
use lacuna_crypto::Cipher;
use lacuna_medium::Step;
use std::ops::Range;

/// Consecutive blocks that a transaction changes alike.
pub(crate) struct Run {
    /// The first, by its index in the segment.
    pub(crate) index: u64,
    pub(crate) count: u64,
    pub(crate) fill: Fill,
}

/// What blocks become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// They get data.
    Data,
    /// They become unwritten.
    Hole,
    /// They held something that is gone: they are refused until they are written or discarded.
    /// Their entries are [`LOST`].
    Lost,
}

/// Every byte of the entry of a block that is lost. No ciphertext goes with such an entry.
pub(crate) const LOST: u8 = u8::MAX;

/// Whether entries of so many bytes are authenticated, so that one of [`LOST`] is refused.
pub(crate) fn can_refuse(meta: usize) -> bool {
    Cipher::ALL.into_iter().any(|cipher| cipher.authenticates() && cipher.meta_size() == meta)
}

/// What a transaction does to the blocks of one object.
pub(crate) struct Change {
    pub(crate) segment: Segment,
    /// Ascending; two that meet differ in `fill`.
    pub(crate) runs: Vec<Run>,
    /// The entries of all blocks of all runs; zeros for those that become unwritten.
    pub(crate) entries: Vec<u8>,
    /// Ciphertext, `slot` bytes for each block that gets data; where slots hold entries, also for
    /// each that is lost.
    pub(crate) sealed: Vec<u8>,
    /// The object is not there: what is not written reads as zeros.
    pub(crate) absent: bool,
}

impl Change {
    /// The blocks of each run.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.iter().map(|run| run.index..run.index + run.count)
    }

    /// How many blocks it changes.
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// Whether it does nothing, since the object is not there and gets no data.
    pub(crate) fn is_void(&self) -> bool {
        self.absent && self.runs.iter().all(|run| run.fill == Fill::Hole)
    }

    /// The steps that change the slots of the blocks, of `slot` bytes each.
    pub(crate) fn slot_steps(&self, slot: usize) -> Vec<Step<'_>> {
        let mut steps = Vec::with_capacity(self.runs.len() + 4);
        let mut sealed = &self.sealed[..];
        for run in &self.runs {
            let (offset, len) = (run.index * slot as u64, run.count * slot as u64);
            let has_slots = run.fill == Fill::Data || run.fill == Fill::Lost && slot > BLOCK_SIZE;
            if has_slots {
                let (data, rest) = sealed.split_at(len as usize);
                sealed = rest;
                steps.push(Step::Write { offset, data });
            } else if !self.absent {
                steps.push(Step::Zero { offset, len });
            }
        }
        steps
    }

    /// The same change, of an object that is not there, with every other of its first `count`
    /// blocks filled by `rest`.
    pub(crate) fn made_whole(&self, rest: Fill, count: u64, slot: usize, meta: usize) -> Change {
        let between = if rest == Fill::Lost { LOST } else { 0 };
        let mut entries = vec![between; count as usize * meta];
        let mut sealed = Vec::with_capacity(self.sealed.len());
        let mut runs = vec![];
        let (mut left, mut data) = (self.entries.chunks_exact(meta), self.sealed.chunks_exact(slot));
        let mut changed =
            self.runs.iter().flat_map(|run| (0..run.count).map(|n| (run.index + n, run.fill))).peekable();
        for (index, entry) in (0..count).zip(entries.chunks_exact_mut(meta)) {
            let fill = match changed.next_if(|(at, _)| *at == index) {
                Some((_, fill)) => {
                    entry.copy_from_slice(left.next().expect("an entry for each block"));
                    fill
                }
                None => rest,
            };
            match fill {
                Fill::Data => sealed.extend_from_slice(data.next().expect("a slot for each block with data")),
                Fill::Lost if slot > BLOCK_SIZE => {
                    sealed.resize(sealed.len() + BLOCK_SIZE, 0);
                    sealed.extend_from_slice(entry);
                }
                Fill::Lost | Fill::Hole => {}
            }
            extend(&mut runs, index, fill);
        }
        Change { segment: self.segment, runs, entries, sealed, absent: true }
    }
}

/// Adds a block to the run before it, if it is of the same kind and follows it.
pub(crate) fn extend(runs: &mut Vec<Run>, index: u64, fill: Fill) {
    match runs.last_mut() {
        Some(run) if run.fill == fill && run.index + run.count == index => run.count += 1,
        _ => runs.push(Run { index, count: 1, fill }),
    }
}
