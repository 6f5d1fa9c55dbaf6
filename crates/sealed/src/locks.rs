//! The chunk locks: who may touch which part of a segment on the medium.

use crate::geometry::CHUNK_BLOCKS;
use lacuna_core::SEGMENT_BLOCKS;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const CHUNKS: usize = (SEGMENT_BLOCKS / CHUNK_BLOCKS) as usize;
const GROUPS: usize = 32;

/// Striped locks, one group of 16 per segment, so that the locks of one segment are distinct.
pub(crate) struct ChunkLocks(Box<[RwLock<()>]>);

impl ChunkLocks {
    pub(crate) fn new() -> Self {
        ChunkLocks((0..CHUNKS * GROUPS).map(|_| RwLock::new(())).collect())
    }

    /// To read the blocks of the chunk of `block`, or to put a newer version of one into the cache.
    pub(crate) fn shared(&self, block: u64) -> RwLockReadGuard<'_, ()> {
        self.lock_of(block).read().unwrap_or_else(PoisonError::into_inner)
    }

    /// To change the chunk of `block` on the medium.
    pub(crate) fn exclusive(&self, block: u64) -> RwLockWriteGuard<'_, ()> {
        self.lock_of(block).write().unwrap_or_else(PoisonError::into_inner)
    }

    /// To change where a segment lives. Taken in ascending order, so that two such holders cannot deadlock.
    pub(crate) fn segment(&self, segment: u64) -> Vec<RwLockWriteGuard<'_, ()>> {
        let first = segment * SEGMENT_BLOCKS;
        (0..CHUNKS as u64).map(|c| self.exclusive(first + c * CHUNK_BLOCKS)).collect()
    }

    fn lock_of(&self, block: u64) -> &RwLock<()> {
        &self.0[(block / CHUNK_BLOCKS) as usize % (CHUNKS * GROUPS)]
    }
}
