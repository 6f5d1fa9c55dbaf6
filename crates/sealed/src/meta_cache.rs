//! Pages of segment-end metadata kept in memory, so that reading or writing a block costs one access to the
//! medium.
//!
//! Invariant: a page in the cache is the latest; a page that is not dirty equals the medium's. Dirty pages reach
//! the medium when they are evicted and at the latest in [`MetaCache::settle`], which comes before the journal that
//! repeats their changes is retired, and before a record that relies on them is written.

use lacuna_core::{Budget, Result};
use lacuna_medium::Medium;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of metadata cached together.
pub(crate) const PAGE: u64 = 4096;
const SHARDS: usize = 16;

pub(crate) struct MetaCache {
    shards: Vec<Mutex<Shard>>,
    pages_per_shard: usize,
}

/// A clock of pages: the hand passes over pages used since it last came by.
#[derive(Default)]
struct Shard {
    places: HashMap<u64, usize>,
    pages: Vec<Page>,
    hand: usize,
    hits: u64,
    misses: u64,
}

struct Page {
    offset: u64,
    used: bool,
    dirty: bool,
    bytes: Box<[u8; PAGE as usize]>,
}

impl MetaCache {
    pub(crate) fn new(budget: Budget) -> Self {
        let pages = (budget.get() / (PAGE + 64)) as usize;
        MetaCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            pages_per_shard: (pages / SHARDS).max(2),
        }
    }

    /// Reads metadata at a byte offset of the medium.
    pub(crate) fn read(&self, medium: &dyn Medium, offset: u64, out: &mut [u8]) -> Result<()> {
        for_pages(offset, out.len(), |page, within, range| {
            let mut shard = self.shard(page);
            // A reader never writes: where every page is dirty, it reads past the cache.
            let Some(place) = shard.find_or_load(medium, page, self.pages_per_shard, false)? else {
                return medium.read_at(page + within as u64, &mut out[range]);
            };
            out[range.clone()].copy_from_slice(&shard.pages[place].bytes[within..within + range.len()]);
            Ok(())
        })
    }

    /// Writes metadata into the cache.
    pub(crate) fn write(&self, medium: &dyn Medium, offset: u64, meta: &[u8]) -> Result<()> {
        for_pages(offset, meta.len(), |page, within, range| {
            let mut shard = self.shard(page);
            let Some(place) = shard.find_or_load(medium, page, self.pages_per_shard, true)? else {
                unreachable!("a writer evicts what it must");
            };
            let page = &mut shard.pages[place];
            let there = &mut page.bytes[within..within + range.len()];
            // A page of zeros that stays one needs no space on the medium.
            if *there != meta[range.clone()] {
                there.copy_from_slice(&meta[range]);
                page.dirty = true;
            }
            Ok(())
        })
    }

    /// Writes every dirty page to the medium, in order. The caller syncs.
    pub(crate) fn settle(&self, medium: &dyn Medium) -> Result<()> {
        let mut dirty: Vec<u64> = vec![];
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            dirty.extend(shard.pages.iter().filter(|page| page.dirty).map(|page| page.offset));
        }
        dirty.sort_unstable();
        for offset in dirty {
            let mut shard = self.shard(offset);
            if let Some(&place) = shard.places.get(&offset) {
                shard.pages[place].write(medium)?;
            }
        }
        Ok(())
    }

    /// Discards whole pages of metadata: they read as zeros.
    pub(crate) fn discard(&self, medium: &dyn Medium, offset: u64, len: u64) -> Result<()> {
        // The pages first: evicted in between, they would undo the discard.
        for_pages(offset, len as usize, |page, _, _| {
            let mut shard = self.shard(page);
            if let Some(place) = shard.find(page) {
                shard.pages[place].bytes.fill(0);
                shard.pages[place].dirty = false;
            }
            Ok(())
        })?;
        medium.discard(offset, len)
    }

    /// Hits and misses so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.shards
            .iter()
            .map(|s| s.lock().unwrap_or_else(PoisonError::into_inner))
            .fold((0, 0), |(hits, misses), shard| (hits + shard.hits, misses + shard.misses))
    }

    fn shard(&self, page: u64) -> MutexGuard<'_, Shard> {
        // Neighbouring pages are often used together; spread over shards, they do not wait for one lock.
        let index = (page / PAGE).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.shards[index as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn find(&mut self, offset: u64) -> Option<usize> {
        let place = *self.places.get(&offset)?;
        self.pages[place].used = true;
        self.hits += 1;
        Some(place)
    }

    /// The place of a page, loaded if it is not here. `None`: every page is dirty and must not be written.
    fn find_or_load(
        &mut self,
        medium: &dyn Medium,
        offset: u64,
        capacity: usize,
        may_write: bool,
    ) -> Result<Option<usize>> {
        if let Some(place) = self.find(offset) {
            return Ok(Some(place));
        }
        self.misses += 1;
        let place = if self.pages.len() < capacity {
            self.pages.push(Page { offset, used: true, dirty: false, bytes: Box::new([0; PAGE as usize]) });
            self.pages.len() - 1
        } else {
            let Some(place) = self.victim(may_write) else { return Ok(None) };
            self.pages[place].write(medium)?;
            // A page whose load failed stands in no index; its number may be another's by now.
            if self.places.get(&self.pages[place].offset) == Some(&place) {
                self.places.remove(&self.pages[place].offset);
            }
            place
        };
        let page = &mut self.pages[place];
        (page.offset, page.used) = (offset, true);
        // Only a page that was read takes its place in the index; until then nobody finds it.
        medium.read_at(offset, &mut page.bytes[..])?;
        self.places.insert(offset, place);
        Ok(Some(place))
    }

    /// A page to give up: one not used since the hand last passed, and clean unless `may_write`.
    fn victim(&mut self, may_write: bool) -> Option<usize> {
        for _ in 0..2 * self.pages.len() {
            self.hand = (self.hand + 1) % self.pages.len();
            let page = &mut self.pages[self.hand];
            if (may_write || !page.dirty) && !std::mem::take(&mut page.used) {
                return Some(self.hand);
            }
        }
        None
    }
}

impl Page {
    /// Writes the page if it is dirty.
    fn write(&mut self, medium: &dyn Medium) -> Result<()> {
        if self.dirty {
            medium.write_at(self.offset, &self.bytes[..])?;
            self.dirty = false;
        }
        Ok(())
    }
}

/// Calls `f(page offset, offset within the page, range of the caller's buffer)` for each page touched.
fn for_pages(
    offset: u64,
    len: usize,
    mut f: impl FnMut(u64, usize, std::ops::Range<usize>) -> Result<()>,
) -> Result<()> {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = at % PAGE;
        let part = ((PAGE - within) as usize).min(len - done);
        f(at - within, within as usize, done..done + part)?;
        done += part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::MemoryMedium;

    #[test]
    fn a_small_cache_still_tells_the_truth() {
        let medium = MemoryMedium::new(PAGE * 300);
        let cache = MetaCache::new(Budget::bytes(1));
        let mut model = vec![0u8; (PAGE * 300) as usize];
        let mut x = 7u64;
        for i in 0..5000u64 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            let at = (x >> 20) as usize % (model.len() - 200);
            if i % 50 == 0 {
                let page = at / PAGE as usize * PAGE as usize;
                cache.discard(&medium, page as u64, PAGE).unwrap();
                model[page..page + PAGE as usize].fill(0);
            } else if i % 2 == 0 {
                cache.write(&medium, at as u64, &[i as u8; 150]).unwrap();
                model[at..at + 150].fill(i as u8);
            }
            let mut out = [0; 200];
            cache.read(&medium, at as u64, &mut out).unwrap();
            assert_eq!(out, model[at..at + 200]);
        }
        cache.settle(&medium).unwrap();
        assert!(medium.snapshot() == model);
    }
}
