//! The index: where each block of the disk lies, in pages of 512 entries that lie in the log
//! themselves.
//!
//! Invariants:
//! 1. A page in the cache is the latest; one that is not dirty equals the one that the root names.
//! 2. Dirty pages stay in the cache until the one that writes has written them to the log.
//! 3. One thread at a time changes the index. Others read it meanwhile.

use crate::log::{Log, damaged};
use crate::numbers::{KeyPosition, Place, Target};
use crate::params::{INDEX_FANOUT, Layout};
use lacuna_contracts::{BLOCK_SIZE, BoundedCache, Budget, Result};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxBuildHasher;
use std::collections::BTreeSet;
use std::sync::Arc;

type Entries = Box<[u64; INDEX_FANOUT as usize]>;

struct State {
    /// Where each page lies; `None` for one that has no entries.
    root: Vec<Option<Place>>,
    pages: BoundedCache<u32, Entries, FxBuildHasher>,
    dirty: BTreeSet<u32>,
}

/// Neighbouring blocks that lie together.
pub(crate) enum Run {
    /// So many are unwritten.
    Holes(usize),
    /// The first lies here, each of the others behind the one before it; with the key of each.
    Nodes(Place, Vec<KeyPosition>),
}

/// The index of an open disk.
pub(crate) struct Index {
    log: Arc<Log>,
    state: Mutex<State>,
}

impl Index {
    /// An index without entries.
    pub(crate) fn new(log: Arc<Log>, layout: &Layout, budget: Budget) -> Index {
        let pages = BoundedCache::new((budget.get() / (BLOCK_SIZE as u64 + 64)).max(8) as usize);
        let state = State { root: vec![None; layout.index_pages as usize], pages, dirty: BTreeSet::new() };
        Index { log, state: Mutex::new(state) }
    }

    /// Where a block lies; `None` if it is unwritten.
    pub(crate) fn get(&self, block: u32) -> Result<Option<Place>> {
        let (page, at) = page_of(block);
        Ok(Place::unpack(self.with_page(page, |entries| entries[at])?.unwrap_or(0)))
    }

    /// Where blocks from `first` on lie, as far as one page has them, they are `most` at most, and
    /// they lie one after another in one group. The first alone decides whether these are holes.
    pub(crate) fn run(&self, first: u32, most: usize) -> Result<Run> {
        let (page, at) = page_of(first);
        let most = most.min(INDEX_FANOUT as usize - at);
        let run = self.with_page(page, |entries| {
            let entries = &entries[at..at + most];
            let Some(place) = Place::unpack(entries[0]) else {
                return Run::Holes(entries.iter().take_while(|entry| **entry == 0).count());
            };
            let key = |(entry, ordinal): (&u64, u32)| {
                let next = Place::unpack(*entry)?;
                ((next.group, u32::from(next.ordinal)) == (place.group, ordinal)).then_some(next.key)
            };
            Run::Nodes(place, entries.iter().zip(u32::from(place.ordinal)..).map_while(key).collect())
        })?;
        Ok(run.unwrap_or(Run::Holes(most)))
    }

    /// Where each of these blocks lies.
    pub(crate) fn places(&self, blocks: impl Iterator<Item = u32>) -> Result<Vec<Option<Place>>> {
        let mut places = vec![];
        let mut state = self.state.lock();
        for block in blocks {
            let (page, at) = page_of(block);
            let entry = state.pages.get(page).map(|entries| entries[at]);
            places.push(match entry {
                Some(entry) => Place::unpack(entry),
                None => MutexGuard::unlocked(&mut state, || self.get(block))?,
            });
        }
        Ok(places)
    }

    /// Changes where blocks lie and gives where they lay.
    pub(crate) fn set_all(&self, to: impl Iterator<Item = (u32, Place)>) -> Result<Vec<Option<Place>>> {
        let mut old = vec![];
        let mut state = self.state.lock();
        let mut last = None;
        for (block, place) in to {
            let (page, at) = page_of(block);
            if let Some(entries) = state.pages.get(page) {
                old.push(Place::unpack(std::mem::replace(&mut entries[at], Place::pack(Some(place)))));
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
    pub(crate) fn entries(&self, page: u32) -> Result<Option<Entries>> {
        self.with_page(page, std::clone::Clone::clone)
    }

    /// Changes where a block lies and gives where it lay.
    pub(crate) fn set(&self, block: u32, place: Option<Place>) -> Result<Option<Place>> {
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
            // It was evicted in between: by a reader that needed its room.
            return self.set(block, place);
        };
        let old = std::mem::replace(&mut entries[at], Place::pack(place));
        state.dirty.insert(page);
        Ok(Place::unpack(old))
    }

    /// Pages that differ from those in the log.
    pub(crate) fn dirty(&self) -> usize {
        self.state.lock().dirty.len()
    }

    /// How many dirty pages the cache bears.
    pub(crate) fn most_dirty(&self) -> usize {
        self.state.lock().pages.most() / 2
    }

    /// Some dirty pages, at most so many.
    pub(crate) fn some_dirty(&self, most: usize) -> Vec<u32> {
        self.state.lock().dirty.iter().take(most).copied().collect()
    }

    /// A dirty page as it is now.
    pub(crate) fn bytes_of(&self, page: u32) -> Vec<u8> {
        let state = self.state.lock();
        let entries = state.pages.peek(page).expect("dirty pages stay");
        entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
    }

    /// Notes that a page was written to the log. Gives where it lay before.
    pub(crate) fn written(&self, page: u32, place: Place) -> Option<Place> {
        let mut state = self.state.lock();
        state.dirty.remove(&page);
        state.root[page as usize].replace(place)
    }

    /// Where a page lies.
    pub(crate) fn place_of(&self, page: u32) -> Option<Place> {
        self.state.lock().root.get(page as usize).copied().flatten()
    }

    /// Marks a page to be written again, somewhere else.
    pub(crate) fn touch(&self, page: u32) -> Result<()> {
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

    /// Has the pages of these blocks stay in the cache until they are written, so that to change
    /// where the blocks lie reads nothing.
    pub(crate) fn keep(&self, blocks: impl Iterator<Item = u32>) -> Result<()> {
        let pages: BTreeSet<u32> = blocks.map(|block| page_of(block).0).collect();
        pages.into_iter().try_for_each(|page| self.touch(page))
    }

    /// The root, for a checkpoint. No page is dirty.
    pub(crate) fn root(&self) -> Vec<u64> {
        self.state.lock().root.iter().map(|place| Place::pack(*place)).collect()
    }

    /// Takes the root of a checkpoint over, or what replay finds of a page.
    pub(crate) fn set_root(&self, page: u32, place: Option<Place>) -> Result<Option<Place>> {
        let mut state = self.state.lock();
        let there =
            state.root.get_mut(page as usize).ok_or_else(|| damaged(format!("page {page} of the index")))?;
        Ok(std::mem::replace(there, place))
    }

    /// Shows the entries of a page, reading it if need be. `None` if it has none.
    fn with_page<R>(&self, page: u32, f: impl Fn(&Entries) -> R) -> Result<Option<R>> {
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
            // Not under the lock. What was read may be old by then, or erased.
            let read = self.log.read_index(page, place);
            let mut state = self.state.lock();
            if state.pages.contains(page) || state.root[page as usize] != Some(place) {
                continue;
            }
            let bytes = match read {
                Ok(bytes) => bytes,
                // A reader may have put an old header into the cache just after a new one.
                Err(_) if failed != Some(place) => {
                    drop(state);
                    self.log.forget_header(place.group);
                    failed = Some(place);
                    continue;
                }
                Err(e) => return Err(e),
            };
            let mut entries: Entries = Box::new([0; INDEX_FANOUT as usize]);
            for (entry, bytes) in entries.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *entry = u64::from_le_bytes(*bytes);
            }
            put(&mut state, page, entries);
        }
    }

    fn put(&self, page: u32, entries: Entries) {
        put(&mut self.state.lock(), page, entries);
    }
}

fn put(state: &mut State, page: u32, entries: Entries) {
    let State { pages, dirty, .. } = state;
    if pages.is_full() {
        // If all are dirty, there is one more until they are written.
        pages.evict(|page, _| !dirty.contains(&page));
    }
    pages.put(page, entries);
}

fn page_of(block: u32) -> (u32, usize) {
    (block / INDEX_FANOUT as u32, block as usize % INDEX_FANOUT as usize)
}

impl Target {
    /// The block, if it is one.
    pub(crate) fn block(self) -> Option<u32> {
        match self {
            Target::Block(block) => Some(block),
            Target::Index(_) => None,
        }
    }
}
