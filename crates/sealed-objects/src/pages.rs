//! Pages of metadata kept in memory for the layout adaptive: the entries of 128 blocks each, in a bounded number.
//!
//! A page here equals what the store holds, or will hold once the transaction in flight on its object is
//! acknowledged. So any page may be given up at any time.

use super::chain::Tag;
use super::chunks::{CHUNK_BLOCKS, Chunks, each_chunk};
use lacuna_core::{Budget, SEGMENT_BLOCKS};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;
const CHUNKS: u64 = SEGMENT_BLOCKS / CHUNK_BLOCKS;
/// What a page takes beside its entries.
const PAGE_COST: usize = 128;

/// The entries of one chunk.
#[derive(Default)]
pub(crate) struct Page {
    /// One after the other, zeros where nothing is written.
    pub(crate) entries: Box<[u8]>,
    /// The blocks of the chunk whose entry is newer than the stored page's: it stands in the amendment, or in deltas.
    pub(crate) amended: u128,
    /// Without a chain: the blocks of the chunk whose entry stands under a key of its own, newer still.
    pub(crate) apart: u128,
    /// With a chain: the tag of the stored page; zeros if there is none.
    pub(crate) base: Tag,
    /// Some of its entries are lost, or may be: what is in the store can still be put right, so this is not remembered.
    pub(crate) lost: bool,
}

/// What an answer taught beyond what was asked: whole pages of entries.
pub(crate) type Learned = Vec<(u64, Page)>;

#[derive(Default)]
struct Shard {
    places: HashMap<u64, usize>,
    pages: Vec<Place>,
    free: Vec<usize>,
    hand: usize,
}

struct Place {
    number: u64,
    used: bool,
    page: Option<Page>,
}

pub(crate) struct Pages {
    shards: Box<[Mutex<Shard>]>,
    per_shard: usize,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Pages {
    /// Room for pages of `len` bytes within the budget.
    pub(crate) fn new(len: usize, budget: Budget) -> Self {
        let pages = (budget.get() / (len + PAGE_COST) as u64) as usize;
        Pages {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            per_shard: (pages / SHARDS).max(1),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Shows a page to `f`, if it is here, to read or change it.
    pub(crate) fn with<R>(&self, segment: u64, chunk: u64, f: impl FnOnce(&mut Page) -> R) -> Option<R> {
        let number = segment * CHUNKS + chunk;
        let mut shard = self.shard(number);
        let at = *shard.places.get(&number)?;
        let place = &mut shard.pages[at];
        place.used = true;
        place.page.as_mut().map(f)
    }

    /// Puts a page, in the place of whatever is here under its number.
    pub(crate) fn put(&self, segment: u64, chunk: u64, page: Page) {
        let number = segment * CHUNKS + chunk;
        self.shard(number).put(number, page, self.per_shard);
    }

    /// Puts the pages of a segment of which nothing is lost.
    pub(crate) fn put_all(&self, segment: u64, learned: Learned) {
        let sound = learned.into_iter().filter(|(_, page)| !page.lost);
        sound.for_each(|(chunk, page)| self.put(segment, chunk, page));
    }

    /// Fills the entries of a range of a segment, `meta` bytes each, from pages that are here. Gives the chunks that are
    /// not.
    pub(crate) fn recall(&self, segment: u64, range: &Range<u64>, meta: usize, entries: &mut [u8]) -> Chunks {
        let mut missing = 0;
        each_chunk(range, meta, |chunk, within, bytes| {
            let found =
                self.with(segment, chunk, |page| entries[bytes].copy_from_slice(&page.entries[within]));
            self.count(found.is_some());
            if found.is_none() {
                missing |= 1 << chunk;
            }
        });
        missing
    }

    /// Whether the entries of a range are still those of pages that are here.
    pub(crate) fn is_still(&self, segment: u64, range: &Range<u64>, meta: usize, entries: &[u8]) -> bool {
        let mut same = true;
        each_chunk(range, meta, |chunk, within, bytes| {
            let equal = |page: &mut Page| page.entries[within] == entries[bytes];
            same &= self.with(segment, chunk, equal).unwrap_or(false);
        });
        same
    }

    /// Drops the pages of a segment.
    pub(crate) fn forget(&self, segment: u64) {
        (segment * CHUNKS..(segment + 1) * CHUNKS).for_each(|number| self.shard(number).drop_page(number));
    }

    /// Drops all pages.
    pub(crate) fn forget_all(&self) {
        for shard in &self.shards {
            *shard.lock().unwrap_or_else(PoisonError::into_inner) = Shard::default();
        }
    }

    /// Counts a page that a reader found here, or did not.
    fn count(&self, found: bool) {
        if found { &self.hits } else { &self.misses }.fetch_add(1, Ordering::Relaxed);
    }

    /// Hits and misses so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, Shard> {
        // Neighbouring chunks are used together: they lie in different shards.
        self.shards[number as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn put(&mut self, number: u64, page: Page, capacity: usize) {
        let new = Place { number, used: true, page: Some(page) };
        if let Some(&at) = self.places.get(&number) {
            self.pages[at] = new;
            return;
        }
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.pages.len() < capacity => {
                self.pages.push(Place { number, used: false, page: None });
                self.pages.len() - 1
            }
            None => {
                let at = self.victim();
                self.places.remove(&self.pages[at].number);
                at
            }
        };
        self.pages[at] = new;
        self.places.insert(number, at);
    }

    /// The next place not used since the hand last passed.
    fn victim(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.pages.len();
            if !std::mem::take(&mut self.pages[self.hand].used) {
                return self.hand;
            }
        }
    }

    fn drop_page(&mut self, number: u64) {
        if let Some(at) = self.places.remove(&number) {
            self.pages[at].page = None;
            self.free.push(at);
        }
    }
}

/// The page of a chunk among those that were asked for.
pub(crate) fn page_mut(learned: &mut Learned, chunk: u8) -> &mut Page {
    let place = learned.iter_mut().find(|(number, _)| *number == u64::from(chunk));
    &mut place.expect("the chunk is among those asked for").1
}

/// Copies the entries of the blocks of a range out of the pages that were learned, which ascend.
pub(crate) fn copy_learned(learned: &Learned, range: &Range<u64>, meta: usize, entries: &mut [u8]) {
    let mut pages = learned.iter().peekable();
    each_chunk(range, meta, |chunk, within, bytes| {
        if let Some((_, page)) = pages.next_if(|(learned, _)| *learned == chunk) {
            entries[bytes].copy_from_slice(&page.entries[within]);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(stamp: u64) -> Page {
        Page { entries: stamp.to_le_bytes().into(), apart: stamp.into(), ..Page::default() }
    }

    #[test]
    fn a_small_store_keeps_its_bound_and_never_mixes_pages_up() {
        let pages = Pages::new(8, Budget::bytes(64 * 5 * (8 + PAGE_COST as u64)));
        let mut x = 7u64;
        for i in 0..50_000u64 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            let (segment, chunk) = ((x >> 40) % 300, (x >> 33) % CHUNKS);
            match i % 9 {
                0 => pages.forget(segment),
                1..5 => pages.put(segment, chunk, page(segment * 16 + chunk)),
                _ => {
                    let found = pages.with(segment, chunk, |page| page.apart);
                    assert!(found.is_none_or(|found| found == u128::from(segment * 16 + chunk)));
                }
            }
        }
        let kept: usize = pages.shards.iter().map(|shard| shard.lock().unwrap().places.len()).sum();
        assert!(kept <= 64 * 5);
        assert!(kept > 64);
        pages.forget_all();
        assert!((0..300).all(|segment| pages.with(segment, 3, |_| ()).is_none()));
    }
}
