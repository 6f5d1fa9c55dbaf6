//! Tags of journaled pages: they tell a page that a record lists from any other page.

use crate::journal::size::JournalPlace;
use crate::keys::StoreKeys;
use crate::objects::object::JournalEntry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers and tags the pages that are written to the journal, and verifies pages that are read.
pub(crate) struct PageTags {
    keys: Arc<StoreKeys>,
    /// The sequence number of the next page that is written to the journal.
    sequence: AtomicU64,
}

impl PageTags {
    /// Tags under these keys, with numbers from zero.
    pub(crate) fn new(keys: Arc<StoreKeys>) -> PageTags {
        PageTags { keys, sequence: AtomicU64::new(0) }
    }

    /// The entry of a page that was written to this place: the record of commit number `commit`
    /// will list it.
    pub(crate) fn entry(&self, place: JournalPlace, page: &[u8], commit: u64) -> JournalEntry {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let tag = self.keys.page_tag(sequence, page);
        JournalEntry { place, sequence, tag, commit }
    }

    /// Whether a page is the page of an entry.
    pub(crate) fn matches(&self, entry: &JournalEntry, page: &[u8]) -> bool {
        self.keys.verify_page(entry.sequence, page, &entry.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PAGE;
    use lacuna_contracts::Secret;

    #[test]
    fn an_entry_matches_its_page_under_its_number_alone() {
        let tags = PageTags::new(Arc::new(StoreKeys::derive(&Secret::copy_from(&[1; 32]), &[2; 16])));
        let place = JournalPlace { area: 1, page: 7 };
        let (first, second) = (tags.entry(place, &[3; PAGE], 5), tags.entry(place, &[3; PAGE], 6));
        assert_eq!((first.place, first.sequence, first.commit), (place, 0, 5));
        assert_eq!((second.sequence, second.commit), (1, 6));
        assert_ne!(first.tag, second.tag);
        assert!(tags.matches(&first, &[3; PAGE]) && tags.matches(&second, &[3; PAGE]));
        assert!(!tags.matches(&first, &[4; PAGE]));
        assert!(!tags.matches(&JournalEntry { sequence: 1, ..first }, &[3; PAGE]));
    }
}
