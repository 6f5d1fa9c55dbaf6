//! The write-back cache: blocks that were acknowledged and are not yet destaged.
//!
//! An entry holds up to two versions of its block: the *newest* (plaintext, only in memory) and the
//! *committed* one (encrypted, in the journal, not yet destaged). Invariant: a committed version
//! leaves its entry only when it is destaged, when a later committed version replaces it, or when
//! its segment moved.
//!
//! Contents are returned by reference, so that they are encrypted and copied outside the lock. A
//! buffer is reused when its last reference is dropped. An unused buffer is wiped within a second,
//! so no memory holds committed or dropped plaintext for longer.

use crate::address::SegmentNo;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, IdlePool, WipeOnDrop};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 32;
/// Bytes of the budget that a hole takes.
const HOLE_COST: u64 = 64;
/// Buffers kept for reuse per shard.
const SPARE: usize = 64;

type BlockBuffer = Arc<WipeOnDrop<[u8; BLOCK_SIZE]>>;

/// The content of a block.
#[derive(Clone)]
pub(crate) enum BlockContent {
    /// Data.
    Data(BlockBuffer),
    /// A hole, which reads as zeros.
    Hole,
}

/// A version of a block that the journal holds.
#[derive(Clone)]
pub(crate) enum CommittedVersion {
    /// Ciphertext at an offset in a batch, with its metadata.
    Data { batch: Arc<Vec<u8>>, at: usize, meta: [u8; 32] },
    /// A hole, which reads as zeros.
    Hole,
}

/// The latest version of a block in the cache.
pub(crate) enum CachedVersion {
    /// A version only in memory.
    Newest(BlockContent),
    /// A version in the journal.
    Committed(CommittedVersion),
}

/// The number of a newest version. Every put increments it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct VersionNo(u64);

#[derive(Default)]
struct BlockCacheEntry {
    newest: Option<(BlockContent, VersionNo)>,
    committed: Option<CommittedVersion>,
    is_listed_dirty: bool,
}

#[derive(Default)]
struct CacheShard {
    entries: FxHashMap<BlockAddr, BlockCacheEntry>,
    dirty: Vec<BlockAddr>,
    spare: IdlePool<BlockBuffer>,
    puts: u64,
}

/// The cache of a disk.
pub(crate) struct WriteCache {
    shards: [Mutex<CacheShard>; SHARDS],
    entries: AtomicUsize,
    dirty_bytes: AtomicU64,
    /// Entries of each segment, so that one lookup tells for most segments that there are none.
    segments: [Mutex<FxHashMap<SegmentNo, u32>>; SHARDS],
}

impl Default for WriteCache {
    /// An empty cache. Its spare buffers are wiped when idle.
    fn default() -> Self {
        let shards: [Mutex<CacheShard>; SHARDS] = Default::default();
        shards.iter().for_each(|shard| shard.lock().spare.register_for_sweep());
        WriteCache {
            shards,
            entries: AtomicUsize::default(),
            dirty_bytes: AtomicU64::default(),
            segments: Default::default(),
        }
    }
}

impl WriteCache {
    /// Whether any block of a segment is in the cache.
    pub(crate) fn has_segment(&self, segment: SegmentNo) -> bool {
        self.entries.load(Ordering::Acquire) > 0 && self.segment(segment).contains_key(&segment)
    }

    /// Bytes that are acknowledged and only in memory.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Acquire)
    }

    /// Puts the newest version of a block.
    pub(crate) fn put(&self, block: BlockAddr, data: &[u8]) {
        let mut shard = self.shard(block);
        let mut buffer =
            shard.spare.take(|_| true).unwrap_or_else(|| Arc::new(WipeOnDrop::new([0; BLOCK_SIZE])));
        // A spare buffer has no other reference, so this copies only `data`.
        Arc::make_mut(&mut buffer).copy_from_slice(data);
        self.put_content(&mut shard, block, BlockContent::Data(buffer));
    }

    /// Makes the newest version of a block a hole.
    pub(crate) fn put_hole(&self, block: BlockAddr) {
        self.put_content(&mut self.shard(block), block, BlockContent::Hole);
    }

    /// The latest version of a block in the cache.
    pub(crate) fn find(&self, block: BlockAddr) -> Option<CachedVersion> {
        let shard = self.shard(block);
        let versions = shard.entries.get(&block)?;
        match (&versions.newest, &versions.committed) {
            (Some((content, _)), _) => Some(CachedVersion::Newest(content.clone())),
            (None, committed) => committed.clone().map(CachedVersion::Committed),
        }
    }

    /// The newest version of a block and its number.
    pub(crate) fn newest(&self, block: BlockAddr) -> Option<(BlockContent, VersionNo)> {
        self.shard(block).entries.get(&block)?.newest.clone()
    }

    /// The version of a block that the journal holds.
    pub(crate) fn committed(&self, block: BlockAddr) -> Option<CommittedVersion> {
        self.shard(block).entries.get(&block)?.committed.clone()
    }

    /// Whether any version of a block is in the cache.
    pub(crate) fn contains(&self, block: BlockAddr) -> bool {
        self.shard(block).entries.contains_key(&block)
    }

    /// Drops the newest version, because a later one is elsewhere.
    pub(crate) fn drop_newest(&self, block: BlockAddr) {
        self.update_entry(block, |versions| versions.newest.take().map(|(content, _)| content));
    }

    /// Drops the newest version if it is still this one.
    pub(crate) fn drop_version(&self, block: BlockAddr, version: VersionNo) {
        self.update_entry(block, |versions| take_version(versions, version));
    }

    /// Notes that the journal holds a version of the block: the newest one, if `version` is still
    /// its number.
    pub(crate) fn commit(&self, block: BlockAddr, version: Option<VersionNo>, committed: CommittedVersion) {
        let mut shard = self.shard(block);
        let versions = shard.entries.entry(block).or_insert_with(|| self.new_entry(block));
        versions.committed = Some(committed);
        let freed = version.and_then(|version| take_version(versions, version));
        self.recycle(&mut shard, freed);
    }

    /// Drops the committed version, because it is destaged or its segment moved.
    pub(crate) fn drop_committed(&self, block: BlockAddr) {
        self.update_entry(block, |versions| {
            versions.committed = None;
            None
        });
    }

    /// Takes the sorted list of blocks that have become dirty since the last call.
    pub(crate) fn take_dirty(&self) -> Vec<BlockAddr> {
        let mut blocks = vec![];
        for shard in &self.shards {
            let mut shard = shard.lock();
            for block in std::mem::take(&mut shard.dirty) {
                if let Some(versions) = shard.entries.get_mut(&block) {
                    versions.is_listed_dirty = false;
                    if versions.newest.is_some() {
                        blocks.push(block);
                    }
                }
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    /// Lists a block as dirty again, for a later commit.
    pub(crate) fn relist_dirty(&self, block: BlockAddr) {
        let mut shard = self.shard(block);
        if let Some(versions) = shard.entries.get_mut(&block)
            && !std::mem::replace(&mut versions.is_listed_dirty, true)
        {
            shard.dirty.push(block);
        }
    }

    /// All blocks with a version that is only in memory, for the commit after a refused one.
    pub(crate) fn all_dirty(&self) -> Vec<BlockAddr> {
        let mut blocks: Vec<BlockAddr> = vec![];
        for shard in &self.shards {
            let shard = shard.lock();
            let dirty = shard.entries.iter().filter(|(_, versions)| versions.newest.is_some());
            blocks.extend(dirty.map(|(block, _)| *block));
        }
        blocks.sort_unstable();
        blocks
    }

    fn put_content(&self, shard: &mut CacheShard, block: BlockAddr, content: BlockContent) {
        shard.puts += 1;
        let version = VersionNo(shard.puts);
        let cost = cost(&content);
        let versions = shard.entries.entry(block).or_insert_with(|| self.new_entry(block));
        let old = versions.newest.replace((content, version)).map(|(content, _)| content);
        let list = !std::mem::replace(&mut versions.is_listed_dirty, true);
        self.dirty_bytes.fetch_add(cost, Ordering::AcqRel);
        if list {
            shard.dirty.push(block);
        }
        self.recycle(shard, old);
    }

    /// Changes an entry, recycles the content that `change` returns, and drops the entry if it is
    /// empty.
    fn update_entry(
        &self,
        block: BlockAddr,
        change: impl FnOnce(&mut BlockCacheEntry) -> Option<BlockContent>,
    ) {
        let mut shard = self.shard(block);
        let Some(versions) = shard.entries.get_mut(&block) else { return };
        let freed = change(versions);
        if versions.newest.is_none() && versions.committed.is_none() {
            shard.entries.remove(&block);
            self.entries.fetch_sub(1, Ordering::Release);
            let segment = SegmentNo::of(block);
            if let Entry::Occupied(mut count) = self.segment(segment).entry(segment) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        self.recycle(&mut shard, freed);
    }

    fn new_entry(&self, block: BlockAddr) -> BlockCacheEntry {
        let segment = SegmentNo::of(block);
        *self.segment(segment).entry(segment).or_insert(0) += 1;
        self.entries.fetch_add(1, Ordering::Release);
        BlockCacheEntry::default()
    }

    fn recycle(&self, shard: &mut CacheShard, freed: Option<BlockContent>) {
        if let Some(content) = freed {
            self.dirty_bytes.fetch_sub(cost(&content), Ordering::AcqRel);
            if let BlockContent::Data(mut buffer) = content
                && Arc::get_mut(&mut buffer).is_some()
            {
                shard.spare.give(buffer, SPARE);
            }
        }
    }

    fn segment(&self, segment: SegmentNo) -> MutexGuard<'_, FxHashMap<SegmentNo, u32>> {
        self.segments[segment.get() as usize % SHARDS].lock()
    }

    fn shard(&self, block: BlockAddr) -> MutexGuard<'_, CacheShard> {
        self.shards[block.0 as usize % SHARDS].lock()
    }
}

fn take_version(versions: &mut BlockCacheEntry, version: VersionNo) -> Option<BlockContent> {
    match &versions.newest {
        Some((_, newest)) if *newest == version => versions.newest.take().map(|(content, _)| content),
        _ => None,
    }
}

fn cost(content: &BlockContent) -> u64 {
    match content {
        BlockContent::Data(_) => BLOCK_SIZE as u64,
        BlockContent::Hole => HOLE_COST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn unused_buffers_are_wiped() {
        let cache = WriteCache::default();
        let blocks = || (0..SPARE as u64 + 8).map(|at| BlockAddr(at * SHARDS as u64));
        let spare = || cache.shards.iter().map(|shard| shard.lock().spare.len()).sum::<usize>();
        for _ in 0..3 {
            blocks().for_each(|block| cache.put(block, &[7; BLOCK_SIZE]));
            for block in blocks() {
                let (_, version) = cache.newest(block).expect("it was just put");
                cache.commit(block, Some(version), CommittedVersion::Hole);
                cache.drop_committed(block);
            }
            // Each shard keeps at most its share, and none keeps any buffer once idle.
            assert!(spare() <= SPARE && cache.dirty_bytes() == 0);
            while spare() > 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
