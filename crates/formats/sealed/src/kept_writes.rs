//! What outlives the death of the process: the writes and discards that were acknowledged and are
//! not durable, in records of a [`KeptMemory`].
//!
//! Data that reached the medium is there after the process died, synced or not. So the memory holds
//! the rest: the cache's newest versions, and the blocks that copy-on-write segments cover, with
//! their metadata. A successor reads the journal, takes over these records as they are
//! ([`crate::recovery::adopt_kept`]), and commits them.
//!
//! Invariants:
//! - A later version is published before the earlier one is withdrawn. Of two published versions of
//!   a block, the one with the higher number is the later one.
//! - A version is withdrawn only after the journal or a published copy-on-write segment holds it.
//! - A covered block of a copy-on-write segment is overwritten only while the cache holds the new
//!   version, since the death of the process may leave either version there.
//! - The cache and the copy-on-write segments leave the memory to a successor if they are dropped
//!   with anything in it, and an adoption that fails does so before it drops a record.

use crate::address::{SegmentNo, SlotNo};
use crate::geometry::Params;
use crate::limits::{HOLE_COST, Limits, MAX_COW_SEGMENTS};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Result, SEGMENT_BLOCKS};
use lacuna_kept_memory::{KeptMemory, KeptPool, KeptRecord, PoolLayout, not_of_this_disk, used_up};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Words of a copy-on-write segment that say which blocks it covers.
pub(crate) const COVERED_WORDS: usize = (SEGMENT_BLOCKS / 64) as usize;
/// Blocks of requests that may be in the cache beyond its limit: 256 MiB. A request beyond that
/// fails.
const BLOCKS_IN_FLIGHT: u32 = 1 << 16;
/// Holes of requests that may be in the cache beyond its limit: those of 2048 segments.
const HOLES_IN_FLIGHT: u32 = 1 << 21;
/// Copy-on-write segments that were removed and are still read.
const SEGMENTS_IN_USE: u32 = 256;

/// The pools of a disk.
#[derive(Clone)]
pub(crate) struct KeptWrites {
    blocks: Arc<KeptPool>,
    holes: Arc<KeptPool>,
    streams: Arc<KeptPool>,
    discards: Arc<KeptPool>,
    memory: KeptMemory,
}

/// A block's version, as its record says.
pub(crate) struct KeptVersion {
    pub(crate) block: BlockAddr,
    pub(crate) version: u64,
    pub(crate) record: KeptRecord,
}

/// A copy-on-write segment, as its record says.
pub(crate) struct KeptStream {
    pub(crate) segment: SegmentNo,
    pub(crate) slot: SlotNo,
    pub(crate) record: KeptRecord,
}

impl KeptWrites {
    /// The pools that a disk needs.
    pub(crate) fn layout(params: &Params, limits: &Limits) -> Vec<PoolLayout> {
        let dirty = limits.max_dirty;
        let meta = params.cipher.meta_size() as u64 * SEGMENT_BLOCKS;
        let pool = |records, words, bytes| PoolLayout { records, words, bytes };
        vec![
            pool((dirty / BLOCK_SIZE as u64) as u32 + BLOCKS_IN_FLIGHT, 2, BLOCK_SIZE as u32),
            pool((dirty / HOLE_COST) as u32 + HOLES_IN_FLIGHT, 2, 0),
            pool(MAX_COW_SEGMENTS as u32 + SEGMENTS_IN_USE, 2 + COVERED_WORDS as u32, meta as u32),
            pool(params.geometry().segments, 1, 0),
        ]
    }

    /// The pools of the memory that outlives this process, or of new memory.
    pub(crate) fn of(kept: Option<KeptMemory>, params: &Params, limits: &Limits) -> Result<Self> {
        let new = || KeptMemory::anonymous(&Self::layout(params, limits));
        kept.map_or_else(new, Ok).map(Self::new)
    }

    /// The pools of a memory with such a layout.
    pub(crate) fn new(memory: KeptMemory) -> Self {
        let pool = |at| memory.pool(at).clone();
        KeptWrites { blocks: pool(0), holes: pool(1), streams: pool(2), discards: pool(3), memory }
    }

    /// Leaves the memory to the next process: this one drops records of writes that are not
    /// durable.
    pub(crate) fn leave(&self) {
        self.memory.leave_to_successor();
    }

    /// Leaves the memory, which has a record that this disk cannot have. Returns the error.
    pub(crate) fn refuse(&self, found: String) -> Error {
        self.leave();
        not_of_this_disk(found)
    }

    /// A record for the content of a block.
    pub(crate) fn block(&self) -> Result<KeptRecord> {
        self.blocks.take().ok_or_else(used_up)
    }

    /// A record for a hole.
    pub(crate) fn hole(&self) -> Result<KeptRecord> {
        self.holes.take().ok_or_else(used_up)
    }

    /// A published record for a copy-on-write segment that covers no block.
    pub(crate) fn stream(&self, segment: SegmentNo, slot: SlotNo) -> Result<KeptRecord> {
        let record = self.streams.take().ok_or_else(used_up)?;
        record.words()[0].store(segment.get().into(), Ordering::Relaxed);
        record.words()[1].store(slot.get().into(), Ordering::Relaxed);
        record.words()[2..].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        record.publish();
        Ok(record)
    }

    /// A published record for a discarded segment.
    pub(crate) fn discard(&self, segment: SegmentNo) -> Result<KeptRecord> {
        let record = self.discards.take().ok_or_else(used_up)?;
        record.words()[0].store(segment.get().into(), Ordering::Relaxed);
        record.publish();
        Ok(record)
    }

    /// The versions of blocks that a predecessor left, and its holes.
    ///
    /// Errors, also of the other adoptions: [`lacuna_contracts::Kind::Corrupt`] for a record that
    /// the disk cannot have.
    pub(crate) fn adopt_versions(&self, blocks: u64) -> Result<(Vec<KeptVersion>, Vec<KeptVersion>)> {
        let versions = |pool: &Arc<KeptPool>| {
            let found = pool.take_adopted().into_iter().map(|record| {
                let [block, version] = [0, 1].map(|at: usize| record.words()[at].load(Ordering::Relaxed));
                if block >= blocks {
                    return Err(self.refuse(format!("block {block}")));
                }
                Ok(KeptVersion { block: BlockAddr(block), version, record })
            });
            found.collect::<Result<Vec<_>>>()
        };
        Ok((versions(&self.blocks)?, versions(&self.holes)?))
    }

    /// The copy-on-write segments that a predecessor left.
    pub(crate) fn adopt_streams(&self, params: &Params) -> Result<Vec<KeptStream>> {
        let g = params.geometry();
        let found = self.streams.take_adopted().into_iter().map(|record| {
            let [segment, slot] = [0, 1].map(|at: usize| record.words()[at].load(Ordering::Relaxed));
            match (SegmentNo::checked(segment, g.segments), SlotNo::checked(slot, g.slots)) {
                (Some(segment), Some(slot)) => Ok(KeptStream { segment, slot, record }),
                _ => Err(self.refuse(format!("segment {segment} in slot {slot}"))),
            }
        });
        found.collect()
    }

    /// The discarded segments that a predecessor left.
    pub(crate) fn adopt_discards(&self, params: &Params) -> Result<Vec<(SegmentNo, KeptRecord)>> {
        let segments = params.geometry().segments;
        let found = self.discards.take_adopted().into_iter().map(|record| {
            let segment = record.words()[0].load(Ordering::Relaxed);
            let known = SegmentNo::checked(segment, segments)
                .ok_or_else(|| self.refuse(format!("segment {segment}")))?;
            Ok((known, record))
        });
        found.collect()
    }
}

/// Notes which version of which block a record holds, and publishes it.
pub(crate) fn publish_version(record: &KeptRecord, block: BlockAddr, version: u64) {
    record.words()[0].store(block.0, Ordering::Relaxed);
    record.words()[1].store(version, Ordering::Relaxed);
    record.publish();
}
