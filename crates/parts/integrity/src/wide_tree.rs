//! `WideTree`: the authenticated array of tags behind MT-EINT and RTree, a tree with 128 children
//! per node.
//!
//! Leaves lie in pages of 128. The keyed tag of a page is an entry of the page above; the tag of
//! the topmost page, the root, and the number of leaves are trusted. Zeros at the end of a page are
//! left out, and a page of zeros is absent; the tag of an absent page is zero, so a sparse array
//! costs nothing where it is empty. The tag of a page binds its level, and its place in the page
//! above binds its position.
//!
//! Invariants:
//! - A page in the cache was verified against the root when it was loaded, or was made here.
//! - All pages above a dirty page are dirty, and a dirty page never leaves the cache. So nothing is
//!   hashed before a flush, and a flush reads nothing.

pub(crate) mod page;

mod clearing;

use crate::ablation::{SchemeCheck, is_enforced};
use crate::keys::{FileKeys, Tag};
use crate::tampered::tampered;
use crate::untrusted::{Part, Untrusted};
use crate::wide_tree::page::{
    ABSENT, BITS, ENTRIES, Entries, FEWEST_PAGES, TreeCache, TreePage, height, make_room, no_entries,
};
use lacuna_contracts::{Budget, Result};
use lacuna_crypto::constant_time_eq;
use parking_lot::Mutex;
use std::sync::Arc;

/// The most leaves of a tree that lies in TS.
pub(crate) const INLINE: u64 = 8;

/// The part of a tree that TS keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeRoot {
    /// All leaves of a tree of at most [`INLINE`].
    Leaves(Vec<Tag>),
    /// The tag of the topmost page.
    Page(Tag),
}

pub(crate) struct WideTree {
    keys: Arc<FileKeys>,
    /// The base that is added to levels in [`Part::Tree`].
    base: u8,
    leaves: u64,
    /// The tag of the topmost page; meaningless while that page is dirty.
    root: Tag,
    pages: Mutex<TreeCache>,
    dirty: usize,
    /// Whether the first page of leaves may lie in US, although the tree would fit into TS.
    stored: bool,
}

impl WideTree {
    pub(crate) fn new(keys: Arc<FileKeys>, base: u8) -> Self {
        let pages = Mutex::new(TreeCache::new(FEWEST_PAGES));
        WideTree { keys, base, leaves: 0, root: ABSENT, pages, dirty: 0, stored: false }
    }

    /// The tree of `leaves` leaves that TS describes.
    pub(crate) fn open(keys: Arc<FileKeys>, base: u8, leaves: u64, root: TreeRoot) -> Self {
        let mut tree = WideTree { leaves, ..WideTree::new(keys, base) };
        match root {
            TreeRoot::Page(root) => (tree.root, tree.stored) = (root, true),
            TreeRoot::Leaves(inline) if inline.is_empty() => {}
            TreeRoot::Leaves(inline) => {
                let mut entries = no_entries();
                entries[..inline.len()].copy_from_slice(&inline);
                tree.pages.get_mut().put((0, 0), TreePage { entries, dirty: true });
                tree.dirty = 1;
            }
        }
        tree
    }

    pub(crate) fn set_budget(&mut self, budget: Budget) {
        let most = (budget.get() / (size_of::<Entries>() as u64 + 64)).min(1 << 32) as usize;
        let mut cache = TreeCache::new(most.max(FEWEST_PAGES));
        let old = self.pages.get_mut();
        while let Some((key, page)) = old.evict(|_, _| true) {
            if page.dirty || !cache.is_full() {
                cache.put(key, page);
            }
        }
        *old = cache;
    }

    pub(crate) fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Reads leaves, starting at `first`.
    pub(crate) fn get(&self, us: &dyn Untrusted, first: u64, out: &mut [Tag]) -> Result<()> {
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            let from = (at % ENTRIES) as usize;
            let (part, after) = rest.split_at_mut(rest.len().min(ENTRIES as usize - from));
            self.read(us, 0, at / ENTRIES, |entries| {
                part.copy_from_slice(&entries[from..from + part.len()]);
            })?;
            at += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// Writes dirty pages if there are many. Only a flush writes pages; the other methods at most
    /// remove some, which needs no space. So a change that begins with this call fails for lack of
    /// space before it has changed anything.
    pub(crate) fn flush_over_budget(&mut self, us: &dyn Untrusted) -> Result<()> {
        if self.dirty > self.pages.get_mut().capacity() / 2 + usize::from(height(self.leaves)) {
            return self.flush(us);
        }
        Ok(())
    }

    /// Verifies all pages that [`WideTree::set`] of these leaves needs, so that `set` fails only if
    /// US cannot be written.
    pub(crate) fn prepare(&mut self, us: &dyn Untrusted, first: u64, count: u64) -> Result<()> {
        let end = self.leaves.min(first + count);
        if first >= end {
            return if self.leaves == 0 {
                Ok(())
            } else {
                self.dirty_page(us, 0, (self.leaves - 1) / ENTRIES, false).map(drop)
            };
        }
        for page in first / ENTRIES..=(end - 1) / ENTRIES {
            let (from, to) = (first.max(page * ENTRIES), (first + count).min((page + 1) * ENTRIES));
            let whole = from == page * ENTRIES && (to == (page + 1) * ENTRIES || to >= self.leaves);
            if !whole {
                self.dirty_page(us, 0, page, false)?;
            } else if height(self.leaves) > 1 {
                self.dirty_page(us, 1, page / ENTRIES, false)?;
            }
        }
        Ok(())
    }

    /// Sets all leaves of a page to `tag` without reading the page; the pages above must verify.
    pub(crate) fn fill_page(&mut self, us: &dyn Untrusted, page: u64, tag: Tag) -> Result<()> {
        let leaves = (self.leaves - page * ENTRIES).min(ENTRIES) as usize;
        self.dirty_page(us, 0, page, true)?[..leaves].fill(tag);
        Ok(())
    }

    /// UpdateTree for a run of leaves; leaves past the end are appended (AppendTree).
    pub(crate) fn set(&mut self, us: &dyn Untrusted, first: u64, tags: &[Tag]) -> Result<()> {
        let old = self.leaves;
        self.grow(first + tags.len() as u64);
        let (mut at, mut rest) = (first, tags);
        while !rest.is_empty() {
            let from = (at % ENTRIES) as usize;
            let (part, after) = rest.split_at(rest.len().min(ENTRIES as usize - from));
            let end = at + part.len() as u64;
            // A page that is overwritten as a whole need not be read.
            let whole = from == 0 && (end.is_multiple_of(ENTRIES) || end >= old);
            let page = self.dirty_page(us, 0, at / ENTRIES, whole)?;
            page[from..from + part.len()].copy_from_slice(part);
            (at, rest) = (end, after);
        }
        Ok(())
    }

    /// The next leaf at or after `from` that is not zero (`data`) or zero (not `data`).
    pub(crate) fn seek(&self, us: &dyn Untrusted, from: u64, data: bool) -> Result<Option<u64>> {
        let mut at = from;
        'skip: while at < self.leaves {
            for level in (0..height(self.leaves)).rev() {
                if self.is_absent(us, level, at >> (BITS * (u32::from(level) + 1)))? {
                    if !data {
                        return Ok(Some(at));
                    }
                    let span = 1u64 << (BITS * (u32::from(level) + 1));
                    at = (at / span + 1) * span;
                    continue 'skip;
                }
            }
            let (page, skip) = (at / ENTRIES, (at % ENTRIES) as usize);
            let found = self.read(us, 0, page, |entries| {
                entries.iter().skip(skip).position(|tag| (*tag != ABSENT) == data)
            })?;
            match found {
                Some(further) => return Ok(Some(at + further as u64).filter(|leaf| *leaf < self.leaves)),
                None => at = (page + 1) * ENTRIES,
            }
        }
        Ok(None)
    }

    /// Writes dirty pages and gives the root for TS: the leaves if they are few and take at most
    /// `room` bytes, else the tag of the topmost page.
    pub(crate) fn seal(&mut self, us: &dyn Untrusted, room: usize) -> Result<TreeRoot> {
        let inline = self.leaves <= INLINE && self.leaves as usize * size_of::<Tag>() <= room;
        if inline && (self.dirty > 0 || self.root == ABSENT) {
            if std::mem::take(&mut self.stored) {
                us.write_part(Part::Tree(self.base), 0, None)?;
            }
            let page = self.pages.get_mut().peek((0, 0));
            let leaves = page.map_or(vec![ABSENT; self.leaves as usize], |page| {
                page.entries[..self.leaves as usize].to_vec()
            });
            return Ok(TreeRoot::Leaves(leaves));
        }
        self.flush(us)?;
        Ok(TreeRoot::Page(self.root))
    }

    /// Bytes of the tree's pages in US, to within a page.
    pub(crate) fn stored_bytes(&self, us: &dyn Untrusted) -> Result<u64> {
        let top = height(self.leaves);
        if top == 0 || !self.stored {
            return Ok(0);
        }
        self.bytes_below(us, top - 1, 0)
    }

    fn bytes_below(&self, us: &dyn Untrusted, level: u8, page: u64) -> Result<u64> {
        if self.is_absent(us, level, page)? {
            return Ok(0);
        }
        let entries = (self.entries_at(level) - page * ENTRIES).min(ENTRIES);
        let mut bytes = entries * size_of::<Tag>() as u64;
        if level == 1 {
            let present = self.read(us, 1, page, |e| e.iter().filter(|tag| **tag != ABSENT).count())?;
            bytes += present as u64 * size_of::<Entries>() as u64;
        } else if level > 1 {
            for child in page * ENTRIES..page * ENTRIES + entries {
                bytes += self.bytes_below(us, level - 1, child)?;
            }
        }
        Ok(bytes)
    }

    /// The number of entries of a level.
    fn entries_at(&self, level: u8) -> u64 {
        self.leaves.div_ceil(1 << (BITS * u32::from(level)))
    }

    /// Whether a page has only zeros, according to the page above.
    fn is_absent(&self, us: &dyn Untrusted, level: u8, page: u64) -> Result<bool> {
        if self.pages.lock().contains((level, page)) {
            return Ok(false);
        }
        Ok(self.expected(us, level, page)? == ABSENT)
    }

    /// The tag of a page that is not dirty.
    fn expected(&self, us: &dyn Untrusted, level: u8, page: u64) -> Result<Tag> {
        if level + 1 == height(self.leaves) {
            return Ok(self.root);
        }
        self.read(us, level + 1, page / ENTRIES, |entries| entries[(page % ENTRIES) as usize])
    }

    fn read<R>(
        &self,
        us: &dyn Untrusted,
        level: u8,
        page: u64,
        take: impl FnOnce(&Entries) -> R,
    ) -> Result<R> {
        if let Some(page) = self.pages.lock().get((level, page)) {
            return Ok(take(&page.entries));
        }
        // The lock is not held during a read of US. The tree cannot change meanwhile: changes need
        // `&mut self`.
        let Some(entries) = self.fetch(us, level, page)? else {
            return Ok(take(&[ABSENT; ENTRIES as usize]));
        };
        let result = take(&entries);
        let mut pages = self.pages.lock();
        if !pages.contains((level, page)) && make_room(&mut pages) {
            pages.put((level, page), TreePage { entries, dirty: false });
        }
        Ok(result)
    }

    /// Reads a page and verifies it. `None` if it is absent.
    fn fetch(&self, us: &dyn Untrusted, level: u8, page: u64) -> Result<Option<Box<Entries>>> {
        let expected = self.expected(us, level, page)?;
        if expected == ABSENT {
            return Ok(None);
        }
        let part = Part::Tree(self.base + level);
        let bytes = us.read_part(part, page)?.unwrap_or_default();
        let (tags, rest) = bytes.as_chunks::<16>();
        let mut entries = no_entries();
        if !rest.is_empty() || tags.len() > entries.len() {
            return Err(tampered(part, page).found(format!("{} bytes", bytes.len())));
        }
        let good = constant_time_eq(&self.keys.page_tag(level, &bytes), &expected);
        if !good && is_enforced(SchemeCheck::PageTag) {
            return Err(tampered(part, page).found("a page that does not match its tag"));
        }
        entries[..tags.len()].copy_from_slice(tags);
        Ok(Some(entries))
    }

    /// A page to be changed; marks it and all pages above it dirty.
    fn dirty_page(&mut self, us: &dyn Untrusted, level: u8, page: u64, whole: bool) -> Result<&mut Entries> {
        let key = (level, page);
        let dirty = self.pages.get_mut().peek(key).is_some_and(|page| page.dirty);
        if !dirty {
            if level + 1 < height(self.leaves) {
                self.dirty_page(us, level + 1, page / ENTRIES, false)?;
            }
            if !self.pages.get_mut().contains(key) {
                let entries = if whole { None } else { self.fetch(us, level, page)? };
                let entries = entries.unwrap_or_else(no_entries);
                let pages = self.pages.get_mut();
                make_room(pages);
                pages.put(key, TreePage { entries, dirty: false });
            }
            self.dirty += 1;
        }
        let page = self.pages.get_mut().get(key).expect("it was put there, and dirty pages stay");
        page.dirty = true;
        Ok(&mut page.entries)
    }

    fn grow(&mut self, leaves: u64) {
        if leaves <= self.leaves {
            return;
        }
        let (old, new) = (height(self.leaves), height(leaves));
        self.leaves = leaves;
        if old == 0 || old == new {
            return;
        }
        let pages = self.pages.get_mut();
        if self.root == ABSENT && !pages.peek((old - 1, 0)).is_some_and(|page| page.dirty) {
            return;
        }
        for level in old..new {
            let mut entries = no_entries();
            if level == old {
                entries[0] = self.root;
            }
            pages.put((level, 0), TreePage { entries, dirty: true });
            self.dirty += 1;
        }
    }

    /// Writes dirty pages and their tags, from the leaves to the root.
    fn flush(&mut self, us: &dyn Untrusted) -> Result<()> {
        if self.dirty == 0 {
            return Ok(());
        }
        let mut keys: Vec<(u8, u64)> =
            self.pages.get_mut().iter().filter(|(_, page)| page.dirty).map(|(key, _)| key).collect();
        keys.sort_unstable();
        let levels = height(self.leaves);
        self.stored = true;
        for (level, number) in keys {
            let pages = self.pages.get_mut();
            let page = pages.peek((level, number)).expect("dirty pages stay");
            let used = page.entries.iter().rposition(|tag| *tag != ABSENT).map_or(0, |last| last + 1);
            let bytes = page.entries[..used].as_flattened();
            us.write_part(Part::Tree(self.base + level), number, (used > 0).then_some(bytes))?;
            let tag = if used > 0 { self.keys.page_tag(level, bytes) } else { ABSENT };
            if level + 1 == levels {
                self.root = tag;
            } else {
                let above =
                    pages.get((level + 1, number / ENTRIES)).expect("pages above dirty ones are dirty");
                above.entries[(number % ENTRIES) as usize] = tag;
            }
            if used == 0 {
                pages.remove((level, number));
            } else if let Some(page) = pages.get((level, number)) {
                page.dirty = false;
            }
            self.dirty -= 1;
        }
        Ok(())
    }
}
