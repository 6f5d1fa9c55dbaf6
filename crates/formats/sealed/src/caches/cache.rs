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
//!
//! Newest versions are published records of the memory that outlives the process
//! (`kept_writes.rs`).

use crate::address::SegmentNo;
use crate::kept_writes::{KeptVersion, KeptWrites, publish_version};
use crate::limits::HOLE_COST;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, IdlePool, Result};
use lacuna_kept_memory::KeptRecord;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 32;
/// Buffers kept for reuse per shard.
const SPARE: usize = 64;

type BlockBuffer = Arc<KeptRecord>;

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

/// A newest version.
struct NewestVersion {
    content: BlockContent,
    version: VersionNo,
    /// The record of a hole. The record of data is its content.
    hole: Option<KeptRecord>,
}

impl NewestVersion {
    /// Makes a successor not find the version.
    fn withdraw(&self) {
        match (&self.content, &self.hole) {
            (BlockContent::Data(buffer), _) => buffer.withdraw(),
            (BlockContent::Hole, record) => record.iter().for_each(KeptRecord::withdraw),
        }
    }
}

#[derive(Default)]
struct BlockCacheEntry {
    newest: Option<NewestVersion>,
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
    kept: KeptWrites,
    shards: [Mutex<CacheShard>; SHARDS],
    entries: AtomicUsize,
    dirty_bytes: AtomicU64,
    /// Entries of each segment, so that one lookup tells for most segments that there are none.
    segments: [Mutex<FxHashMap<SegmentNo, u32>>; SHARDS],
}

impl WriteCache {
    /// An empty cache. Its spare buffers are wiped when idle.
    pub(crate) fn new(kept: KeptWrites) -> Self {
        let shards: [Mutex<CacheShard>; SHARDS] = Default::default();
        shards.iter().for_each(|shard| shard.lock().spare.register_for_sweep());
        WriteCache {
            kept,
            shards,
            entries: AtomicUsize::default(),
            dirty_bytes: AtomicU64::default(),
            segments: Default::default(),
        }
    }

    /// Takes over the versions that a predecessor left: of each block the latest one.
    pub(crate) fn adopt(&self, data: Vec<KeptVersion>, holes: Vec<KeptVersion>) {
        let data = data.into_iter().map(|kept| (kept, true));
        let mut all: Vec<(KeptVersion, bool)> =
            data.chain(holes.into_iter().map(|kept| (kept, false))).collect();
        all.sort_unstable_by_key(|(kept, _)| (kept.block, kept.version));
        for (KeptVersion { block, version, record }, is_data) in all {
            let mut shard = self.shard(block);
            shard.puts = shard.puts.max(version);
            let (content, hole) = if is_data {
                (BlockContent::Data(Arc::new(record)), None)
            } else {
                (BlockContent::Hole, Some(record))
            };
            self.put_newest(&mut shard, block, NewestVersion { content, version: VersionNo(version), hole });
        }
    }

    /// Whether any block of a segment is in the cache.
    pub(crate) fn has_segment(&self, segment: SegmentNo) -> bool {
        self.entries.load(Ordering::Acquire) > 0 && self.segment(segment).contains_key(&segment)
    }

    /// Bytes that are acknowledged and only in memory.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Acquire)
    }

    /// Puts the newest version of a block.
    ///
    /// Errors: [`lacuna_contracts::Kind::Memory`] if no buffer is left.
    pub(crate) fn put(&self, block: BlockAddr, data: &[u8]) -> Result<()> {
        let mut shard = self.shard(block);
        let mut buffer = match shard.spare.take(|_| true) {
            Some(spare) => spare,
            None => Arc::new(self.kept.block()?),
        };
        let record = Arc::get_mut(&mut buffer).expect("an unused buffer has no other reference");
        record.bytes_mut().copy_from_slice(data);
        let version = shard.next_version();
        publish_version(record, block, version.0);
        let content = BlockContent::Data(buffer);
        self.put_newest(&mut shard, block, NewestVersion { content, version, hole: None });
        Ok(())
    }

    /// Makes the newest version of a block a hole.
    ///
    /// Errors: as for [`WriteCache::put`].
    pub(crate) fn put_hole(&self, block: BlockAddr) -> Result<()> {
        let record = self.kept.hole()?;
        let mut shard = self.shard(block);
        let version = shard.next_version();
        publish_version(&record, block, version.0);
        let newest = NewestVersion { content: BlockContent::Hole, version, hole: Some(record) };
        self.put_newest(&mut shard, block, newest);
        Ok(())
    }

    /// The latest version of a block in the cache.
    pub(crate) fn find(&self, block: BlockAddr) -> Option<CachedVersion> {
        let shard = self.shard(block);
        let versions = shard.entries.get(&block)?;
        match (&versions.newest, &versions.committed) {
            (Some(newest), _) => Some(CachedVersion::Newest(newest.content.clone())),
            (None, committed) => committed.clone().map(CachedVersion::Committed),
        }
    }

    /// The newest version of a block and its number.
    pub(crate) fn newest(&self, block: BlockAddr) -> Option<(BlockContent, VersionNo)> {
        let shard = self.shard(block);
        let newest = shard.entries.get(&block)?.newest.as_ref()?;
        Some((newest.content.clone(), newest.version))
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
        self.update_entry(block, |versions| versions.newest.take());
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

    fn put_newest(&self, shard: &mut CacheShard, block: BlockAddr, newest: NewestVersion) {
        let cost = cost(&newest.content);
        let versions = shard.entries.entry(block).or_insert_with(|| self.new_entry(block));
        let old = versions.newest.replace(newest);
        let list = !std::mem::replace(&mut versions.is_listed_dirty, true);
        self.dirty_bytes.fetch_add(cost, Ordering::AcqRel);
        if list {
            shard.dirty.push(block);
        }
        self.recycle(shard, old);
    }

    /// Changes an entry, recycles the version that `change` returns, and drops the entry if it is
    /// empty.
    fn update_entry(
        &self,
        block: BlockAddr,
        change: impl FnOnce(&mut BlockCacheEntry) -> Option<NewestVersion>,
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

    fn recycle(&self, shard: &mut CacheShard, freed: Option<NewestVersion>) {
        let Some(newest) = freed else { return };
        // Readers may still have references to it. To a successor it is void now.
        newest.withdraw();
        self.dirty_bytes.fetch_sub(cost(&newest.content), Ordering::AcqRel);
        if let BlockContent::Data(mut buffer) = newest.content
            && Arc::get_mut(&mut buffer).is_some()
        {
            shard.spare.give(buffer, SPARE);
        }
    }

    fn segment(&self, segment: SegmentNo) -> MutexGuard<'_, FxHashMap<SegmentNo, u32>> {
        self.segments[segment.get() as usize % SHARDS].lock()
    }

    fn shard(&self, block: BlockAddr) -> MutexGuard<'_, CacheShard> {
        self.shards[block.0 as usize % SHARDS].lock()
    }
}

impl Drop for WriteCache {
    /// Leaves newest versions to a successor: the journal does not hold them.
    fn drop(&mut self) {
        if self.dirty_bytes() > 0 {
            self.kept.leave();
        }
    }
}

impl CacheShard {
    fn next_version(&mut self) -> VersionNo {
        self.puts += 1;
        VersionNo(self.puts)
    }
}

fn take_version(versions: &mut BlockCacheEntry, version: VersionNo) -> Option<NewestVersion> {
    versions.newest.take_if(|newest| newest.version == version)
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
    use lacuna_kept_memory::{KeptMemory, PoolLayout};
    use std::time::Duration;

    #[test]
    fn unused_buffers_are_wiped() {
        let layout = PoolLayout { records: 1 << 16, words: 2, bytes: BLOCK_SIZE as u32 };
        let memory = KeptMemory::anonymous(&[layout; 4]).unwrap();
        let cache = WriteCache::new(KeptWrites::new(memory));
        let blocks = || (0..SPARE as u64 + 8).map(|at| BlockAddr(at * SHARDS as u64));
        let spare = || cache.shards.iter().map(|shard| shard.lock().spare.len()).sum::<usize>();
        for _ in 0..3 {
            blocks().for_each(|block| cache.put(block, &[7; BLOCK_SIZE]).unwrap());
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
