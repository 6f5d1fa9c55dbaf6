//! A page of a [`crate::wide_tree::WideTree`], and the page cache.

use crate::keys::Tag;
use lacuna_contracts::BoundedCache;
use rustc_hash::FxBuildHasher;

/// log2 of the entries of a page.
pub(crate) const BITS: u32 = 7;
/// Entries of a page.
pub(crate) const ENTRIES: u64 = 1 << BITS;
/// The tag of an absent page, and the leaf of a hole.
pub(crate) const ABSENT: Tag = [0; 16];
/// The smallest cache: a dirty path through the tallest tree, and some more.
pub(crate) const FEWEST_PAGES: usize = 24;

/// The entries of a page: leaves, or the tags of pages one level below.
pub(crate) type Entries = [Tag; ENTRIES as usize];
/// Pages by level and number.
pub(crate) type TreeCache = BoundedCache<(u8, u64), TreePage, FxBuildHasher>;

/// A page in the cache.
pub(crate) struct TreePage {
    pub(crate) entries: Box<Entries>,
    /// Whether the page differs from US.
    pub(crate) dirty: bool,
}

/// The number of levels of a tree of `leaves` leaves.
pub(crate) fn height(leaves: u64) -> u8 {
    if leaves == 0 { 0 } else { ((64 - (leaves - 1).leading_zeros()).div_ceil(BITS)).max(1) as u8 }
}

/// A page of zeros.
pub(crate) fn no_entries() -> Box<Entries> {
    Box::new([ABSENT; ENTRIES as usize])
}

/// Makes room for a page. `false` if all pages are dirty.
pub(crate) fn make_room(pages: &mut TreeCache) -> bool {
    !pages.is_full() || pages.evict(|_, page| !page.dirty).is_some()
}
