//! One object that was changed since the last checkpoint: its pages in the journal, and the pages
//! that may be written in place.

use crate::journal::size::JournalPlace;
use crate::keys::TAG;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The most pages written in place between two commits that are copied to the journal instead of
/// being synced: a sync of the object and of its name costs more.
pub(crate) const MAX_COPIED_PAGES: u64 = 16;

/// The number of first pages of a new object that go to the journal. Many objects are no longer
/// than that, so they need no file before the next checkpoint, and often are removed before it.
pub(crate) const SMALL_OBJECT_PAGES: u64 = 16;

/// A page in the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalEntry {
    pub(crate) place: JournalPlace,
    pub(crate) sequence: u64,
    pub(crate) tag: [u8; TAG],
    /// The number of the commit that lists it.
    pub(crate) commit: u64,
}

/// The changes of an object in the journal since a checkpoint.
#[derive(Clone, Default)]
pub(crate) struct JournalLayer {
    pub(crate) pages: BTreeMap<u64, JournalEntry>,
    /// The object was truncated to this length: later pages read as zeros, unless this layer has
    /// them.
    pub(crate) cut: Option<u64>,
}

impl JournalLayer {
    fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.cut.is_none()
    }
}

/// The place that a page is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadSource {
    File,
    Journal(JournalPlace),
    Zeros,
}

/// The place that a page is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteTarget {
    /// In place: no commit refers to the page there.
    InPlace,
    /// To the journal, instead of this page there, which no commit lists yet.
    JournalOverwrite(JournalPlace),
    /// To the end of the journal.
    JournalAppend,
}

/// The changes since the last record.
#[derive(Default)]
pub(crate) struct UnrecordedChanges {
    /// The number of the commit that will record them; a different number means that they are
    /// recorded already.
    pub(crate) commit: u64,
    /// Pages that were appended to the journal; some may have been truncated since.
    pub(crate) journaled: Vec<u64>,
    /// The shortest length that it was truncated to, if that removed pages that commits refer to.
    pub(crate) cut: Option<u64>,
    /// The number of pages written in place.
    pub(crate) in_place_pages: u64,
    /// Those pages, while they are few.
    pub(crate) runs: Vec<Range<u64>>,
    /// A refused write or a truncation may have left pages in the file, past the end or where old
    /// content was restored: only a sync of the object makes their removal durable.
    pub(crate) must_sync: bool,
}

/// An object. Readers and writers of its pages hold its lock.
#[derive(Default)]
pub(crate) struct Object {
    /// The number of the last checkpoint that began before `live`.
    epoch: u64,
    pub(crate) live: JournalLayer,
    /// The layer that a checkpoint in progress writes back. It is immutable.
    pub(crate) frozen: Option<Arc<JournalLayer>>,
    /// Commits may refer to pages before this one; `None` until the file's length is read.
    pub(crate) committed_end: Option<u64>,
    /// The end of all pages written so far.
    pub(crate) end: u64,
    /// Pages past `committed_end` may be written in place once this commit is durable.
    pub(crate) appendable: Option<u64>,
    pub(crate) unrecorded: UnrecordedChanges,
    /// Whether the file was created and its name not synced.
    pub(crate) name_unsynced: bool,
    pub(crate) removed: bool,
    /// Whether its removal is durable.
    pub(crate) is_unlinked: bool,
}

impl Object {
    /// The object as a recovery found it, before or after checkpoint number `epoch` began.
    pub(crate) fn replayed(live: JournalLayer, frozen: Option<Arc<JournalLayer>>, epoch: u64) -> Object {
        let last = |layer: &JournalLayer| layer.pages.last_key_value().map_or(0, |(page, _)| page + 1);
        let end = last(&live).max(frozen.as_ref().map_or(0, |layer| last(layer)));
        Object { epoch, live, frozen, end, ..Object::default() }
    }

    /// Hides pages past `pages`: they belong to no commit and must not be read, but the file may
    /// still hold some.
    pub(crate) fn hide_past(&mut self, pages: u64) {
        self.live.cut = Some(pages);
    }

    /// Notes that a recovery truncated the file to `pages`: later pages may be written in place.
    pub(crate) fn trimmed_to(&mut self, pages: u64) {
        // A commit never lists an object as appendable that has a cut of its own.
        self.live.cut = None;
        self.committed_end = Some(pages);
        self.appendable = Some(0);
    }

    /// Called before a change: starts the notes for `commit`, after checkpoint number `epoch`
    /// began. Returns whether they are new.
    pub(crate) fn begin(&mut self, commit: u64, epoch: u64) -> bool {
        self.freeze_before(epoch);
        let begins = self.unrecorded.commit != commit;
        if begins {
            self.unrecorded = UnrecordedChanges { commit, ..UnrecordedChanges::default() };
        }
        begins
    }

    /// Freezes the journaled pages if checkpoint number `epoch` began since.
    pub(crate) fn freeze_before(&mut self, epoch: u64) {
        if self.epoch < epoch {
            self.epoch = epoch;
            if !self.live.is_empty() {
                debug_assert!(self.frozen.is_none(), "one checkpoint at a time");
                self.frozen = Some(Arc::new(std::mem::take(&mut self.live)));
            }
        }
    }

    /// The number of its pages in the journal.
    pub(crate) fn journaled(&self) -> u64 {
        (self.live.pages.len() + self.frozen.as_ref().map_or(0, |layer| layer.pages.len())) as u64
    }

    /// The end of its last page in the journal.
    pub(crate) fn journaled_end(&self) -> u64 {
        let layers = [Some(&self.live), self.frozen.as_deref()];
        let last = layers.into_iter().flatten().filter_map(|layer| layer.pages.last_key_value());
        last.map(|(page, _)| page + 1).max().unwrap_or(0)
    }

    /// Whether a truncation was not carried out in place yet. Until it is, every page goes to the
    /// journal.
    pub(crate) fn is_cut(&self) -> bool {
        self.live.cut.is_some() || self.frozen.as_ref().is_some_and(|layer| layer.cut.is_some())
    }

    /// The place that a page is read from.
    pub(crate) fn source(&self, page: u64) -> ReadSource {
        if let Some(entry) = self.entry(page) {
            return ReadSource::Journal(entry.place);
        }
        let is_cut = |layer: &JournalLayer| layer.cut.is_some_and(|cut| page >= cut);
        let cut = is_cut(&self.live) || self.frozen.as_deref().is_some_and(is_cut);
        if cut { ReadSource::Zeros } else { ReadSource::File }
    }

    /// The journal entry of a page that is read from the journal.
    pub(crate) fn entry(&self, page: u64) -> Option<&JournalEntry> {
        if let Some(entry) = self.live.pages.get(&page) {
            return Some(entry);
        }
        let cut = self.live.cut.is_some_and(|cut| page >= cut);
        self.frozen.as_ref().filter(|_| !cut)?.pages.get(&page)
    }

    /// The place that a page is written to. `durable` is the last durable commit; `new` objects are
    /// in no record.
    pub(crate) fn target(&self, page: u64, durable: u64, new: bool) -> WriteTarget {
        if let Some(entry) = self.live.pages.get(&page) {
            let unlisted = entry.commit == self.unrecorded.commit;
            return if unlisted {
                WriteTarget::JournalOverwrite(entry.place)
            } else {
                WriteTarget::JournalAppend
            };
        }
        let past =
            self.committed_end.is_some_and(|stable| page >= stable) && (!new || page >= SMALL_OBJECT_PAGES);
        let may = new || self.appendable.is_some_and(|commit| commit <= durable);
        if past && may && !self.is_cut() { WriteTarget::InPlace } else { WriteTarget::JournalAppend }
    }

    /// Notes pages that were written in place.
    pub(crate) fn note_written_in_place(&mut self, pages: Range<u64>) {
        self.end = self.end.max(pages.end);
        let fresh = &mut self.unrecorded;
        fresh.in_place_pages += pages.end - pages.start;
        if fresh.in_place_pages <= MAX_COPIED_PAGES {
            fresh.runs.push(pages);
        }
    }

    /// Notes a page that was written to the journal.
    pub(crate) fn note_journaled(&mut self, page: u64, entry: JournalEntry) {
        self.end = self.end.max(page + 1);
        if self.live.pages.insert(page, entry).is_none_or(|old| old.commit != entry.commit) {
            self.unrecorded.journaled.push(page);
        }
    }

    /// Truncates the object. Returns whether the caller must truncate the file now, to remove pages
    /// that no commit refers to.
    pub(crate) fn truncate(&mut self, pages: u64) -> bool {
        drop(self.live.pages.split_off(&pages));
        self.end = self.end.min(pages);
        if self.committed_end.is_none_or(|stable| pages < stable) {
            self.live.cut = Some(self.live.cut.map_or(pages, |cut| cut.min(pages)));
            self.unrecorded.cut = Some(self.unrecorded.cut.map_or(pages, |cut| cut.min(pages)));
            return false;
        }
        !self.is_cut()
    }

    /// Truncates the object after its file could not be truncated, although no commit refers to the
    /// removed pages: the next record lists the truncation.
    pub(crate) fn truncate_in_journal(&mut self, pages: u64) {
        self.live.cut = Some(self.live.cut.map_or(pages, |cut| cut.min(pages)));
        self.unrecorded.cut = Some(self.unrecorded.cut.map_or(pages, |cut| cut.min(pages)));
        self.unrecorded.must_sync = true;
    }

    /// The pages that the next record lists, in order.
    pub(crate) fn pages_to_record(&self) -> Vec<(u64, JournalEntry)> {
        let mut pages: Vec<u64> = self.unrecorded.journaled.clone();
        pages.sort_unstable();
        pages.dedup();
        let entry = |page: u64| Some((page, *self.live.pages.get(&page)?));
        pages
            .into_iter()
            .filter_map(entry)
            .filter(|(_, entry)| entry.commit == self.unrecorded.commit)
            .collect()
    }

    /// Clears `unrecorded` after a record was written: commits now refer to all pages written so
    /// far.
    pub(crate) fn note_recorded(&mut self, appendable: Option<u64>) {
        self.committed_end = self.committed_end.map(|stable| stable.max(self.end));
        self.appendable = appendable;
        self.unrecorded = UnrecordedChanges::default();
    }

    /// Whether the entry can be dropped: nothing is to be recorded, and the journal holds nothing
    /// of the object.
    pub(crate) fn is_idle(&self, commit: u64) -> bool {
        let owed = self.unrecorded.commit == commit;
        !owed
            && self.live.is_empty()
            && self.frozen.is_none()
            && self.appendable.is_none()
            && !self.name_unsynced
            && (!self.removed || self.is_unlinked)
    }
}
