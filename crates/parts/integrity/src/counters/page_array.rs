//! `PageArray`: an array in US that needs no authentication: the write counters of MT-EINT, RArr
//! and its inverse.
//!
//! Pages are encrypted, so that they do not show which blocks look random. Altering a page makes
//! blocks fail and does no other harm: a malformed page, or one that storage reports as damaged,
//! reads as zeros. Zeros at the end of a page are left out, and a page of zeros is absent.

use crate::keys::FileKeys;
use crate::untrusted::{PART_PAGE, Part, Untrusted};
use lacuna_contracts::{BoundedCache, Budget, Kind, Result};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use std::sync::Arc;

/// The fewest pages in the cache.
const FEWEST_PAGES: usize = 8;
/// Encrypted pages are multiples of this, the shortest message of the cipher.
const GRAIN: usize = 16;

type ArrayCache<const N: usize> = BoundedCache<u64, ArrayPage<N>, FxBuildHasher>;

struct ArrayPage<const N: usize> {
    /// `None`: all zeros.
    entries: Option<Box<[[u8; N]]>>,
    dirty: bool,
    /// Whether US has this page.
    stored: bool,
}

/// An array of entries of `N` bytes.
pub(crate) struct PageArray<const N: usize> {
    keys: Arc<FileKeys>,
    part: Part,
    pages: Mutex<ArrayCache<N>>,
    dirty: usize,
    /// The number of pages in US, as far as is known here: US is untrusted.
    stored: u32,
}

impl<const N: usize> PageArray<N> {
    /// Entries per page: a power of two.
    pub(crate) const ENTRIES: u64 = 1 << (PART_PAGE / N).ilog2();

    /// The array with `stored` pages in US.
    pub(crate) fn new(keys: Arc<FileKeys>, part: Part, stored: u32) -> Self {
        PageArray { keys, part, pages: Mutex::new(ArrayCache::new(FEWEST_PAGES)), dirty: 0, stored }
    }

    pub(crate) fn set_budget(&mut self, budget: Budget) {
        let most = (budget.get() / (PART_PAGE as u64 + 64)).min(1 << 32) as usize;
        let mut cache = ArrayCache::new(most.max(FEWEST_PAGES));
        let old = self.pages.get_mut();
        while let Some((key, page)) = old.evict(|_, _| true) {
            if page.dirty || !cache.is_full() {
                cache.put(key, page);
            }
        }
        *old = cache;
    }

    /// The number of pages in US.
    pub(crate) fn stored(&self) -> u32 {
        self.stored
    }

    /// Forgets all pages after the owner has removed them.
    pub(crate) fn forget(&mut self) {
        self.pages.get_mut().clear();
        (self.dirty, self.stored) = (0, 0);
    }

    /// Reads entries, starting at `first`.
    pub(crate) fn get(&self, us: &dyn Untrusted, first: u64, out: &mut [[u8; N]]) -> Result<()> {
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            let from = (at % Self::ENTRIES) as usize;
            let (part, after) = rest.split_at_mut(rest.len().min(Self::ENTRIES as usize - from));
            let copy = |page: &ArrayPage<N>, part: &mut [[u8; N]]| match &page.entries {
                Some(entries) => part.copy_from_slice(&entries[from..from + part.len()]),
                None => part.fill([0; N]),
            };
            let number = at / Self::ENTRIES;
            let found = self.pages.lock().get(number).map(|page| copy(page, part)).is_some();
            if !found {
                let page = self.fetch(us, number)?;
                copy(&page, part);
                let mut pages = self.pages.lock();
                if !pages.contains(number) && make_room(&mut pages) {
                    pages.put(number, page);
                }
            }
            at += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Writes dirty pages if there are many.
    pub(crate) fn flush_over_budget(&mut self, us: &dyn Untrusted) -> Result<()> {
        if self.dirty > self.pages.get_mut().capacity() / 2 { self.flush(us) } else { Ok(()) }
    }

    /// Writes entries, starting at `first`.
    pub(crate) fn set(&mut self, us: &dyn Untrusted, first: u64, entries: &[[u8; N]]) -> Result<()> {
        let (mut at, mut rest) = (first, entries);
        while !rest.is_empty() {
            let from = (at % Self::ENTRIES) as usize;
            let (part, after) = rest.split_at(rest.len().min(Self::ENTRIES as usize - from));
            let page = self.dirty_page(us, at / Self::ENTRIES)?;
            page[from..from + part.len()].copy_from_slice(part);
            at += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Removes a page.
    pub(crate) fn drop_page(&mut self, us: &dyn Untrusted, number: u64) -> Result<()> {
        let known = self.pages.get_mut().peek(number).map(|page| (page.dirty, page.stored));
        let stored = match known {
            Some((_, stored)) => stored,
            None => self.read(us, number)?.is_some(),
        };
        if stored {
            us.write_part(self.part, number, None)?;
            self.stored = self.stored.saturating_sub(1);
        }
        self.pages.get_mut().remove(number);
        self.dirty -= usize::from(known.is_some_and(|(dirty, _)| dirty));
        Ok(())
    }

    /// Removes all pages in the cache.
    pub(crate) fn drop_cached(&mut self, us: &dyn Untrusted) -> Result<()> {
        let mut cached: Vec<u64> = self.pages.get_mut().iter().map(|(number, _)| number).collect();
        cached.sort_unstable();
        cached.into_iter().try_for_each(|number| self.drop_page(us, number))
    }

    /// Writes dirty pages.
    pub(crate) fn flush(&mut self, us: &dyn Untrusted) -> Result<()> {
        if self.dirty == 0 {
            return Ok(());
        }
        let pages = self.pages.get_mut();
        let mut dirty: Vec<u64> =
            pages.iter().filter(|(_, page)| page.dirty).map(|(number, _)| number).collect();
        dirty.sort_unstable();
        let mut sealed = [0; PART_PAGE];
        for number in dirty {
            let page = pages.get(number).expect("dirty pages stay");
            let bytes = page.entries.as_ref().map_or(&[][..], |entries| entries.as_flattened());
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let len = used.next_multiple_of(GRAIN);
            if len > 0 {
                self.keys.seal_page(self.part, number, &bytes[..len], &mut sealed[..len]);
                us.write_part(self.part, number, Some(&sealed[..len]))?;
            } else if page.stored {
                us.write_part(self.part, number, None)?;
            }
            let now = len > 0;
            self.stored = match (page.stored, now) {
                (false, true) => self.stored.saturating_add(1),
                (true, false) => self.stored.saturating_sub(1),
                _ => self.stored,
            };
            (page.stored, page.dirty) = (now, false);
            self.dirty -= 1;
        }
        Ok(())
    }

    /// The bytes of a page if US has it; empty if storage reports it as damaged.
    fn read(&self, us: &dyn Untrusted, number: u64) -> Result<Option<Vec<u8>>> {
        if self.stored == 0 {
            return Ok(None);
        }
        us.read_part(self.part, number).or_else(|e| match e.kind() {
            Kind::Corrupt => Ok(Some(vec![])),
            _ => Err(e),
        })
    }

    fn fetch(&self, us: &dyn Untrusted, number: u64) -> Result<ArrayPage<N>> {
        let Some(mut bytes) = self.read(us, number)? else {
            return Ok(ArrayPage { entries: None, dirty: false, stored: false });
        };
        let most = Self::ENTRIES as usize * N;
        if bytes.is_empty() || bytes.len() > most || !bytes.len().is_multiple_of(GRAIN) {
            return Ok(ArrayPage { entries: None, dirty: false, stored: true });
        }
        self.keys.open_page(self.part, number, &mut bytes);
        bytes.resize(most, 0);
        let entries = bytes.as_chunks::<N>().0.into();
        Ok(ArrayPage { entries: Some(entries), dirty: false, stored: true })
    }

    fn dirty_page(&mut self, us: &dyn Untrusted, number: u64) -> Result<&mut [[u8; N]]> {
        if !self.pages.get_mut().contains(number) {
            let page = self.fetch(us, number)?;
            let pages = self.pages.get_mut();
            make_room(pages);
            pages.put(number, page);
        }
        let page = self.pages.get_mut().get(number).expect("it was put there");
        if !std::mem::replace(&mut page.dirty, true) {
            self.dirty += 1;
        }
        Ok(page.entries.get_or_insert_with(|| vec![[0; N]; Self::ENTRIES as usize].into()))
    }
}

/// Makes room for a page. `false` if all pages are dirty.
fn make_room<const N: usize>(pages: &mut ArrayCache<N>) -> bool {
    !pages.is_full() || pages.evict(|_, page| !page.dirty).is_some()
}
