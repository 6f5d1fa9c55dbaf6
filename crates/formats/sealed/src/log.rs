//! The log: appends to the journal, and lists its blocks that are not yet destaged.
//!
//! Invariant: a block is in the list as long as the cache has a committed version of it that is in
//! the journal. The journal is retired only when the list is empty, or up to a mark: the list was
//! empty there, or all of it was appended again behind it.

use crate::address::{SegmentNo, SlotNo};
use crate::caches::cache::{CommittedVersion, VersionNo, WriteCache};
use crate::counters::{Count, Counters};
use crate::journal::{Journal, JournalBatch, JournalMark};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Buffers of batches kept for reuse.
const BUFFERS: usize = 2;

/// The journal of an open disk and its blocks.
pub(crate) struct Log {
    journal: Journal,
    cache: Arc<WriteCache>,
    counters: Arc<Counters>,
    /// Blocks with a committed version that is not yet destaged.
    to_destage: BTreeSet<BlockAddr>,
    /// Bytes of batches kept in memory for these blocks.
    bytes_to_destage: u64,
    /// These batches, so that their buffers can be reused.
    batches: Vec<Arc<Vec<u8>>>,
    buffers: Vec<Vec<u8>>,
}

/// A batch under construction, with the versions to note in the cache once it is durable.
pub(crate) struct BatchDraft {
    batch: JournalBatch,
    notes: Vec<(BlockAddr, Option<VersionNo>, PendingVersion)>,
}

enum PendingVersion {
    Data { at: usize, meta: [u8; 32] },
    Hole,
}

impl Log {
    /// The log of a journal that was replayed.
    pub(crate) fn new(journal: Journal, cache: Arc<WriteCache>, counters: Arc<Counters>) -> Self {
        counters.set(Count::JournalUsed, journal.used());
        Log {
            journal,
            cache,
            counters,
            to_destage: BTreeSet::new(),
            bytes_to_destage: 0,
            batches: vec![],
            buffers: vec![],
        }
    }

    /// Adds a version from replay.
    pub(crate) fn add_replayed(&mut self, block: BlockAddr, committed: CommittedVersion) {
        self.cache.commit(block, None, committed);
        self.to_destage.insert(block);
    }

    /// A batch with room for `blocks` blocks.
    pub(crate) fn draft(&mut self, blocks: usize) -> BatchDraft {
        let buffer = self.buffers.pop().unwrap_or_default();
        BatchDraft {
            batch: JournalBatch::with_room(buffer, blocks, blocks),
            notes: Vec::with_capacity(blocks),
        }
    }

    /// Appends a batch durably, then updates the cache. It must fit.
    pub(crate) fn append(&mut self, draft: BatchDraft) -> Result<()> {
        if draft.batch.is_empty() {
            return Ok(());
        }
        let batch = self.journal.append(draft.batch)?;
        let len = batch.len() as u64;
        self.bytes_to_destage += len;
        self.counters.set(Count::JournalUsed, self.journal.used());
        self.counters.add(Count::Batches, 1);
        self.counters.add(Count::JournalBytes, len);
        if !draft.notes.is_empty() {
            self.batches.push(batch.clone());
        }
        for (block, version, note) in draft.notes {
            let committed = match note {
                PendingVersion::Data { at, meta } => {
                    CommittedVersion::Data { batch: batch.clone(), at, meta }
                }
                PendingVersion::Hole => CommittedVersion::Hole,
            };
            self.cache.commit(block, version, committed);
            self.to_destage.insert(block);
        }
        Ok(())
    }

    /// Appends remap records durably.
    pub(crate) fn append_moves(&mut self, moves: &[(SegmentNo, Option<SlotNo>)]) -> Result<()> {
        let mut draft = BatchDraft { batch: JournalBatch::with_room(vec![], moves.len(), 0), notes: vec![] };
        for (segment, slot) in moves {
            draft.batch.move_segment(*segment, *slot);
        }
        self.append(draft)
    }

    /// Appends the blocks of the list again, in batches of `batch_blocks`, so that everything
    /// before them can be retired. Does nothing if that would free less than half of the journal or
    /// there is no room.
    pub(crate) fn compact(&mut self, batch_blocks: usize) -> Result<()> {
        let blocks: Vec<BlockAddr> = self.to_destage.iter().copied().collect();
        let lens = blocks.chunks(batch_blocks).map(|part| JournalBatch::len_for(part.len(), part.len()));
        let (needed, longest) =
            lens.fold((0, 0), |(sum, most): (usize, usize), len| (sum + len, most.max(len)));
        // A batch that does not fit before the end of the region wastes less than its length.
        if needed as u64 > self.journal.used() / 2 || !self.journal.fits(needed + longest) {
            return Ok(());
        }
        let mark = self.journal.mark();
        for part in blocks.chunks(batch_blocks) {
            let mut draft = self.draft(part.len());
            for &block in part {
                match self.cache.committed(block) {
                    Some(CommittedVersion::Data { batch, at, meta }) => {
                        draft.data(block, None, |to, entry| {
                            to.copy_from_slice(&batch[at..at + BLOCK_SIZE]);
                            *entry = meta;
                        });
                    }
                    Some(CommittedVersion::Hole) => draft.hole(block, None),
                    None => {}
                }
            }
            self.append(draft)?;
        }
        self.journal.retire_before(mark)?;
        self.note_retirement();
        Ok(())
    }

    /// Retires the journal. All of it must be durable in its slots.
    pub(crate) fn retire(&mut self) -> Result<()> {
        self.journal.retire()?;
        self.note_retirement();
        Ok(())
    }

    /// The present end of the journal.
    pub(crate) fn mark(&self) -> JournalMark {
        self.journal.mark()
    }

    /// Retires everything before a mark, unless that was done since. All of it must be durable in
    /// its slots.
    pub(crate) fn retire_before(&mut self, mark: JournalMark) -> Result<()> {
        if !self.journal.is_retired(mark) {
            self.journal.retire_before(mark)?;
            self.note_retirement();
        }
        Ok(())
    }

    fn note_retirement(&self) {
        self.counters.set(Count::JournalUsed, self.journal.used());
        self.counters.add(Count::Retirements, 1);
    }

    /// Whether a batch of `len` bytes fits and leaves `kept` bytes free.
    pub(crate) fn fits(&self, len: usize, kept: usize) -> bool {
        self.journal.fits(len + kept)
    }

    /// Bytes reserved for a disk that is opened on a full medium.
    pub(crate) fn reserve(&self) -> usize {
        self.journal.reserve()
    }

    /// Bytes of the journal in use.
    pub(crate) fn used(&self) -> u64 {
        self.journal.used()
    }

    /// Bytes of batches kept in memory until their blocks are destaged.
    pub(crate) fn bytes_to_destage(&self) -> u64 {
        self.bytes_to_destage
    }

    /// Whether everything is destaged.
    pub(crate) fn is_destaged(&self) -> bool {
        self.to_destage.is_empty()
    }

    /// The segments with blocks in the list, in order.
    pub(crate) fn segments(&self) -> Vec<SegmentNo> {
        let mut segments: Vec<SegmentNo> =
            self.to_destage.iter().map(|block| SegmentNo::of(*block)).collect();
        segments.dedup();
        segments
    }

    /// Takes the list. Blocks that are not destaged must be put back.
    pub(crate) fn take_to_destage(&mut self) -> BTreeSet<BlockAddr> {
        std::mem::take(&mut self.to_destage)
    }

    /// Puts blocks back into the list.
    pub(crate) fn put_back(&mut self, blocks: impl IntoIterator<Item = BlockAddr>) {
        self.to_destage.extend(blocks);
    }

    /// Drops the journal's blocks of a segment that moved: they are void.
    pub(crate) fn drop_segment(&mut self, segment: SegmentNo) {
        let gone: Vec<BlockAddr> = self.to_destage.range(segment.blocks()).copied().collect();
        for block in gone {
            self.cache.drop_committed(block);
            self.to_destage.remove(&block);
        }
    }

    /// Notes that the list was destaged as far as possible: reclaims the buffers of batches that
    /// are no longer referenced.
    pub(crate) fn recycle_buffers(&mut self) {
        self.bytes_to_destage = 0;
        for batch in std::mem::take(&mut self.batches) {
            match Arc::try_unwrap(batch) {
                Ok(buffer) if self.buffers.len() < BUFFERS => self.buffers.push(buffer),
                Ok(_) => {}
                Err(in_use) => self.batches.push(in_use),
            }
        }
    }
}

impl BatchDraft {
    /// Adds a block; `fill` writes its ciphertext and its metadata in place.
    pub(crate) fn data(
        &mut self,
        block: BlockAddr,
        version: Option<VersionNo>,
        fill: impl FnOnce(&mut [u8], &mut [u8; 32]),
    ) {
        let mut entry = [0; 32];
        let at = self.batch.write(block, |to, meta| {
            fill(to, meta);
            entry = *meta;
        });
        self.notes.push((block, version, PendingVersion::Data { at, meta: entry }));
    }

    /// Adds an unwritten block.
    pub(crate) fn hole(&mut self, block: BlockAddr, version: Option<VersionNo>) {
        self.batch.erase(block, 1);
        self.notes.push((block, version, PendingVersion::Hole));
    }
}
