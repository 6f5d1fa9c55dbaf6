//! A cache of metadata pages, so that reading or writing a block costs one access to the medium.
//!
//! Invariants:
//! - A page in the cache is the latest version; a clean page equals the medium's. Dirty pages reach
//!   the medium when they are evicted, and at the latest in [`MetaCache::write_dirty`]. That
//!   happens before the journal with their changes is retired, and before a record that relies on
//!   them is written.
//! - No lock is held during medium accesses. A thread that loads a page or writes it back takes it
//!   in hand, and other threads wait for this page; so a page is never read from the medium while a
//!   later version is being written there.
//! - Only the thread with the commit lock writes metadata; readers never make a page dirty or evict
//!   a dirty one.

use lacuna_contracts::{BoundedCache, Budget, Error, Result};
use lacuna_medium::Medium;
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxBuildHasher;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a page, the unit of caching.
pub(crate) const PAGE_LEN: usize = 4096;
const SHARDS: usize = 16;
/// Bytes of the budget that a page takes beside its content.
const OVERHEAD: u64 = 64;

/// The offset of a page on the medium.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PageOffset(u64);

struct MetaPage {
    bytes: Box<[u8; PAGE_LEN]>,
    dirty: bool,
}

struct MetaShard {
    pages: Mutex<MetaPages>,
    /// Notified when a page is no longer in hand.
    released: Condvar,
}

/// The pages of a shard; `None` for a page that some thread has in hand.
struct MetaPages {
    cache: BoundedCache<PageOffset, Option<MetaPage>, FxBuildHasher>,
    hits: u64,
    misses: u64,
}

pub(crate) struct MetaCache {
    medium: Arc<dyn Medium>,
    shards: Box<[MetaShard]>,
}

/// A page that this thread has in hand. Dropping it puts `back` into the cache, or removes the
/// page.
struct PageGuard<'a> {
    shard: &'a MetaShard,
    at: PageOffset,
    back: Option<MetaPage>,
}

impl PageGuard<'_> {
    fn write_back(&mut self, medium: &dyn Medium) -> Result<()> {
        if let Some(page) = &mut self.back {
            medium.write_at(self.at.0, &page.bytes[..])?;
            page.dirty = false;
        }
        Ok(())
    }
}

impl Drop for PageGuard<'_> {
    fn drop(&mut self) {
        let mut pages = self.shard.pages.lock();
        match self.back.take() {
            Some(page) => drop(pages.cache.put(self.at, Some(page))),
            None => drop(pages.cache.remove(self.at)),
        }
        pages.cache.get(self.at);
        drop(pages);
        self.shard.released.notify_all();
    }
}

impl MetaCache {
    pub(crate) fn new(medium: Arc<dyn Medium>, budget: Budget) -> Self {
        let pages = (budget.get() / (PAGE_LEN as u64 + OVERHEAD)) as usize;
        let shard = || MetaShard {
            pages: Mutex::new(MetaPages {
                cache: BoundedCache::new((pages / SHARDS).max(2)),
                hits: 0,
                misses: 0,
            }),
            released: Condvar::new(),
        };
        MetaCache { medium, shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// Reads metadata at a byte offset of the medium.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        for_pages(offset, out.len(), |at, within, range| {
            let out = &mut out[range];
            // A reader never writes: if every page is dirty, it reads past the cache.
            let read = self
                .with_page(at, false, |page| out.copy_from_slice(&page.bytes[within..within + out.len()]))?;
            match read {
                Some(()) => Ok(()),
                None => self.medium.read_at(at.0 + within as u64, out).map_err(Error::of_read),
            }
        })
    }

    /// Writes metadata into the cache.
    pub(crate) fn write(&self, offset: u64, meta: &[u8]) -> Result<()> {
        for_pages(offset, meta.len(), |at, within, range| {
            let meta = &meta[range];
            let written = self.with_page(at, true, |page| {
                let there = &mut page.bytes[within..within + meta.len()];
                // An unchanged page of zeros needs no space on the medium.
                if *there != *meta {
                    there.copy_from_slice(meta);
                    page.dirty = true;
                }
            })?;
            written.map_or_else(|| unreachable!("a writer evicts pages until its own fits"), Ok)
        })
    }

    /// Writes every dirty page to the medium, in order. The caller syncs.
    pub(crate) fn write_dirty(&self) -> Result<()> {
        let mut dirty: Vec<PageOffset> = vec![];
        for shard in &self.shards {
            let pages = shard.pages.lock();
            dirty.extend(pages.cache.iter().filter(|(_, page)| is_dirty(page.as_ref())).map(|(at, _)| at));
        }
        dirty.sort_unstable();
        for at in dirty {
            let shard = self.shard(at);
            let page = {
                let mut pages = shard.pages.lock();
                let Some(place) = pages.cache.get(at).filter(|page| is_dirty(page.as_ref())) else {
                    continue;
                };
                place.take()
            };
            PageGuard { shard, at, back: page }.write_back(&*self.medium)?;
        }
        Ok(())
    }

    /// Discards whole pages of metadata: they read as zeros. No thread may read or load them
    /// meanwhile.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<()> {
        // Clear the cached pages first: if they were evicted in between, they would undo the
        // discard.
        for_pages(offset, len as usize, |at, _, _| {
            if let Some(Some(page)) = self.shard(at).pages.lock().cache.get(at) {
                page.bytes.fill(0);
                page.dirty = false;
            }
            Ok(())
        })?;
        self.medium.discard(offset, len)
    }

    /// Hits and misses so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let pages = self.shards.iter().map(|shard| shard.pages.lock());
        pages.fold((0, 0), |(hits, misses), pages| (hits + pages.hits, misses + pages.misses))
    }

    /// Passes a page to `f`, loading it if it is not cached. `None` if there is no room and the
    /// caller must not write.
    fn with_page<R>(
        &self,
        at: PageOffset,
        may_write: bool,
        f: impl FnOnce(&mut MetaPage) -> R,
    ) -> Result<Option<R>> {
        let shard = self.shard(at);
        let mut spare = None;
        let mut pages = shard.pages.lock();
        loop {
            match pages.cache.get(at) {
                Some(Some(page)) => {
                    let result = f(page);
                    pages.hits += 1;
                    return Ok(Some(result));
                }
                Some(None) => {
                    shard.released.wait(&mut pages);
                    continue;
                }
                None => {}
            }
            if !pages.cache.is_full() {
                break;
            }
            let may_go =
                |_, page: &Option<MetaPage>| page.as_ref().is_some_and(|page| may_write || !page.dirty);
            match pages.cache.evict(may_go) {
                Some((at, page)) if is_dirty(page.as_ref()) => {
                    pages.cache.put(at, None);
                    drop(pages);
                    let mut in_hand = PageGuard { shard, at, back: page };
                    in_hand.write_back(&*self.medium)?;
                    spare = in_hand.back.take();
                    drop(in_hand);
                    pages = shard.pages.lock();
                }
                Some((_, page)) => spare = page,
                None if may_write => shard.released.wait(&mut pages),
                None => return Ok(None),
            }
        }
        pages.misses += 1;
        pages.cache.put(at, None);
        drop(pages);
        let mut in_hand = PageGuard { shard, at, back: None };
        let mut page = spare.unwrap_or_else(|| MetaPage { bytes: Box::new([0; PAGE_LEN]), dirty: false });
        self.medium.read_at(at.0, &mut page.bytes[..]).map_err(Error::of_read)?;
        let result = f(&mut page);
        in_hand.back = Some(page);
        Ok(Some(result))
    }

    fn shard(&self, at: PageOffset) -> &MetaShard {
        // Neighbouring pages are often used together; spread over shards, they do not contend for
        // one lock.
        let index = (at.0 / PAGE_LEN as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[index as usize % SHARDS]
    }
}

fn is_dirty(page: Option<&MetaPage>) -> bool {
    page.is_some_and(|page| page.dirty)
}

/// Calls `f(page, offset within the page, range of the caller's buffer)` for each page touched.
fn for_pages(
    offset: u64,
    len: usize,
    mut f: impl FnMut(PageOffset, usize, Range<usize>) -> Result<()>,
) -> Result<()> {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = (at % PAGE_LEN as u64) as usize;
        let part = (PAGE_LEN - within).min(len - done);
        f(PageOffset(at - within as u64), within, done..done + part)?;
        done += part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::MemoryMedium;
    use parking_lot::RwLock;

    const PAGES: u64 = 300;

    fn tiny() -> (Arc<MemoryMedium>, MetaCache) {
        let medium = Arc::new(MemoryMedium::new(PAGE_LEN as u64 * PAGES));
        (medium.clone(), MetaCache::new(medium, Budget::bytes(1)))
    }

    fn next(x: &mut u64) -> u64 {
        *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *x >> 20
    }

    #[test]
    fn a_small_cache_stays_correct() {
        let (medium, cache) = tiny();
        let mut model = vec![0u8; PAGE_LEN * PAGES as usize];
        let mut x = 7u64;
        for i in 0..5000u64 {
            let at = next(&mut x) as usize % (model.len() - 200);
            if i % 50 == 0 {
                let page = at / PAGE_LEN * PAGE_LEN;
                cache.discard(page as u64, PAGE_LEN as u64).unwrap();
                model[page..page + PAGE_LEN].fill(0);
            } else if i % 2 == 0 {
                cache.write(at as u64, &[i as u8; 150]).unwrap();
                model[at..at + 150].fill(i as u8);
            }
            let mut out = [0; 200];
            cache.read(at as u64, &mut out).unwrap();
            assert_eq!(out, model[at..at + 200]);
        }
        cache.write_dirty().unwrap();
        assert!(medium.snapshot() == model);
    }

    /// Readers of entries beside a writer, all in a few pages that are evicted all the time, never
    /// see a stale entry.
    #[test]
    fn readers_beside_a_writer_never_see_a_stale_entry() {
        const ENTRIES: u64 = 64;
        let (_, cache) = tiny();
        let at = |entry: u64| entry % PAGES * PAGE_LEN as u64 + entry / 8 * 32;
        let model: Vec<RwLock<u8>> = (0..ENTRIES).map(|_| RwLock::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 1..4u64 {
                let (cache, model) = (&cache, &model);
                scope.spawn(move || {
                    let mut x = thread;
                    for _ in 0..20_000 {
                        let entry = next(&mut x) % ENTRIES;
                        let value = model[entry as usize].read();
                        let mut out = [0xff; 32];
                        cache.read(at(entry), &mut out).unwrap();
                        assert_eq!(out, [*value; 32], "entry {entry}");
                    }
                });
            }
            let mut x = 9;
            for i in 0..20_000u64 {
                let entry = next(&mut x) % ENTRIES;
                let mut value = model[entry as usize].write();
                *value = i as u8;
                cache.write(at(entry), &[*value; 32]).unwrap();
                if i % 100 == 0 {
                    cache.write_dirty().unwrap();
                }
            }
        });
    }
}
