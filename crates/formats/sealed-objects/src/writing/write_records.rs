//! The memory that outlives the death of the process: the blocks of the dirty cache and the pending
//! discards, in records of a [`KeptMemory`]. Blocks are plaintext, since the ciphertext of a
//! transaction depends on its session; a record is wiped when it is dropped.
//!
//! A successor opens the disk as after any crash, and puts the published records into its cache
//! (`DirtyCache::adopt`). A transaction of the predecessor that the store performed without an
//! answer is then performed again, with the same content.
//!
//! Invariants:
//! - A block and a discard are published before they are acknowledged, and withdrawn after the
//!   store acknowledged the transaction with them, or after a later version is published.
//! - A cache that is dropped with blocks or discards leaves the memory to a successor, and so does
//!   an adoption that fails.
//! - The published versions of one block, and the discards of its segment, are ordered by their
//!   numbers. When the store acknowledges a transaction, all published versions of its blocks that
//!   are older are withdrawn before another transaction of the object begins.

use crate::segment::Segment;
use crate::writing::pending_segment::{BlockContent, CacheVersion, HOLE_COST, place_and_version};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Result, SEGMENT_BLOCKS};
use lacuna_kept_memory::{KeptMemory, KeptPool, KeptRecord, PoolLayout, not_of_this_disk, used_up};
use std::sync::Arc;

/// Blocks beyond the limit of the cache, of requests that put them and of transactions with
/// versions that were replaced meanwhile: 256 MiB. A request beyond that fails.
const BLOCKS_BEYOND_LIMIT: u32 = 1 << 16;
/// Holes beyond the limit of the cache, for discards while the store is full.
const HOLES_BEYOND_LIMIT: u32 = 1 << 21;
/// Discards of segments that are discarded already.
const REPEATED_DISCARDS: u32 = 1 << 12;

/// The pools of a disk.
pub(crate) struct WriteRecords {
    blocks: Arc<KeptPool>,
    holes: Arc<KeptPool>,
    discards: Arc<KeptPool>,
    memory: KeptMemory,
}

/// The version of a block that a predecessor left.
pub(crate) struct LeftBlock {
    pub(crate) block: BlockAddr,
    pub(crate) version: CacheVersion,
    pub(crate) content: BlockContent,
}

/// The discard of a segment that a predecessor left.
pub(crate) struct LeftDiscard {
    pub(crate) segment: Segment,
    pub(crate) version: CacheVersion,
    pub(crate) record: KeptRecord,
}

/// The records that a predecessor left, in the order of their versions.
pub(crate) struct LeftRecords {
    pub(crate) blocks: Vec<LeftBlock>,
    pub(crate) discards: Vec<LeftDiscard>,
}

impl WriteRecords {
    /// The pools that a disk of `segments` segments needs, with a cache of `max_dirty` bytes.
    pub(crate) fn layout(segments: u64, max_dirty: u64) -> Vec<PoolLayout> {
        let pool = |records: u64, beyond: u32, bytes| PoolLayout {
            // More than 2^32 records would need a budget of terabytes.
            records: u32::try_from(records).unwrap_or(u32::MAX).saturating_add(beyond),
            words: 2,
            bytes,
        };
        vec![
            pool(max_dirty / BLOCK_SIZE as u64, BLOCKS_BEYOND_LIMIT, BLOCK_SIZE as u32),
            pool(max_dirty / HOLE_COST, HOLES_BEYOND_LIMIT, 0),
            pool(segments, REPEATED_DISCARDS, 0),
        ]
    }

    /// The pools of a memory with such a layout.
    pub(crate) fn new(memory: KeptMemory) -> Self {
        let pool = |at| memory.pool(at).clone();
        WriteRecords { blocks: pool(0), holes: pool(1), discards: pool(2), memory }
    }

    /// Leaves the memory to a successor: this process drops records that are not in the store.
    pub(crate) fn leave(&self) {
        self.memory.leave_to_successor();
    }

    /// A copy of a block, which is not published.
    ///
    /// Errors: [`lacuna_contracts::Kind::Memory`] if all records are in use.
    pub(crate) fn data(&self, block: &[u8; BLOCK_SIZE]) -> Result<BlockContent> {
        let mut record = self.blocks.take().ok_or_else(used_up)?;
        record.bytes_mut().copy_from_slice(block);
        Ok(BlockContent::Data(Arc::new(record)))
    }

    /// A hole, which is not published. Errors: as for [`WriteRecords::data`].
    pub(crate) fn hole(&self) -> Result<BlockContent> {
        self.holes.take().map(|record| BlockContent::Hole(Arc::new(record))).ok_or_else(used_up)
    }

    /// A record for a discard, which is not published. Errors: as for [`WriteRecords::data`].
    pub(crate) fn discard(&self) -> Result<KeptRecord> {
        self.discards.take().ok_or_else(used_up)
    }

    /// Takes the records that a predecessor left on a disk of `blocks` blocks.
    ///
    /// Errors: [`lacuna_contracts::Kind::Corrupt`] for a record that this disk cannot have. The
    /// memory is left to a successor then.
    pub(crate) fn take_left(&self, blocks: u64) -> Result<LeftRecords> {
        let data = self.blocks.take_adopted().into_iter().map(|record| BlockContent::Data(Arc::new(record)));
        let holes = self.holes.take_adopted().into_iter().map(|record| BlockContent::Hole(Arc::new(record)));
        let contents = data.chain(holes).map(|content| {
            let (block, version) = place_and_version(content.record());
            LeftBlock { block: BlockAddr(block), version, content }
        });
        let discards = self.discards.take_adopted().into_iter().map(|record| {
            let (segment, version) = place_and_version(&record);
            LeftDiscard { segment: Segment(segment), version, record }
        });
        let mut left = LeftRecords { blocks: contents.collect(), discards: discards.collect() };
        if let Some(found) = left.foreign(blocks) {
            self.leave();
            return Err(not_of_this_disk(found));
        }
        left.blocks.sort_unstable_by_key(|left| (left.block, left.version));
        left.discards.sort_unstable_by_key(|left| (left.segment, left.version));
        Ok(left)
    }
}

impl LeftRecords {
    /// A block or segment that a disk of `blocks` blocks does not have, if there is one.
    fn foreign(&self, blocks: u64) -> Option<String> {
        let block = self.blocks.iter().find(|left| left.block.0 >= blocks);
        let segment = self.discards.iter().find(|left| left.segment.0 >= blocks.div_ceil(SEGMENT_BLOCKS));
        let block = block.map(|left| format!("block {}", left.block.0));
        block.or_else(|| segment.map(|left| format!("segment {}", left.segment.0)))
    }
}
