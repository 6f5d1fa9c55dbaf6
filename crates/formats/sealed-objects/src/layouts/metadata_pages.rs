//! Metadata pages cached in memory for the layout adaptive: the entries of 128 blocks each, in a
//! bounded number.
//!
//! A cached page equals the page in the store, or the page that the store will hold once the
//! transaction in flight on its object is acknowledged. So any page may be dropped at any time.

use crate::layouts::chain::ChainTag;
use crate::layouts::chunks::{CHUNK_BLOCKS, ChunkSet, for_each_chunk};
use crate::segment::Segment;
use lacuna_contracts::{BoundedCache, Budget, SEGMENT_BLOCKS};
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 64;
const CHUNKS: u64 = SEGMENT_BLOCKS / CHUNK_BLOCKS;
/// Memory of a page beyond its entries.
const PAGE_COST: usize = 128;

/// The entries of one chunk.
#[derive(Default)]
pub(crate) struct MetadataPage {
    /// Contiguous entries; zeros for blocks that are not written.
    pub(crate) entries: Box<[u8]>,
    /// The blocks with an entry newer than the stored page: it is in the amendment, or in deltas.
    pub(crate) amended: u128,
    /// Without a chain: the blocks with an entry under a key of its own, which is newer than the
    /// amendment.
    pub(crate) apart: u128,
    /// With a chain: the tag of the stored page; zeros if there is no page.
    pub(crate) base: ChainTag,
    /// Some entries are lost, or may be. The page is not cached, since the store may still be
    /// repaired.
    pub(crate) lost: bool,
}

impl MetadataPage {
    /// A page of unwritten blocks.
    pub(crate) fn blank(meta: usize) -> MetadataPage {
        MetadataPage { entries: vec![0; page_len(meta)].into(), ..MetadataPage::default() }
    }
}

/// Bytes of a page of entries of `meta` bytes.
pub(crate) const fn page_len(meta: usize) -> usize {
    CHUNK_BLOCKS as usize * meta
}

/// The pages of entries in an answer, by chunk.
pub(crate) type FetchedPages = Vec<(u64, MetadataPage)>;

/// A bounded number of pages, in shards.
pub(crate) struct MetadataPages {
    /// By the number of the chunk across all segments.
    shards: Box<[Mutex<BoundedCache<u64, MetadataPage>>]>,
    meta: usize,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl MetadataPages {
    /// Space for pages of entries of `meta` bytes within the budget.
    pub(crate) fn new(meta: usize, budget: Budget) -> Self {
        let pages = (budget.get() / (page_len(meta) + PAGE_COST) as u64) as usize;
        MetadataPages {
            shards: (0..SHARDS).map(|_| Mutex::new(BoundedCache::new(pages / SHARDS))).collect(),
            meta,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Calls `f` with a page, if it is cached, to read or change it.
    pub(crate) fn with<R>(
        &self,
        segment: Segment,
        chunk: u64,
        f: impl FnOnce(&mut MetadataPage) -> R,
    ) -> Option<R> {
        let number = page_number(segment, chunk);
        self.shard(number).get(number).map(f)
    }

    /// Caches a page, replacing one with the same number.
    pub(crate) fn put(&self, segment: Segment, chunk: u64, page: MetadataPage) {
        let number = page_number(segment, chunk);
        let mut shard = self.shard(number);
        shard.insert(number, page);
    }

    /// Caches the pages of a segment without lost entries.
    pub(crate) fn put_intact(&self, segment: Segment, fetched: FetchedPages) {
        let sound = fetched.into_iter().filter(|(_, page)| !page.lost);
        sound.for_each(|(chunk, page)| self.put(segment, chunk, page));
    }

    /// Fills in the entries of a range of a segment from cached pages. Returns the chunks that are
    /// not cached.
    pub(crate) fn recall(&self, segment: Segment, range: &Range<u64>, entries: &mut [u8]) -> ChunkSet {
        let mut missing = 0;
        for_each_chunk(range, self.meta, |chunk, within, bytes| {
            let copied =
                self.with(segment, chunk, |page| entries[bytes].copy_from_slice(&page.entries[within]));
            let count = if copied.is_some() { &self.hits } else { &self.misses };
            count.fetch_add(1, Ordering::Relaxed);
            missing |= ChunkSet::from(copied.is_none()) << chunk;
        });
        missing
    }

    /// Whether the entries of a range are still those of cached pages.
    pub(crate) fn is_unchanged(&self, segment: Segment, range: &Range<u64>, entries: &[u8]) -> bool {
        let mut same = true;
        for_each_chunk(range, self.meta, |chunk, within, bytes| {
            let equal = |page: &mut MetadataPage| page.entries[within] == entries[bytes];
            same &= self.with(segment, chunk, equal).unwrap_or(false);
        });
        same
    }

    /// Drops the pages of a segment.
    pub(crate) fn invalidate(&self, segment: Segment) {
        for number in (0..CHUNKS).map(|chunk| page_number(segment, chunk)) {
            self.shard(number).remove(number);
        }
    }

    /// Drops all pages.
    pub(crate) fn invalidate_all(&self) {
        self.shards.iter().for_each(|shard| shard.lock().clear());
    }

    /// Cache hits and misses of readers.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, BoundedCache<u64, MetadataPage>> {
        // Neighbouring chunks are used together, so they go to different shards.
        self.shards[number as usize % SHARDS].lock()
    }
}

/// The number of a chunk across all segments.
fn page_number(segment: Segment, chunk: u64) -> u64 {
    segment.0 * CHUNKS + chunk
}

/// The page of a chunk among the requested ones.
pub(crate) fn fetched_page_mut(fetched: &mut FetchedPages, chunk: u8) -> &mut MetadataPage {
    let place = fetched.iter_mut().find(|(number, _)| *number == u64::from(chunk));
    &mut place.expect("the chunk was requested").1
}

/// Copies the entries of the blocks of a range out of the fetched pages, which ascend.
pub(crate) fn copy_fetched_entries(
    fetched: &FetchedPages,
    range: &Range<u64>,
    meta: usize,
    entries: &mut [u8],
) {
    let mut pages = fetched.iter().peekable();
    for_each_chunk(range, meta, |chunk, within, bytes| {
        if let Some((_, page)) = pages.next_if(|(number, _)| *number == chunk) {
            entries[bytes].copy_from_slice(&page.entries[within]);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_pages_stay_bounded_and_are_invalidated_by_segment() {
        let pages = MetadataPages::new(1, Budget::bytes((64 * 5 * (page_len(1) + PAGE_COST)) as u64));
        let found = |segment, chunk| pages.with(Segment(segment), chunk, |page| page.apart);
        for (segment, chunk) in (0..300).flat_map(|segment| (0..CHUNKS).map(move |chunk| (segment, chunk))) {
            let apart = u128::from(page_number(Segment(segment), chunk));
            pages.put(Segment(segment), chunk, MetadataPage { apart, ..MetadataPage::blank(1) });
            assert_eq!(found(segment, chunk), Some(apart));
        }
        let kept: usize = pages.shards.iter().map(|shard| shard.lock().len()).sum();
        assert_eq!(kept, 64 * 5);
        pages.invalidate(Segment(299));
        assert!(found(299, 3).is_none() && found(298, 3).is_some());
        pages.invalidate_all();
        assert!(found(298, 3).is_none());
    }
}
