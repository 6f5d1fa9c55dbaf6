//! The write-back cache: what was acknowledged and is not yet destaged.
//!
//! An entry holds up to two versions of its block: the *newest* (plain, in memory alone) and the *committed* one
//! (encrypted, in the journal, not yet destaged). Invariant: a committed version leaves its entry only when it is destaged,
//! when a later committed version replaces it, or when its segment moved.

use lacuna_core::{BLOCK_SIZE, SEGMENT_BLOCKS};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 32;
/// What a hole costs the budget.
const HOLE_COST: u64 = 64;
/// Buffers kept for reuse per shard.
const POOL: usize = 64;

/// What a block holds.
pub(crate) enum Content {
    Data(Box<[u8; BLOCK_SIZE]>),
    Hole,
}

/// A version of a block that the journal holds.
#[derive(Clone)]
pub(crate) enum Committed {
    Data { batch: Arc<Vec<u8>>, at: usize, meta: [u8; 32] },
    Hole,
}

#[derive(Default)]
struct Cached {
    newest: Option<(Content, u64)>,
    committed: Option<Committed>,
    listed: bool,
}

#[derive(Default)]
struct Shard {
    entries: HashMap<u64, Cached>,
    dirty: Vec<u64>,
    pool: Vec<Box<[u8; BLOCK_SIZE]>>,
    version: u64,
}

pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    entries: AtomicUsize,
    dirty_bytes: AtomicU64,
    /// Slots per segment, so that most segments are known to have none at one look.
    segments: Vec<Mutex<HashMap<u64, u32>>>,
}

impl Cache {
    pub(crate) fn new() -> Self {
        Cache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            entries: AtomicUsize::new(0),
            dirty_bytes: AtomicU64::new(0),
            segments: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Whether any block of a segment is here.
    pub(crate) fn touches(&self, segment: u64) -> bool {
        !self.is_empty() && self.segment(segment).contains_key(&segment)
    }

    /// Whether no block is here at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.load(Ordering::Acquire) == 0
    }

    /// Bytes acknowledged and in memory alone.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Acquire)
    }

    /// Puts the newest version of a block.
    pub(crate) fn put(&self, block: u64, data: &[u8]) {
        let mut shard = self.shard(block);
        let mut buffer = shard.pool.pop().unwrap_or_else(|| Box::new([0; BLOCK_SIZE]));
        buffer.copy_from_slice(data);
        self.put_content(&mut shard, block, Content::Data(buffer));
    }

    /// Makes the newest version of a block a hole.
    pub(crate) fn put_hole(&self, block: u64) {
        self.put_content(&mut self.shard(block), block, Content::Hole);
    }

    /// Copies the newest version of a block, if it is here.
    pub(crate) fn read_newest(&self, block: u64, out: &mut [u8]) -> bool {
        match self.shard(block).entries.get(&block).and_then(|entry| entry.newest.as_ref()) {
            Some((Content::Data(data), _)) => out.copy_from_slice(&data[..]),
            Some((Content::Hole, _)) => out.fill(0),
            None => return false,
        }
        true
    }

    /// Shows the newest version of a block and its number to `f`.
    pub(crate) fn with_newest<R>(&self, block: u64, f: impl FnOnce(&Content, u64) -> R) -> Option<R> {
        let shard = self.shard(block);
        let (content, version) = shard.entries.get(&block)?.newest.as_ref()?;
        Some(f(content, *version))
    }

    pub(crate) fn has_newest(&self, block: u64) -> bool {
        self.with_newest(block, |_, _| ()).is_some()
    }

    pub(crate) fn committed(&self, block: u64) -> Option<Committed> {
        self.shard(block).entries.get(&block)?.committed.clone()
    }

    /// Whether the latest version in the cache is data (`Some(true)`), a hole, or not here.
    pub(crate) fn newest_written(&self, block: u64) -> Option<bool> {
        self.with_newest(block, |content, _| matches!(content, Content::Data(_)))
    }

    /// Drops the newest version, because a later one is elsewhere.
    pub(crate) fn forget_newest(&self, block: u64) {
        self.settle(block, |entry| entry.newest.take().map(|(content, _)| content));
    }

    /// Drops the newest version if it is still number `version`.
    pub(crate) fn forget_version(&self, block: u64, version: u64) {
        self.settle(block, |entry| take_version(entry, version));
    }

    /// The journal now holds version `version` of the block.
    pub(crate) fn commit(&self, block: u64, version: Option<u64>, committed: Committed) {
        let mut shard = self.shard(block);
        let entry = shard.entries.entry(block).or_insert_with(|| self.new_entry(block));
        entry.committed = Some(committed);
        let freed = version.and_then(|version| take_version(entry, version));
        self.recycle(&mut shard, freed);
    }

    /// The committed version is destaged, or its segment moved.
    pub(crate) fn forget_committed(&self, block: u64) {
        self.settle(block, |entry| {
            entry.committed = None;
            None
        });
    }

    /// Takes the list of blocks that have become dirty since the last call, sorted.
    pub(crate) fn take_dirty(&self) -> Vec<u64> {
        let mut blocks = vec![];
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for block in std::mem::take(&mut shard.dirty) {
                if let Some(entry) = shard.entries.get_mut(&block) {
                    entry.listed = false;
                    if entry.newest.is_some() {
                        blocks.push(block);
                    }
                }
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    /// Lists a block as dirty again: its turn has not come.
    pub(crate) fn put_off(&self, block: u64) {
        let mut shard = self.shard(block);
        if let Some(entry) = shard.entries.get_mut(&block)
            && !std::mem::replace(&mut entry.listed, true)
        {
            shard.dirty.push(block);
        }
    }

    /// Every block with a version in memory alone, for the last attempt after a failure.
    pub(crate) fn all_dirty(&self) -> Vec<u64> {
        let mut blocks: Vec<u64> = vec![];
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            blocks.extend(
                shard.entries.iter().filter(|(_, entry)| entry.newest.is_some()).map(|(block, _)| block),
            );
        }
        blocks.sort_unstable();
        blocks
    }

    fn put_content(&self, shard: &mut Shard, block: u64, content: Content) {
        shard.version += 1;
        let version = shard.version;
        let cost = cost(&content);
        let entry = shard.entries.entry(block).or_insert_with(|| self.new_entry(block));
        let old = entry.newest.replace((content, version)).map(|(content, _)| content);
        let list = !std::mem::replace(&mut entry.listed, true);
        self.dirty_bytes.fetch_add(cost, Ordering::AcqRel);
        if list {
            shard.dirty.push(block);
        }
        self.recycle(shard, old);
    }

    /// Changes an entry, recycles what `change` gives up, and drops the entry if nothing is left in it.
    fn settle(&self, block: u64, change: impl FnOnce(&mut Cached) -> Option<Content>) {
        let mut shard = self.shard(block);
        let Some(entry) = shard.entries.get_mut(&block) else { return };
        let freed = change(entry);
        if entry.newest.is_none() && entry.committed.is_none() {
            shard.entries.remove(&block);
            self.entries.fetch_sub(1, Ordering::Release);
            let segment = block / SEGMENT_BLOCKS;
            if let Entry::Occupied(mut count) = self.segment(segment).entry(segment) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        self.recycle(&mut shard, freed);
    }

    fn new_entry(&self, block: u64) -> Cached {
        let segment = block / SEGMENT_BLOCKS;
        *self.segment(segment).entry(segment).or_insert(0) += 1;
        self.entries.fetch_add(1, Ordering::Release);
        Cached::default()
    }

    fn recycle(&self, shard: &mut Shard, freed: Option<Content>) {
        if let Some(content) = freed {
            self.dirty_bytes.fetch_sub(cost(&content), Ordering::AcqRel);
            if let Content::Data(buffer) = content
                && shard.pool.len() < POOL
            {
                shard.pool.push(buffer);
            }
        }
    }

    fn segment(&self, segment: u64) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.segments[segment as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, block: u64) -> MutexGuard<'_, Shard> {
        self.shards[block as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take_version(entry: &mut Cached, version: u64) -> Option<Content> {
    match &entry.newest {
        Some((_, v)) if *v == version => entry.newest.take().map(|(content, _)| content),
        _ => None,
    }
}

fn cost(content: &Content) -> u64 {
    match content {
        Content::Data(_) => BLOCK_SIZE as u64,
        Content::Hole => HOLE_COST,
    }
}
