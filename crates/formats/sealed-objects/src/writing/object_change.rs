//! A change of the blocks of one object: the encrypted content of a transaction, before a layout
//! places its metadata.

use crate::segment::Segment;
use lacuna_contracts::BLOCK_SIZE;
use lacuna_crypto::Cipher;
use lacuna_medium::ObjectStep;
use std::ops::Range;

/// Consecutive blocks with the same kind of change.
pub(crate) struct BlockRun {
    /// The index of the first block in the segment.
    pub(crate) index: u64,
    pub(crate) count: u64,
    pub(crate) fill: Fill,
}

/// The new state of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// They get data.
    Data,
    /// They become unwritten.
    Hole,
    /// Their previous content is gone: reads fail until they are written or discarded. Their
    /// entries are [`LOST_BYTE`].
    Lost,
}

/// Every byte of the entry of a lost block. No ciphertext belongs to such an entry.
pub(crate) const LOST_BYTE: u8 = u8::MAX;

/// Whether entries of this length are authenticated, so that an entry of [`LOST_BYTE`] bytes is
/// rejected.
pub(crate) fn is_authenticated(meta: usize) -> bool {
    Cipher::ALL.into_iter().any(|cipher| cipher.authenticates() && cipher.meta_size() == meta)
}

/// The changes of one transaction to the blocks of one object.
pub(crate) struct ObjectChange {
    pub(crate) segment: Segment,
    /// Ascending; adjacent runs differ in `fill`.
    pub(crate) runs: Vec<BlockRun>,
    /// The entries of all blocks of all runs; zeros for blocks that become unwritten.
    pub(crate) entries: Vec<u8>,
    /// Ciphertext, `slot` bytes for each block that gets data; if slots hold entries, also for each
    /// lost block.
    pub(crate) ciphertext: Vec<u8>,
    /// The object does not exist: blocks that are not written read as zeros.
    pub(crate) absent: bool,
}

impl ObjectChange {
    /// The blocks of each run.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.iter().map(|run| run.index..run.index + run.count)
    }

    /// The number of changed blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// Whether the change does nothing: the object does not exist and gets no data.
    pub(crate) fn is_noop(&self) -> bool {
        self.absent && self.runs.iter().all(|run| run.fill == Fill::Hole)
    }

    /// The steps that change the slots of the blocks, of `slot` bytes each.
    pub(crate) fn slot_steps(&self, slot: usize) -> Vec<ObjectStep<'_>> {
        let mut steps = Vec::with_capacity(self.runs.len() + 4);
        let mut ciphertext = &self.ciphertext[..];
        for run in &self.runs {
            let (offset, len) = (run.index * slot as u64, run.count * slot as u64);
            let has_slots = run.fill == Fill::Data || run.fill == Fill::Lost && slot > BLOCK_SIZE;
            if has_slots {
                let (data, rest) = ciphertext.split_at(len as usize);
                ciphertext = rest;
                steps.push(ObjectStep::Write { offset, data });
            } else if !self.absent {
                steps.push(ObjectStep::Zero { offset, len });
            }
        }
        steps
    }

    /// The same change for an object that does not exist, with the remaining blocks of the first
    /// `count` filled by `rest`.
    pub(crate) fn whole_object(&self, rest: Fill, count: u64, slot: usize, meta: usize) -> ObjectChange {
        let between = if rest == Fill::Lost { LOST_BYTE } else { 0 };
        let mut entries = vec![between; count as usize * meta];
        let mut ciphertext = Vec::with_capacity(self.ciphertext.len());
        let mut runs = vec![];
        let (mut left, mut data) = (self.entries.chunks_exact(meta), self.ciphertext.chunks_exact(slot));
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
                Fill::Data => {
                    ciphertext.extend_from_slice(data.next().expect("a slot for each block with data"));
                }
                Fill::Lost if slot > BLOCK_SIZE => {
                    ciphertext.resize(ciphertext.len() + BLOCK_SIZE, 0);
                    ciphertext.extend_from_slice(entry);
                }
                Fill::Lost | Fill::Hole => {}
            }
            append_block(&mut runs, index, fill);
        }
        ObjectChange { segment: self.segment, runs, entries, ciphertext, absent: true }
    }
}

/// Appends a block to the last run, if it is adjacent and has the same fill.
pub(crate) fn append_block(runs: &mut Vec<BlockRun>, index: u64, fill: Fill) {
    match runs.last_mut() {
        Some(run) if run.fill == fill && run.index + run.count == index => run.count += 1,
        _ => runs.push(BlockRun { index, count: 1, fill }),
    }
}
