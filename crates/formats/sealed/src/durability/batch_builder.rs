//! Gathers the batches of a commit: the cache's newest blocks, encrypted, and the blocks of streams
//! that are not worth a move.

use crate::address::{CHUNK_BLOCKS, SegmentNo, index_of, run};
use crate::caches::cache::{BlockContent, VersionNo, WriteCache};
use crate::caches::scratch::with_scratch;
use crate::log::{BatchDraft, Log};
use crate::sealer::Sealer;
use crate::segments::Segments;
use crate::segments::cow_segment::{CowSegment, Stream};
use crate::slot_store::SlotStore;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Result};
use lacuna_crypto::is_zero;
use std::sync::Arc;

/// Gathers batches. Used under the commit lock only.
pub(crate) struct BatchBuilder {
    cache: Arc<WriteCache>,
    segments: Arc<Segments>,
    store: Arc<SlotStore>,
    sealer: Arc<Sealer>,
}

impl BatchBuilder {
    pub(crate) fn new(
        cache: Arc<WriteCache>,
        segments: Arc<Segments>,
        store: Arc<SlotStore>,
        sealer: Arc<Sealer>,
    ) -> Self {
        BatchBuilder { cache, segments, store, sealer }
    }

    /// The blocks that became dirty since the last call.
    pub(crate) fn take_dirty(&self) -> Vec<BlockAddr> {
        self.cache.take_dirty()
    }

    /// All blocks with a version that is only in memory.
    pub(crate) fn all_dirty(&self) -> Vec<BlockAddr> {
        self.cache.all_dirty()
    }

    /// Whether any block has a version that is only in memory.
    pub(crate) fn is_dirty(&self) -> bool {
        self.cache.dirty_bytes() > 0
    }

    /// A batch of the newest versions of these blocks. No lock is held while they are encrypted.
    pub(crate) fn newest(&self, log: &mut Log, blocks: &[BlockAddr]) -> BatchDraft {
        let mut draft = log.draft(blocks.len());
        for &block in blocks {
            match self.newest_of(block) {
                None => {}
                Some((BlockContent::Hole, version)) => draft.hole(block, Some(version)),
                Some((BlockContent::Data(plain), version)) => draft.data(block, Some(version), |to, meta| {
                    self.sealer.seal(block, plain.bytes(), to, &mut meta[..self.sealer.meta_len(1)]);
                }),
            }
        }
        draft
    }

    /// The newest version of a block, if it may be committed now.
    fn newest_of(&self, block: BlockAddr) -> Option<(BlockContent, VersionNo)> {
        // The lock keeps a discard of the whole segment from happening between the two lookups.
        let _reading = self.segments.shared(block);
        if let Some(CowSegment::PendingDiscard) = self.segments.cow_segment(SegmentNo::of(block)) {
            // The record of the discard is not written yet and would void this block as well.
            self.cache.relist_dirty(block);
            return None;
        }
        self.cache.newest(block)
    }

    /// A batch of blocks that a frozen stream covers, given by their indices in its segment.
    pub(crate) fn covered(
        &self,
        log: &mut Log,
        segment: SegmentNo,
        stream: &Stream,
        indices: &[u64],
    ) -> Result<BatchDraft> {
        let mut draft = log.draft(indices.len());
        let neighbours = indices.chunk_by(|a, b| a + 1 == *b);
        for part in neighbours.flat_map(|run| run.chunks(CHUNK_BLOCKS as usize)) {
            self.add_covered(&mut draft, stream, segment.block(part[0]), part.len())?;
        }
        Ok(draft)
    }

    fn add_covered(
        &self,
        draft: &mut BatchDraft,
        stream: &Stream,
        first: BlockAddr,
        count: usize,
    ) -> Result<()> {
        let size = self.sealer.meta_len(1);
        with_scratch(count * BLOCK_SIZE, |sealed| {
            self.store.read_data(stream.slot.at(first), sealed)?;
            for (block, sealed) in run(first, count as u64).zip(sealed.chunks_exact(BLOCK_SIZE)) {
                let mut meta = [0; 32];
                stream.copy_meta(index_of(block), &mut meta[..size]);
                if is_zero(if size == 0 { sealed } else { &meta }) {
                    draft.hole(block, None);
                } else {
                    draft.data(block, None, |to, entry| {
                        to.copy_from_slice(sealed);
                        *entry = meta;
                    });
                }
            }
            Ok(())
        })
    }
}
