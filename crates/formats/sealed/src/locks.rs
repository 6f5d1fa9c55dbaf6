//! The chunk locks, which guard the chunks of segments on the medium.

use crate::address::{CHUNK_BLOCKS, SegmentNo};
use lacuna_contracts::{BlockAddr, SEGMENT_BLOCKS};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

const CHUNKS: usize = (SEGMENT_BLOCKS / CHUNK_BLOCKS) as usize;
const GROUPS: usize = 32;

/// The locks of all chunks of a segment.
pub(crate) type SegmentGuard<'a> = [RwLockWriteGuard<'a, ()>; CHUNKS];

/// Striped locks, one group of 16 per segment, so that the locks of one segment are distinct.
pub(crate) struct ChunkLocks(Box<[RwLock<()>]>);

impl ChunkLocks {
    pub(crate) fn new() -> Self {
        ChunkLocks((0..CHUNKS * GROUPS).map(|_| RwLock::new(())).collect())
    }

    /// Locks the chunk of `block` for reading its blocks, or for putting newer versions of them
    /// into the cache.
    pub(crate) fn shared(&self, block: BlockAddr) -> RwLockReadGuard<'_, ()> {
        self.lock_of(block).read()
    }

    /// Locks the chunk of `block` for changing it on the medium.
    pub(crate) fn exclusive(&self, block: BlockAddr) -> RwLockWriteGuard<'_, ()> {
        self.lock_of(block).write()
    }

    /// Locks all chunks of a segment for changing where it lies, in ascending order, so that two
    /// such holders cannot deadlock.
    pub(crate) fn segment(&self, segment: SegmentNo) -> SegmentGuard<'_> {
        std::array::from_fn(|chunk| self.exclusive(segment.block(chunk as u64 * CHUNK_BLOCKS)))
    }

    fn lock_of(&self, block: BlockAddr) -> &RwLock<()> {
        &self.0[(block.0 / CHUNK_BLOCKS) as usize % (CHUNKS * GROUPS)]
    }
}
