//! The write buffer: blocks that were acknowledged and are not in the log yet.

use lacuna_contracts::BLOCK_SIZE;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use zeroize::Zeroizing;

/// One block.
pub(crate) type PlainBlock = Arc<Zeroizing<[u8; BLOCK_SIZE]>>;

#[derive(Default)]
struct WriteBufferState {
    pending: BTreeMap<u32, PlainBlock>,
    /// Blocks on their way to the log: still the latest versions unless pending again.
    in_flight: BTreeMap<u32, PlainBlock>,
}

/// The write buffer of a disk.
pub(crate) struct WriteBuffer {
    state: Mutex<WriteBufferState>,
    capacity: usize,
}

impl WriteBuffer {
    /// A buffer of about `most` blocks.
    pub(crate) fn new(most: usize) -> WriteBuffer {
        WriteBuffer { state: Mutex::default(), capacity: most.max(64) }
    }

    /// Adds blocks. Returns whether it is time to write some.
    pub(crate) fn put(&self, first: u32, data: &[u8]) -> bool {
        // Copy in place: moving a block would leave a copy behind.
        let copy = |data: &[u8; BLOCK_SIZE]| {
            let mut block = Arc::new(Zeroizing::new([0; BLOCK_SIZE]));
            Arc::get_mut(&mut block).expect("it has no other owner yet").copy_from_slice(data);
            block
        };
        // Copy without the lock. Replaced blocks are zeroed after it is released, too.
        let mut blocks: Vec<PlainBlock> = data.as_chunks::<BLOCK_SIZE>().0.iter().map(copy).collect();
        let mut replaced = vec![];
        let mut state = self.state.lock();
        for (block, plain) in (first..).zip(blocks.drain(..)) {
            replaced.extend(state.pending.insert(block, plain));
        }
        state.pending.len() >= self.capacity
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

    /// Drops pending versions of blocks, which a discard supersedes. None is in flight: the caller
    /// holds the writer's lock.
    pub(crate) fn drop_pending(&self, first: u32, count: u32) {
        let mut state = self.state.lock();
        let gone: Vec<u32> = state.pending.range(first..first + count).map(|(block, _)| *block).collect();
        gone.iter().for_each(|block| drop(state.pending.remove(block)));
    }

    /// Takes all pending blocks. They are in flight until [`WriteBuffer::mark_clean`].
    pub(crate) fn take(&self) -> Vec<(u32, PlainBlock)> {
        let mut state = self.state.lock();
        let pending = std::mem::take(&mut state.pending);
        let taken = pending.iter().map(|(block, plain)| (*block, plain.clone())).collect();
        state.in_flight = pending;
        taken
    }

    /// Notes that the index names these blocks now.
    pub(crate) fn mark_clean(&self, blocks: impl Iterator<Item = u32>) {
        let mut state = self.state.lock();
        // Zero the blocks after the lock is released.
        let landed: Vec<_> = blocks.map(|block| state.in_flight.remove(&block)).collect();
        drop(state);
        drop(landed);
    }

    /// Makes all blocks in flight pending again.
    pub(crate) fn put_back(&self) {
        let mut state = self.state.lock();
        for (block, plain) in std::mem::take(&mut state.in_flight) {
            state.pending.entry(block).or_insert(plain);
        }
    }
}
