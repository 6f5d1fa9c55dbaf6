//! Removal of leaves: of a range, past a new end, or all.

use super::WideTree;
use crate::untrusted::{Part, Untrusted};
use crate::wide_tree::page::{ABSENT, BITS, ENTRIES, height};
use lacuna_contracts::{Kind, Result};
use std::ops::Range;

impl WideTree {
    /// Zeroes `count` leaves starting at `first`, and calls `dropped` for each page of leaves that
    /// becomes absent.
    pub(crate) fn clear(
        &mut self,
        us: &dyn Untrusted,
        first: u64,
        count: u64,
        dropped: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let end = self.leaves.min(first.saturating_add(count));
        if first >= end {
            return Ok(());
        }
        let top = height(self.leaves) - 1;
        if first == 0 && end == self.leaves {
            self.drop_below(us, top, 0, dropped)?;
            // Pages that could not be found from the top must not be found in the cache either.
            self.pages.get_mut().clear();
            (self.root, self.dirty) = (ABSENT, 0);
            return Ok(());
        }
        if self.is_absent(us, top, 0)? {
            return Ok(());
        }
        self.clear_within(us, top, 0, &(first..end), dropped)
    }

    /// Lengthens the array with zeros, or shortens it (DeleteTree for each leaf, in bulk).
    pub(crate) fn resize(
        &mut self,
        us: &dyn Untrusted,
        leaves: u64,
        dropped: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        if leaves >= self.leaves {
            self.grow(leaves);
            return Ok(());
        }
        self.clear(us, leaves, self.leaves - leaves, dropped)?;
        let (old, new) = (height(self.leaves), height(leaves));
        if new < old && leaves > 0 && !self.is_absent(us, old - 1, 0)? {
            // This page becomes the topmost one: the next flush makes its tag the root.
            self.dirty_page(us, new - 1, 0, false)?;
            for level in new..old {
                self.remove_page(us, level, 0)?;
            }
        }
        if leaves == 0 {
            self.root = ABSENT;
        }
        self.leaves = leaves;
        Ok(())
    }

    /// Clears the leaves of a range below a page that is neither absent nor cleared as a whole.
    fn clear_within(
        &mut self,
        us: &dyn Untrusted,
        level: u8,
        page: u64,
        leaves: &Range<u64>,
        dropped: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let shift = BITS * u32::from(level);
        let start = page * ENTRIES;
        let from = (leaves.start >> shift).max(start);
        let to = leaves.end.div_ceil(1 << shift).min(start + ENTRIES);
        if level == 0 {
            let entries = self.dirty_page(us, 0, page, false)?;
            entries[(from - start) as usize..(to - start) as usize].fill(ABSENT);
            if entries.iter().all(|tag| *tag == ABSENT) {
                dropped(page)?;
            }
            return Ok(());
        }
        for child in from..to {
            if self.is_absent(us, level - 1, child)? {
                continue;
            }
            let (child_first, child_end) = (child << shift, ((child + 1) << shift).min(self.leaves));
            if leaves.start <= child_first && child_end <= leaves.end {
                self.drop_below(us, level - 1, child, dropped)?;
                self.dirty_page(us, level, page, false)?[(child - start) as usize] = ABSENT;
            } else {
                self.clear_within(us, level - 1, child, leaves, dropped)?;
            }
        }
        Ok(())
    }

    /// Removes a page and all pages below it. Pages that do not verify are removed as far as they
    /// can be found; they are never read again. Cached pages are always found: otherwise the
    /// entries of holes above them would later take them for the latest.
    fn drop_below(
        &mut self,
        us: &dyn Untrusted,
        level: u8,
        page: u64,
        dropped: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        if level == 0 {
            dropped(page)?;
        } else {
            let entries = match self.read(us, level, page, |entries| *entries) {
                // A page that does not verify, or that the medium cannot read, does not show which
                // pages lie below. Remove the cached ones.
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Io) => {
                    self.drop_cached_below(us, level, page, dropped)?;
                    [ABSENT; ENTRIES as usize]
                }
                read => read?,
            };
            for (child, tag) in (page * ENTRIES..).zip(entries) {
                if tag != ABSENT || self.pages.get_mut().contains((level - 1, child)) {
                    self.drop_below(us, level - 1, child, dropped)?;
                }
            }
        }
        self.remove_page(us, level, page)
    }

    /// Removes the cached pages below a page that cannot be read.
    fn drop_cached_below(
        &mut self,
        us: &dyn Untrusted,
        level: u8,
        page: u64,
        dropped: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let pages = self.pages.get_mut().iter().map(|(key, _)| key);
        let mut below: Vec<(u8, u64)> =
            pages.filter(|(l, n)| *l < level && n >> (BITS * u32::from(level - l)) == page).collect();
        below.sort_unstable();
        for (level, page) in below {
            if level == 0 {
                dropped(page)?;
            }
            self.remove_page(us, level, page)?;
        }
        Ok(())
    }

    fn remove_page(&mut self, us: &dyn Untrusted, level: u8, page: u64) -> Result<()> {
        us.write_part(Part::Tree(self.base + level), page, None)?;
        if self.pages.get_mut().remove((level, page)).is_some_and(|page| page.dirty) {
            self.dirty -= 1;
        }
        Ok(())
    }
}
