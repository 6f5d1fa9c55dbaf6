//! What outlives the death of the process: the blocks that were acknowledged and are not in the log
//! yet, in records of a [`KeptMemory`].
//!
//! The flash has the rest: a discard or a purge is in the log when it is acknowledged, and
//! programmed pages stay when the process dies. A successor replays the log and takes over these
//! records as blocks of its write buffer.
//!
//! Invariants:
//! - A version of a block is published before it is acknowledged, and a later version before the
//!   earlier one is withdrawn. Of two published versions, the one with the higher number is the
//!   later one.
//! - A version is withdrawn only after the log holds it, or a later version is published, or the
//!   log holds the discard of the block, which is not acknowledged yet.
//! - The log never holds an acknowledged change of a block that is later than a published version
//!   of it. One thread at a time changes the log: it withdraws a version before it takes the next
//!   one to the log, and before it acknowledges a discard. So the records win over the log.
//! - A record is wiped when its last reader drops it, or by the successor if the process died
//!   before. Nothing is published when a purge returns, except later writes.
//! - A write buffer that is dropped with blocks leaves the memory to a successor, and so does an
//!   adoption that fails.

use lacuna_contracts::{BLOCK_SIZE, Result};
use lacuna_kept_memory::{KeptMemory, KeptPool, KeptRecord, PoolLayout, not_of_this_disk, used_up};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks of requests that may be in the buffer beyond its limits: 256 MiB.
const BLOCKS_IN_FLIGHT: u32 = 1 << 16;

/// The records of a disk.
pub(crate) struct KeptBlocks {
    blocks: Arc<KeptPool>,
    memory: KeptMemory,
}

/// A block's version, as its record says.
pub(crate) struct KeptBlock {
    pub(crate) block: u32,
    pub(crate) version: u64,
    pub(crate) record: KeptRecord,
}

impl KeptBlocks {
    /// The pools for a write buffer of about `capacity` blocks. Twice that number may be pending,
    /// and the same number on the way to the log.
    pub(crate) fn layout(capacity: usize) -> Vec<PoolLayout> {
        let records = 4 * capacity as u32 + BLOCKS_IN_FLIGHT;
        vec![PoolLayout { records, words: 2, bytes: BLOCK_SIZE as u32 }]
    }

    /// The pool of a memory with such a layout.
    pub(crate) fn new(memory: KeptMemory) -> KeptBlocks {
        KeptBlocks { blocks: memory.pool(0).clone(), memory }
    }

    /// Leaves the memory to a successor: this process drops blocks that are not in the log.
    pub(crate) fn leave(&self) {
        self.memory.leave_to_successor();
    }

    /// A record for a block, which is not published.
    ///
    /// Errors: [`lacuna_contracts::Kind::Memory`] if none is left.
    pub(crate) fn block(&self) -> Result<KeptRecord> {
        self.blocks.take().ok_or_else(used_up)
    }

    /// The versions that a predecessor left of a disk with `blocks` blocks.
    ///
    /// Errors: [`lacuna_contracts::Kind::Corrupt`] for a block that the disk does not have. The
    /// memory is left to a successor then.
    pub(crate) fn adopt(&self, blocks: u64) -> Result<Vec<KeptBlock>> {
        let records = self.blocks.take_adopted();
        let number = |record: &KeptRecord, at: usize| record.words()[at].load(Ordering::Relaxed);
        let unknown = records.iter().map(|record| number(record, 0)).find(|block| *block >= blocks);
        if let Some(block) = unknown {
            self.leave();
            return Err(not_of_this_disk(format!("block {block}")));
        }
        let version = |record: KeptRecord| KeptBlock {
            // A disk on flash has fewer than 2³¹ blocks.
            block: number(&record, 0) as u32,
            version: number(&record, 1),
            record,
        };
        Ok(records.into_iter().map(version).collect())
    }
}

/// Notes the block and the version that a record holds, and publishes it.
pub(crate) fn publish_version(record: &KeptRecord, block: u32, version: u64) {
    record.words()[0].store(block.into(), Ordering::Relaxed);
    record.words()[1].store(version, Ordering::Relaxed);
    record.publish();
}
