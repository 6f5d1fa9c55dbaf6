//! The map of one level: a tree of pages of 512 places, with the places of blocks in its leaves
//! (PD-DM's PPM for level 0, its HM for the hidden levels). A place is a nonzero word with a
//! meaning that the format defines.
//!
//! Pages lie in slots like data. All pages above the leaves are in memory (8 bytes for each 2 MiB
//! of the level: 4 MiB for 1 TiB); leaves are cached within a bound. A changed page is written out
//! in the next *cycle*: leaves first, then the pages that point at them, up to the top. Then the
//! state advances, and rebuilding the map needs no earlier summary. Changes found in summaries when
//! the disk is opened are kept as a delta until their leaf is loaded.

use crate::dirty_pages::{CycleStep, DirtyPages};
use crate::entry::{LOST_PLACE, MAX_DEPTHS, SlotEntry};
use crate::leaves::{LeafCache, MapPage, WHOLE_LEAF};
use crate::map_size::FANOUT;
use crate::map_state::MapState;
use lacuna_contracts::{BLOCK_SIZE, Kind, Result, StatusItem};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// The source of map pages.
pub trait PageSource {
    /// Reads the block that lies at `place`, which is neither 0 nor [`LOST_PLACE`], as `entry`.
    /// Errors: [`Kind::Corrupt`] if it does not verify; all places in the page are then lost.
    fn load(&self, place: u64, entry: SlotEntry, block: &mut [u8; BLOCK_SIZE]) -> Result<()>;
}

/// A leaf of a map that is on the medium and not in memory.
#[derive(Clone, Copy, Debug)]
pub struct UncachedLeaf {
    number: u64,
    place: u64,
}

impl UncachedLeaf {
    /// Reads the leaf. Errors: those of `source`, [`Kind::Corrupt`] if it does not verify.
    pub fn load(self, source: &dyn PageSource) -> Result<LoadedLeaf> {
        let mut block = [0; BLOCK_SIZE];
        source.load(self.place, SlotEntry::Page { depth: 0, index: self.number }, &mut block)?;
        Ok(LoadedLeaf { uncached: self, page: page_of(&block) })
    }
}

/// A leaf as read from the medium.
pub struct LoadedLeaf {
    uncached: UncachedLeaf,
    page: MapPage,
}

/// The map of a level.
pub struct LevelMap {
    blocks: u64,
    /// The places of the pages of each depth; the last depth has one page, the top.
    pages: Vec<Vec<u64>>,
    dirty: DirtyPages,
    leaves: LeafCache,
    state: MapState,
}

impl LevelMap {
    /// The empty map of a level of `blocks` blocks. It writes its pages out once in `cycle_len`
    /// stripes (or batches) and caches `cached` leaves.
    pub fn new(blocks: u64, cycle_len: u64, cached: usize) -> LevelMap {
        let mut pages = Vec::new();
        let mut width = blocks;
        loop {
            width = width.div_ceil(FANOUT);
            pages.push(vec![0; width as usize]);
            if width <= 1 {
                break;
            }
        }
        debug_assert!(pages.len() <= usize::from(MAX_DEPTHS));
        let leaves = LeafCache::new(cached);
        let write_out = DirtyPages::new(pages.len(), cycle_len, leaves.capacity() / 2);
        LevelMap { blocks, pages, dirty: write_out, leaves, state: MapState::default() }
    }

    /// The same, for a format that writes pages out no faster than its schedule: changed leaves may
    /// leave memory, which then keeps only their changes, and `most_dirty` of them may wait to be
    /// written.
    pub fn spilling(mut self, most_dirty: usize) -> LevelMap {
        self.leaves.allow_dirty_eviction();
        self.dirty.raise_max_dirty(most_dirty);
        self
    }

    /// Depths of the map, 1 for a level of one leaf.
    fn depths(&self) -> usize {
        self.pages.len()
    }

    /// The state of this map for a summary.
    pub fn state(&self) -> MapState {
        MapState { root: self.pages[self.depths() - 1][0], ..self.state }
    }

    /// Its counters: written blocks, and pages that wait to be written.
    pub fn status(&self) -> [StatusItem; 2] {
        let (data, waiting) = (self.state.data, self.dirty.dirty_count());
        [StatusItem::new("data", data, "blocks"), StatusItem::new("map_pages_waiting", waiting, "pages")]
    }

    /// The place of block `addr`: 0 if it is not written, [`LOST_PLACE`] if it is unknown.
    pub fn get(&mut self, addr: u64, source: &dyn PageSource) -> Result<u64> {
        let mut place = [0];
        self.places(addr, &mut place, source)?;
        Ok(place[0])
    }

    /// The places of the blocks starting at `first`, as [`LevelMap::get`] returns them.
    pub fn places(&mut self, first: u64, out: &mut [u64], source: &dyn PageSource) -> Result<()> {
        for (number, at, blocks) in leaf_parts(first, out.len()) {
            let here = &mut out[blocks];
            if self.has_leaf(number) {
                self.ensure_cached(number, source)?;
                here.copy_from_slice(&self.leaves.places(number)[at..][..here.len()]);
            } else {
                here.fill(0);
            }
        }
        Ok(())
    }

    /// The same, for readers that share the map, if no leaf has to be loaded. Returns false if one
    /// has to: `out` then has no meaning.
    pub fn places_in_memory(&self, first: u64, out: &mut [u64]) -> bool {
        for (number, at, blocks) in leaf_parts(first, out.len()) {
            let here = &mut out[blocks];
            match self.leaves.cached(number) {
                Some(leaf) => here.copy_from_slice(&leaf[at..][..here.len()]),
                None if self.has_leaf(number) => return false,
                None => here.fill(0),
            }
        }
        true
    }

    /// The first leaf with blocks of a range that is on the medium and not in memory.
    pub fn first_uncached(&self, first: u64, count: u64) -> Option<UncachedLeaf> {
        let last = first.saturating_add(count.max(1)).min(self.blocks).saturating_sub(1);
        let absent = |leaf: &u64| !self.leaves.is_cached(*leaf);
        (first / FANOUT..=last / FANOUT)
            .filter(absent)
            .map(|number| UncachedLeaf { number, place: self.pages[0][number as usize] })
            .find(|missing| missing.place != 0 && missing.place != LOST_PLACE)
    }

    /// Puts a leaf into memory that was loaded without a lock, unless it moved or was loaded
    /// meanwhile.
    pub fn insert_leaf(&mut self, leaf: LoadedLeaf) {
        let LoadedLeaf { uncached: UncachedLeaf { number, place }, page } = leaf;
        if self.pages[0][number as usize] == place && !self.leaves.is_cached(number) {
            self.leaves.put(number, page, |number| self.dirty.is_dirty(0, number));
        }
    }

    /// The most leaves that the cache holds.
    pub fn cache_capacity(&self) -> u64 {
        self.leaves.capacity() as u64
    }

    /// The most leaves that were in memory at once: more than the cache holds if changed ones had
    /// to stay.
    pub fn peak_leaves(&self) -> u64 {
        self.leaves.peak() as u64
    }

    /// Sets the place of block `addr`, and returns the old one.
    pub fn set(&mut self, addr: u64, packed: u64, source: &dyn PageSource) -> Result<u64> {
        let (number, at) = (addr / FANOUT, (addr % FANOUT) as usize);
        self.ensure_cached(number, source)?;
        let was = self.leaves.set(number, at, packed);
        self.dirty.mark_dirty(0, number);
        match (was, packed) {
            (0, 0) => {}
            (0, _) => self.state.data = self.state.data.saturating_add(1),
            (_, 0) => self.state.data = self.state.data.saturating_sub(1),
            _ => {}
        }
        Ok(was)
    }

    /// Whether any block of the range is written.
    pub fn has_written(&mut self, first: u64, count: u64, source: &dyn PageSource) -> Result<bool> {
        let mut at = first;
        while let Some(next) = self.next_written(at, first + count, source)? {
            if next < first + count {
                return Ok(true);
            }
            at = next;
        }
        Ok(false)
    }

    /// The first written block in a range; skips leaves that do not exist.
    fn next_written(&mut self, first: u64, end: u64, source: &dyn PageSource) -> Result<Option<u64>> {
        let mut at = first;
        while at < end {
            if !self.has_leaf(at / FANOUT) {
                at = (at / FANOUT + 1) * FANOUT;
                continue;
            }
            if self.get(at, source)? != 0 {
                return Ok(Some(at));
            }
            at += 1;
        }
        Ok(None)
    }

    fn has_leaf(&self, leaf: u64) -> bool {
        self.pages[0][leaf as usize] != 0 || self.leaves.may_have_changes(leaf)
    }

    /// Makes the blocks of a range unwritten. Returns the number that were written.
    pub fn clear(&mut self, first: u64, count: u64, source: &dyn PageSource) -> Result<u64> {
        let (mut at, mut cleared) = (first, 0);
        while let Some(written) = self.next_written(at, first + count, source)? {
            self.set(written, 0, source)?;
            cleared += 1;
            at = written + 1;
            // The last block of a leaf that was cleared whole.
            let leaf = written / FANOUT;
            let whole = first <= leaf * FANOUT && (leaf + 1) * FANOUT <= first + count;
            if whole && self.leaves.places(leaf).iter().all(|place| *place == 0) {
                self.leaves.note_cleared(leaf);
            }
        }
        Ok(cleared)
    }

    /// The place of the block or page that `entry` names: 0 if it is unwritten, not within the
    /// level, or an entry without a place in a map; [`LOST_PLACE`] if it is unknown.
    pub fn place_of(&mut self, entry: SlotEntry, source: &dyn PageSource) -> Result<u64> {
        match entry {
            SlotEntry::Data(addr) | SlotEntry::Lost(addr) if addr < self.blocks => self.get(addr, source),
            SlotEntry::Page { depth, index } => Ok(self.page_place(depth, index).unwrap_or(0)),
            SlotEntry::Data(_) | SlotEntry::Lost(_) | SlotEntry::Empty | SlotEntry::Trim { .. } => Ok(0),
        }
    }

    /// The page that `entry` names can no longer be read at its place: the next cycle writes it
    /// again, if it is in memory.
    pub fn mark_for_rewrite(&mut self, entry: SlotEntry) {
        if let SlotEntry::Page { depth, index } = entry
            && self.contains(entry)
            && (depth > 0 || self.leaves.is_cached(index))
        {
            self.dirty.mark_dirty(usize::from(depth), index);
        }
    }

    /// Whether the block or page that `entry` names lies within this map.
    pub fn contains(&self, entry: SlotEntry) -> bool {
        match entry {
            SlotEntry::Data(addr) | SlotEntry::Lost(addr) => addr < self.blocks,
            SlotEntry::Page { depth, index } => {
                self.pages.get(usize::from(depth)).is_some_and(|pages| index < pages.len() as u64)
            }
            SlotEntry::Empty | SlotEntry::Trim { .. } => false,
        }
    }

    /// The write that began the running cycle; 0 if none runs.
    pub fn cycle_start(&self) -> u64 {
        self.dirty.cycle_start()
    }

    /// Resumes a cycle of an earlier session, after [`LevelMap::restore`] and the replay of all
    /// changes: it still has to write the leaves that `early` selects, which changed before it
    /// began. Otherwise sessions shorter than a cycle would never finish one, and changes that no
    /// page has would grow old without bound.
    pub fn resume_cycle(&mut self, began: u64, early: impl Fn(u64) -> bool) {
        self.dirty.resume(began, early);
    }

    /// The place of a page; none if the map has no such page.
    fn page_place(&self, depth: u8, index: u64) -> Option<u64> {
        self.pages.get(usize::from(depth))?.get(usize::try_from(index).ok()?).copied()
    }

    // Writing pages.

    /// The number of pages that write `seq` should take so that the cycle ends in time and the
    /// changed leaves fit the cache. Begins a cycle when one is due.
    pub fn pages_due(&mut self, seq: u64) -> usize {
        self.dirty.pages_due(seq, self.pages[1..].iter().map(Vec::len)).unwrap_or_else(|| {
            // All changes before this write are in pages that were written before it.
            self.state.covered = seq - 1;
            0
        })
    }

    /// Writes the next page of the cycle into `block`, which is to lie at `place`. None if the
    /// cycle has no page left, which ends it.
    pub fn write_next_page(
        &mut self,
        place: u64,
        source: &dyn PageSource,
        block: &mut [u8],
    ) -> Result<Option<SlotEntry>> {
        loop {
            let (depth, index) = match self.dirty.next() {
                CycleStep::Page(depth, index) => (depth, index),
                CycleStep::Done(covered) => {
                    self.state.covered = covered;
                    return Ok(None);
                }
                CycleStep::Idle => return Ok(None),
            };
            let empty = self.encode(depth, index, source, block).inspect_err(|_| {
                self.dirty.put_back(index);
            })?;
            let listed = &mut self.pages[depth][index as usize];
            if empty && *listed == 0 {
                continue;
            }
            // Write a page that has become empty too: recovery after a crash must not find its old
            // version.
            self.state.pages = self.state.pages.saturating_add(u64::from(*listed == 0));
            *listed = place;
            self.dirty.mark_parent_dirty(depth, index);
            return Ok(Some(SlotEntry::Page { depth: depth as u8, index }));
        }
    }

    /// Serialises a page. Returns whether it is empty.
    fn encode(
        &mut self,
        depth: usize,
        index: u64,
        source: &dyn PageSource,
        block: &mut [u8],
    ) -> Result<bool> {
        block.fill(0);
        if depth == 0 {
            self.ensure_cached(index, source)?;
            let empty = encode_places(&self.leaves.places(index)[..], block);
            self.leaves.note_written(index);
            return Ok(empty);
        }
        let below = &self.pages[depth - 1];
        let first = (index * FANOUT) as usize;
        let end = below.len().min(first + FANOUT as usize);
        Ok(encode_places(&below[first..end], block))
    }

    // Opening.

    /// Takes over the state in a summary, and loads the pages above the leaves. `moved` has the
    /// places of pages that later stripes wrote, which are newer than those in the pages above
    /// them.
    pub fn restore(
        &mut self,
        state: MapState,
        moved: &FxHashMap<(u8, u64), u64>,
        source: &dyn PageSource,
    ) -> Result<()> {
        self.state = state;
        self.dirty.schedule_after(state.covered);
        let top = self.depths() - 1;
        let place_of = |depth: usize, index: u64, listed: u64| {
            moved.get(&(depth as u8, index)).copied().unwrap_or(listed)
        };
        self.pages[top][0] = place_of(top, 0, state.root);
        for depth in (1..=top).rev() {
            for index in 0..self.pages[depth].len() as u64 {
                let children = self.load_inner(depth, index, source)?;
                let first = index * FANOUT;
                let below = &mut self.pages[depth - 1];
                let end = below.len().min((first + FANOUT) as usize);
                for (child, listed) in (first..).zip(&mut below[first as usize..end]) {
                    *listed = place_of(depth - 1, child, children[(child - first) as usize]);
                }
            }
        }
        // The pages above do not have the moved places yet.
        for &(depth, index) in moved.keys() {
            if self.page_place(depth, index).is_some() {
                self.dirty.mark_parent_dirty(usize::from(depth), index);
            }
        }
        Ok(())
    }

    /// Loads a page above the leaves; if it does not verify, everything below it is lost.
    fn load_inner(&self, depth: usize, index: u64, source: &dyn PageSource) -> Result<MapPage> {
        let packed = self.pages[depth][index as usize];
        load(packed, SlotEntry::Page { depth: depth as u8, index }, source)
    }

    /// Replays a change that a summary lists.
    pub fn replay(&mut self, addr: u64, packed: u64) {
        if addr < self.blocks {
            self.leaves.add_change(addr / FANOUT, (addr % FANOUT) as u16, packed);
            self.dirty.mark_dirty(0, addr / FANOUT);
        }
    }

    /// Whether too many leaves wait to be written to change more for the moment.
    pub fn is_over_dirty_limit(&self) -> bool {
        self.dirty.is_over_limit()
    }

    /// Replays a discard that a summary lists.
    pub fn replay_clear(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count).min(self.blocks);
        let mut at = first;
        while at < end {
            let leaf_end = ((at / FANOUT + 1) * FANOUT).min(end);
            if self.has_leaf(at / FANOUT) && leaf_end - at == FANOUT {
                // A whole leaf: its earlier changes no longer matter.
                self.leaves.add_change(at / FANOUT, WHOLE_LEAF, 0);
                self.dirty.mark_dirty(0, at / FANOUT);
            } else if self.has_leaf(at / FANOUT) {
                (at..leaf_end).for_each(|addr| self.replay(addr, 0));
            }
            at = leaf_end;
        }
    }

    // Leaves.

    /// Loads a leaf into memory if it is not there.
    fn ensure_cached(&mut self, number: u64, source: &dyn PageSource) -> Result<()> {
        if self.leaves.is_cached(number) {
            return Ok(());
        }
        let packed = self.pages[0][number as usize];
        let places = load(packed, SlotEntry::Page { depth: 0, index: number }, source)?;
        self.leaves.put(number, places, |number| self.dirty.is_dirty(0, number));
        Ok(())
    }
}

/// Splits blocks at the ends of leaves: the number of each leaf, the first place in it, and the
/// blocks in it, counted from `first`.
fn leaf_parts(first: u64, count: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let addr = first + done as u64;
        let at = (addr % FANOUT) as usize;
        let blocks = done..count.min(done + FANOUT as usize - at);
        done = blocks.end;
        (!blocks.is_empty()).then_some((addr / FANOUT, at, blocks))
    })
}

/// Writes places to the beginning of a page. Returns whether all of them are 0.
fn encode_places(places: &[u64], block: &mut [u8]) -> bool {
    for (out, packed) in block.chunks_exact_mut(8).zip(places) {
        out.copy_from_slice(&packed.to_le_bytes());
    }
    places.iter().all(|packed| *packed == 0)
}

fn page_of(block: &[u8; BLOCK_SIZE]) -> MapPage {
    let mut page: MapPage = Box::new([0; FANOUT as usize]);
    for (packed, bytes) in page.iter_mut().zip(block.chunks_exact(8)) {
        *packed = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    }
    page
}

/// Reads a page. If it does not verify, everything in it is lost; if the medium fails, that is an
/// error.
fn load(place: u64, entry: SlotEntry, source: &dyn PageSource) -> Result<MapPage> {
    let mut page: MapPage = Box::new([0; FANOUT as usize]);
    match place {
        0 => return Ok(page),
        LOST_PLACE => {
            page.fill(LOST_PLACE);
            return Ok(page);
        }
        _ => {}
    }
    let mut block = [0; BLOCK_SIZE];
    match source.load(place, entry, &mut block) {
        Ok(()) => page = page_of(&block),
        Err(e) if e.kind() == Kind::Corrupt => page.fill(LOST_PLACE),
        Err(e) => return Err(e),
    }
    Ok(page)
}
