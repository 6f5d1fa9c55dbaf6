//! The index: the place of each block of the disk, in pages of 512 entries that are nodes of the
//! log too.
//!
//! Invariants:
//! 1. A page in the cache is the latest version; a clean one equals the page that the root names.
//! 2. Dirty pages stay in the cache until the writer has written them to the log.
//! 3. One thread at a time changes the index. Other threads read it meanwhile.

use crate::ids::{KeyPosition, NodePlace, NodeTarget};
use crate::log::{Log, damaged};
use crate::params::{INDEX_FANOUT, Layout};
use lacuna_contracts::{BLOCK_SIZE, BoundedCache, Budget, Result};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxBuildHasher;
use std::collections::BTreeSet;
use std::sync::Arc;

type IndexPage = Box<[u64; INDEX_FANOUT as usize]>;

struct IndexState {
    /// The place of each page; `None` for a page without entries.
    root: Vec<Option<NodePlace>>,
    pages: BoundedCache<u32, IndexPage, FxBuildHasher>,
    dirty: BTreeSet<u32>,
}

/// Neighbouring blocks that can be read together.
pub(crate) enum IndexRun {
    /// This number of unwritten blocks.
    Holes(usize),
    /// The place of the first block; each further one lies behind the block before it. The key of
    /// each.
    Nodes(NodePlace, Vec<KeyPosition>),
}

/// The index of an open disk.
pub(crate) struct Index {
    log: Arc<Log>,
    state: Mutex<IndexState>,
}

impl Index {
    /// An index without entries.
    pub(crate) fn new(log: Arc<Log>, layout: &Layout, budget: Budget) -> Index {
        let pages = BoundedCache::new((budget.get() / (BLOCK_SIZE as u64 + 64)).max(8) as usize);
        let state =
            IndexState { root: vec![None; layout.index_pages as usize], pages, dirty: BTreeSet::new() };
        Index { log, state: Mutex::new(state) }
    }

    /// The place of a block; `None` if it is unwritten.
    pub(crate) fn get(&self, block: u32) -> Result<Option<NodePlace>> {
        let (page, at) = page_of(block);
        Ok(NodePlace::unpack(self.with_page(page, |entries| entries[at])?.unwrap_or(0)))
    }

    /// The run of blocks that starts at `first`: at most `most`, with entries on one page, and
    /// consecutive in one group. If the first is a hole, the run of holes.
    pub(crate) fn run(&self, first: u32, most: usize) -> Result<IndexRun> {
        let (page, at) = page_of(first);
        let most = most.min(INDEX_FANOUT as usize - at);
        let run = self.with_page(page, |entries| {
            let entries = &entries[at..at + most];
            let Some(place) = NodePlace::unpack(entries[0]) else {
                return IndexRun::Holes(entries.iter().take_while(|entry| **entry == 0).count());
            };
            let key = |(entry, ordinal): (&u64, u32)| {
                let next = NodePlace::unpack(*entry)?;
                ((next.group, u32::from(next.ordinal)) == (place.group, ordinal)).then_some(next.key)
            };
            IndexRun::Nodes(place, entries.iter().zip(u32::from(place.ordinal)..).map_while(key).collect())
        })?;
        Ok(run.unwrap_or(IndexRun::Holes(most)))
    }

    /// The places of these blocks.
    pub(crate) fn places(&self, blocks: impl Iterator<Item = u32>) -> Result<Vec<Option<NodePlace>>> {
        let mut places = vec![];
        let mut state = self.state.lock();
        for block in blocks {
            let (page, at) = page_of(block);
            let entry = state.pages.get(page).map(|entries| entries[at]);
            places.push(match entry {
                Some(entry) => NodePlace::unpack(entry),
                None => MutexGuard::unlocked(&mut state, || self.get(block))?,
            });
        }
        Ok(places)
    }

    /// Sets the places of blocks, and returns the old ones.
    pub(crate) fn set_all(
        &self,
        to: impl Iterator<Item = (u32, NodePlace)>,
    ) -> Result<Vec<Option<NodePlace>>> {
        let mut old = vec![];
        let mut state = self.state.lock();
        let mut last = None;
        for (block, place) in to {
            let (page, at) = page_of(block);
            if let Some(entries) = state.pages.get(page) {
                old.push(NodePlace::unpack(std::mem::replace(
                    &mut entries[at],
                    NodePlace::pack(Some(place)),
                )));
                if last != Some(page) {
                    state.dirty.insert(page);
                    last = Some(page);
                }
            } else {
                old.push(MutexGuard::unlocked(&mut state, || self.set(block, Some(place)))?);
                last = None;
            }
        }
        Ok(old)
    }

    /// The entries of a page, if it has any.
    pub(crate) fn entries(&self, page: u32) -> Result<Option<IndexPage>> {
        self.with_page(page, std::clone::Clone::clone)
    }

    /// Sets the place of a block, and returns the old one.
    pub(crate) fn set(&self, block: u32, place: Option<NodePlace>) -> Result<Option<NodePlace>> {
        let (page, at) = page_of(block);
        if self.with_page(page, |_| ())?.is_none() {
            if place.is_none() {
                return Ok(None);
            }
            self.put(page, Box::new([0; INDEX_FANOUT as usize]));
        }
        let mut state = self.state.lock();
        let Some(entries) = state.pages.get(page) else {
            drop(state);
            // A reader that needed room in the cache evicted it in between.
            return self.set(block, place);
        };
        let old = std::mem::replace(&mut entries[at], NodePlace::pack(place));
        state.dirty.insert(page);
        Ok(NodePlace::unpack(old))
    }

    /// The number of pages that differ from the log.
    pub(crate) fn dirty_count(&self) -> usize {
        self.state.lock().dirty.len()
    }

    /// The most dirty pages that the cache can hold.
    pub(crate) fn max_dirty(&self) -> usize {
        self.state.lock().pages.capacity() / 2
    }

    /// Some dirty pages, at most `most`.
    pub(crate) fn some_dirty(&self, most: usize) -> Vec<u32> {
        self.state.lock().dirty.iter().take(most).copied().collect()
    }

    /// The present content of a dirty page.
    pub(crate) fn page_bytes(&self, page: u32) -> Vec<u8> {
        let state = self.state.lock();
        let entries = state.pages.peek(page).expect("dirty pages stay");
        entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
    }

    /// Notes that a page was written to the log. Returns its old place.
    pub(crate) fn note_written(&self, page: u32, place: NodePlace) -> Option<NodePlace> {
        let mut state = self.state.lock();
        state.dirty.remove(&page);
        state.root[page as usize].replace(place)
    }

    /// The place of a page.
    pub(crate) fn place_of(&self, page: u32) -> Option<NodePlace> {
        self.state.lock().root.get(page as usize).copied().flatten()
    }

    /// Marks a page dirty, so that it is written again at another place.
    pub(crate) fn mark_dirty(&self, page: u32) -> Result<()> {
        loop {
            if self.with_page(page, |_| ())?.is_none() {
                return Ok(());
            }
            let mut state = self.state.lock();
            if state.pages.contains(page) {
                state.dirty.insert(page);
                return Ok(());
            }
        }
    }

    /// Keeps the pages of these blocks in the cache until they are written, so that setting the
    /// places of the blocks reads nothing.
    pub(crate) fn pin_pages(&self, blocks: impl Iterator<Item = u32>) -> Result<()> {
        let pages: BTreeSet<u32> = blocks.map(|block| page_of(block).0).collect();
        pages.into_iter().try_for_each(|page| self.mark_dirty(page))
    }

    /// The root, for a checkpoint. No page is dirty.
    pub(crate) fn root(&self) -> Vec<u64> {
        self.state.lock().root.iter().map(|place| NodePlace::pack(*place)).collect()
    }

    /// Sets the place of a page, from a checkpoint or from replay.
    pub(crate) fn set_root(&self, page: u32, place: Option<NodePlace>) -> Result<Option<NodePlace>> {
        let mut state = self.state.lock();
        let there =
            state.root.get_mut(page as usize).ok_or_else(|| damaged(format!("page {page} of the index")))?;
        Ok(std::mem::replace(there, place))
    }

    /// Passes the entries of a page to `f`, reading it if it is not cached. `None` if it has no
    /// entries.
    fn with_page<R>(&self, page: u32, f: impl Fn(&IndexPage) -> R) -> Result<Option<R>> {
        let mut failed = None;
        loop {
            let place = {
                let mut state = self.state.lock();
                if let Some(entries) = state.pages.get(page) {
                    return Ok(Some(f(entries)));
                }
                state.root.get(page as usize).copied().flatten()
            };
            let Some(place) = place else { return Ok(None) };
            // Read without the lock. The page may be stale or erased by then.
            let read = self.log.read_index(page, place);
            let mut state = self.state.lock();
            if state.pages.contains(page) || state.root[page as usize] != Some(place) {
                continue;
            }
            let bytes = match read {
                Ok(bytes) => bytes,
                // A reader may have cached an old header just after a new one was cached.
                Err(_) if failed != Some(place) => {
                    drop(state);
                    self.log.forget_header(place.group);
                    failed = Some(place);
                    continue;
                }
                Err(e) => return Err(e),
            };
            let mut entries: IndexPage = Box::new([0; INDEX_FANOUT as usize]);
            for (entry, bytes) in entries.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *entry = u64::from_le_bytes(*bytes);
            }
            put(&mut state, page, entries);
        }
    }

    fn put(&self, page: u32, entries: IndexPage) {
        put(&mut self.state.lock(), page, entries);
    }
}

fn put(state: &mut IndexState, page: u32, entries: IndexPage) {
    let IndexState { pages, dirty, .. } = state;
    if pages.is_full() {
        // If all pages are dirty, the cache exceeds its limit until they are written.
        pages.evict(|page, _| !dirty.contains(&page));
    }
    pages.put(page, entries);
}

fn page_of(block: u32) -> (u32, usize) {
    (block / INDEX_FANOUT as u32, block as usize % INDEX_FANOUT as usize)
}

impl NodeTarget {
    /// The block, if the target is a block.
    pub(crate) fn block(self) -> Option<u32> {
        match self {
            NodeTarget::Block(block) => Some(block),
            NodeTarget::Index(_) => None,
        }
    }
}
