//! The write buffer: blocks that were acknowledged and are not in the log yet. Each is a published
//! record of the memory that outlives the process (`kept_blocks.rs`).

use crate::kept_blocks::{KeptBlock, KeptBlocks, publish_version};
use lacuna_contracts::{BLOCK_SIZE, Result};
use lacuna_kept_memory::KeptRecord;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

/// One block. It is wiped when the last reference is dropped.
pub(crate) type PlainBlock = Arc<KeptRecord>;

#[derive(Default)]
struct WriteBufferState {
    pending: BTreeMap<u32, PlainBlock>,
    /// Blocks on their way to the log: still the latest versions unless pending again.
    in_flight: BTreeMap<u32, PlainBlock>,
    /// The number of the last version of any block.
    version: u64,
}

/// The write buffer of a disk.
pub(crate) struct WriteBuffer {
    kept: KeptBlocks,
    state: Mutex<WriteBufferState>,
    capacity: usize,
}

impl WriteBuffer {
    /// A buffer of about `capacity` blocks, in records of the layout for it.
    pub(crate) fn new(kept: KeptBlocks, capacity: usize) -> WriteBuffer {
        WriteBuffer { kept, state: Mutex::default(), capacity }
    }

    /// Takes over the blocks that a predecessor left, of each the latest version, as pending ones.
    /// The disk has `blocks` blocks.
    ///
    /// Errors: those of [`KeptBlocks::adopt`].
    pub(crate) fn adopt(&self, blocks: u64) -> Result<()> {
        let mut left = self.kept.adopt(blocks)?;
        left.sort_unstable_by_key(|left| (left.block, left.version));
        let mut state = self.state.lock();
        for KeptBlock { block, version, record } in left {
            state.version = state.version.max(version);
            // An earlier version is withdrawn here.
            state.pending.insert(block, Arc::new(record));
        }
        Ok(())
    }

    /// Adds blocks. Returns whether it is time to write some.
    ///
    /// Errors: those of [`KeptBlocks::block`]; nothing was added then.
    pub(crate) fn put(&self, first: u32, data: &[u8]) -> Result<bool> {
        let copy = |data: &[u8; BLOCK_SIZE]| -> Result<PlainBlock> {
            let mut record = self.kept.block()?;
            record.bytes_mut().copy_from_slice(data);
            Ok(Arc::new(record))
        };
        // Copy without the lock. Replaced blocks are wiped after it is released, too.
        let blocks = data.as_chunks::<BLOCK_SIZE>().0.iter().map(copy).collect::<Result<Vec<_>>>()?;
        let mut replaced = vec![];
        let mut state = self.state.lock();
        for (block, plain) in (first..).zip(blocks) {
            state.version += 1;
            publish_version(&plain, block, state.version);
            if let Some(old) = state.pending.insert(block, plain) {
                // Now, since a reader may hold it for longer.
                old.withdraw();
                replaced.push(old);
            }
        }
        Ok(state.pending.len() >= self.capacity)
    }

    /// A block that is not in the buffer.
    ///
    /// Errors: those of [`KeptBlocks::block`].
    pub(crate) fn block_outside(&self) -> Result<KeptRecord> {
        self.kept.block()
    }

    /// Whether more is pending than possible without failed flushes.
    pub(crate) fn is_overfull(&self) -> bool {
        self.state.lock().pending.len() >= 2 * self.capacity
    }

    /// The first of these blocks that is in the buffer.
    pub(crate) fn first_in(&self, blocks: Range<u32>) -> Option<u32> {
        let state = self.state.lock();
        let first = |of: &BTreeMap<u32, PlainBlock>| of.range(blocks.clone()).next().map(|(block, _)| *block);
        [first(&state.pending), first(&state.in_flight)].into_iter().flatten().min()
    }

    /// The latest version of a block, if it is in the buffer.
    pub(crate) fn get(&self, block: u32) -> Option<PlainBlock> {
        let state = self.state.lock();
        state.pending.get(&block).or_else(|| state.in_flight.get(&block)).cloned()
    }

    /// Blocks in the buffer.
    pub(crate) fn len(&self) -> usize {
        let state = self.state.lock();
        state.pending.len() + state.in_flight.len()
    }

    /// Drops pending versions of blocks, which a discard in the log supersedes. None is in flight:
    /// the caller holds the writer's lock.
    pub(crate) fn drop_pending(&self, first: u32, count: u32) {
        let mut state = self.state.lock();
        let gone: Vec<u32> = state.pending.range(first..first + count).map(|(block, _)| *block).collect();
        let gone: Vec<PlainBlock> = gone.iter().filter_map(|block| state.pending.remove(block)).collect();
        withdraw_all(&gone);
        // Wipe the blocks after the lock is released.
        drop(state);
        drop(gone);
    }

    /// Takes all pending blocks. They are in flight until [`WriteBuffer::mark_clean`].
    pub(crate) fn take(&self) -> Vec<(u32, PlainBlock)> {
        let mut state = self.state.lock();
        let pending = std::mem::take(&mut state.pending);
        let taken = pending.iter().map(|(block, plain)| (*block, plain.clone())).collect();
        state.in_flight = pending;
        taken
    }

    /// Notes that the log holds these blocks, and that the index names them there.
    pub(crate) fn mark_clean(&self, blocks: impl Iterator<Item = u32>) {
        let mut state = self.state.lock();
        let landed: Vec<PlainBlock> = blocks.filter_map(|block| state.in_flight.remove(&block)).collect();
        withdraw_all(&landed);
        drop(state);
        drop(landed);
    }

    /// Makes all blocks in flight pending again.
    pub(crate) fn put_back(&self) {
        let mut superseded = vec![];
        let mut state = self.state.lock();
        for (block, plain) in std::mem::take(&mut state.in_flight) {
            match state.pending.entry(block) {
                Entry::Vacant(entry) => {
                    entry.insert(plain);
                }
                Entry::Occupied(_) => superseded.push(plain),
            }
        }
        withdraw_all(&superseded);
    }
}

impl Drop for WriteBuffer {
    /// Leaves blocks that did not reach the log to a successor.
    fn drop(&mut self) {
        if self.len() > 0 {
            self.kept.leave();
        }
    }
}

/// Makes a successor not find these blocks.
fn withdraw_all(blocks: &[PlainBlock]) {
    blocks.iter().for_each(|block| block.withdraw());
}
