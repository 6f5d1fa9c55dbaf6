//! The write counters of MT-EINT, which need no authentication: a wrong counter gives a wrong tag.
//!
//! Counters lie in TS while the intervals fit. After that the intervals in TS are frozen, and
//! blocks that are written later have their counters in pages of US, 128 blocks per page. So memory
//! stays bounded however dispersed the counters are.

use crate::counters::counter::Counter;
use crate::counters::intervals::{Intervals, counter_bytes, counter_from};
use crate::counters::page_array::PageArray;
use crate::keys::FileKeys;
use crate::untrusted::{Part, Untrusted};
use lacuna_contracts::{Budget, Error, Kind, Result};
use std::sync::Arc;

/// Bytes of TS for counters (L_ctr).
pub(crate) const ROOM: usize = 64;
/// The number of blocks with counters in one page.
const PAGE_BLOCKS: u64 = PageArray::<{ Intervals::VALUE }>::ENTRIES;
/// The most bytes of the interval of holes at the end of a file: no session, no pass, and a
/// distance.
const END: usize = 1 + 1 + 9;
/// A number of intervals that always fits: an interval takes at most 8 bytes of session, 1 of its
/// number, 5 of pass and 9 of distance.
const SURELY_FIT: usize = (ROOM - END - 2) / 23;

pub(crate) struct MtCounters {
    base: Intervals,
    /// Whether newly written blocks have their counters in pages.
    frozen: bool,
    dense: PageArray<{ Intervals::VALUE }>,
}

impl MtCounters {
    pub(crate) fn new(keys: Arc<FileKeys>) -> Self {
        let dense = PageArray::new(keys, Part::Counters, 0);
        MtCounters { base: Intervals::default(), frozen: false, dense }
    }

    /// The counters that TS describes. Errors: [`Kind::Corrupt`].
    pub(crate) fn open(
        keys: Arc<FileKeys>,
        blocks: u64,
        base: &[u8],
        frozen: bool,
        pages: u32,
    ) -> Result<Self> {
        let base = Intervals::decode(base, blocks).ok_or_else(|| {
            Error::new(Kind::Corrupt, "cannot open a file").found("counter intervals that no version wrote")
        })?;
        Ok(MtCounters { base, frozen, dense: PageArray::new(keys, Part::Counters, pages) })
    }

    pub(crate) fn set_budget(&mut self, budget: Budget) {
        self.dense.set_budget(budget);
    }

    /// Writes dirty pages if there are many.
    pub(crate) fn flush_over_budget(&mut self, us: &dyn Untrusted) -> Result<()> {
        self.dense.flush_over_budget(us)
    }

    pub(crate) fn get(&self, us: &dyn Untrusted, first: u64, out: &mut [Counter]) -> Result<()> {
        if !self.frozen {
            self.base.fill(first, out);
            return Ok(());
        }
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            let mut entries = [[0; Intervals::VALUE]; 128];
            let (part, after) = rest.split_at_mut(rest.len().min(entries.len()));
            self.dense.get(us, at, &mut entries[..part.len()])?;
            self.base.fill(at, part);
            for (counter, entry) in part.iter_mut().zip(&entries) {
                if *entry != [0; Intervals::VALUE] {
                    *counter = counter_from(*entry);
                }
            }
            at += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Reads all that [`MtCounters::set`] of these blocks needs, so that a `set` right after it
    /// reads nothing.
    pub(crate) fn prepare(&self, us: &dyn Untrusted, first: u64, count: u64) -> Result<()> {
        if self.frozen { self.get(us, first, &mut vec![Counter::HOLE; count as usize]) } else { Ok(()) }
    }

    pub(crate) fn set(&mut self, us: &dyn Untrusted, first: u64, count: u64, counter: Counter) -> Result<()> {
        if self.frozen && first == 0 && count >= self.base.blocks() {
            for page in 0..self.base.blocks().div_ceil(PAGE_BLOCKS) {
                self.dense.drop_page(us, page)?;
            }
            self.reset();
        }
        // A hole has a counter that no block ever had, so that no ciphertext can take its place
        // even if an old tag is accepted.
        if !self.frozen {
            if self.base.len() + 2 <= SURELY_FIT {
                self.base.set(first, count, counter, Counter::HOLE);
                return Ok(());
            }
            let mut wanted = self.base.clone();
            wanted.set(first, count, counter, Counter::HOLE);
            if wanted.encode(ROOM - END).is_some() {
                self.base = wanted;
                return Ok(());
            }
            self.frozen = true;
        }
        if first + count > self.base.blocks() {
            self.base.resize(first + count, Counter::HOLE);
        }
        let entries = [counter_bytes(counter); 128];
        for at in (0..count).step_by(entries.len()) {
            let len = (count - at).min(entries.len() as u64) as usize;
            self.dense.set(us, first + at, &entries[..len])?;
        }
        Ok(())
    }

    /// Follows the length of the file. The caller has already dropped the pages of removed blocks.
    pub(crate) fn resize(&mut self, blocks: u64) {
        if blocks == 0 {
            self.reset();
        }
        self.base.resize(blocks, Counter::HOLE);
    }

    fn reset(&mut self) {
        self.dense.forget();
        (self.frozen, self.base) = (false, Intervals::default());
    }

    /// Drops a page of counters, of 128 blocks that become holes.
    pub(crate) fn drop_page(&mut self, us: &dyn Untrusted, page: u64) -> Result<()> {
        if self.frozen { self.dense.drop_page(us, page) } else { Ok(()) }
    }

    /// The state for TS: the intervals, whether they are frozen, and the number of pages.
    pub(crate) fn seal(&mut self, us: &dyn Untrusted) -> Result<(Vec<u8>, bool, u32)> {
        self.dense.flush(us)?;
        let base = self.base.encode(usize::from(u8::MAX)).expect("they were frozen while they fitted");
        Ok((base, self.frozen, self.dense.stored()))
    }

    /// Counter intervals in TS.
    pub(crate) fn intervals(&self) -> u64 {
        self.base.len() as u64
    }

    /// Bytes of pages in US, at most.
    pub(crate) fn stored_bytes(&self) -> u64 {
        u64::from(self.dense.stored()) * PAGE_BLOCKS * Intervals::VALUE as u64
    }
}
