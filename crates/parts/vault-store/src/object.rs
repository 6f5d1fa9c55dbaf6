//! One object that was changed since the last checkpoint: which of its pages lie in the journal,
//! and which may be written in place.

use crate::journal::Place;
use crate::keys::TAG;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Pages that were written in place between two commits and may be copied to the journal instead of
/// being synced: a sync of the object and of its name costs more.
pub(crate) const COPIED: u64 = 16;

/// The first pages of a new object, which go to the journal: many objects end before these are
/// over, need no file before the next checkpoint, and often are removed before it.
pub(crate) const SMALL: u64 = 16;

/// A page in the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) place: Place,
    pub(crate) sequence: u64,
    pub(crate) tag: [u8; TAG],
    /// Number of the commit that lists it.
    pub(crate) commit: u64,
}

/// What the journal says of an object since a checkpoint.
#[derive(Clone, Default)]
pub(crate) struct Layer {
    pub(crate) pages: BTreeMap<u64, Entry>,
    /// The object was cut here: what lies further on is zeros, as far as no page in this layer says
    /// otherwise.
    pub(crate) cut: Option<u64>,
}

impl Layer {
    fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.cut.is_none()
    }
}

/// Where a page is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Own,
    Journal(Place),
    Zeros,
}

/// Where a page is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To its place: no commit refers to what is there.
    Own,
    /// Over itself in the journal: no commit lists it yet.
    Again(Place),
    /// To the end of the journal.
    Append,
}

/// What changed since the last record.
#[derive(Default)]
pub(crate) struct Fresh {
    /// Number of the commit that will say so; what was noted for an earlier one has been said.
    pub(crate) commit: u64,
    /// Pages that were appended to the journal; some may have been cut since.
    pub(crate) journaled: Vec<u64>,
    /// The least length that it was cut to, among what commits refer to.
    pub(crate) cut: Option<u64>,
    /// Pages written in place.
    pub(crate) placed: u64,
    /// Which, as long as they are few.
    pub(crate) runs: Vec<Range<u64>>,
    /// A refused write or a cut may have left pages in place, past the end or in what was put back
    /// since: only a sync of the object says that they are gone.
    pub(crate) shrunk: bool,
}

/// An object. Its lock is held while pages of it are read and written.
#[derive(Default)]
pub(crate) struct Object {
    /// Number of the checkpoint that `live` comes after.
    epoch: u64,
    pub(crate) live: Layer,
    /// What a checkpoint that is under way brings to its place. Nothing changes in it.
    pub(crate) frozen: Option<Arc<Layer>>,
    /// Pages before this one may be referred to by a commit; nothing if the file was not asked yet.
    pub(crate) stable: Option<u64>,
    /// Pages written so far end before this one.
    pub(crate) end: u64,
    /// What lies past `stable` may be written in place as soon as this commit is durable.
    pub(crate) appendable: Option<u64>,
    pub(crate) fresh: Fresh,
    /// Whether its file was made and its name not synced.
    pub(crate) name_unsynced: bool,
    pub(crate) removed: bool,
    /// Whether its removal is durable.
    pub(crate) gone: bool,
}

impl Object {
    /// As a recovery found it, before or after checkpoint number `epoch` began.
    pub(crate) fn replayed(live: Layer, frozen: Option<Arc<Layer>>, epoch: u64) -> Object {
        let last = |layer: &Layer| layer.pages.last_key_value().map_or(0, |(page, _)| page + 1);
        let end = last(&live).max(frozen.as_ref().map_or(0, |layer| last(layer)));
        Object { epoch, live, frozen, end, ..Object::default() }
    }

    /// What comes past these pages is in no commit, and must not be read: it may still be there.
    pub(crate) fn ends_at(&mut self, pages: u64) {
        self.live.cut = Some(pages);
    }

    /// After a recovery cut what no commit refers to: what comes past these pages may be written in
    /// place.
    pub(crate) fn trimmed_to(&mut self, pages: u64) {
        // A commit lists no object as appendable that has a cut of its own.
        self.live.cut = None;
        self.stable = Some(pages);
        self.appendable = Some(0);
    }

    /// Before a change: begins what is noted for `commit`, after checkpoint number `epoch` began.
    /// Whether it begins anew.
    pub(crate) fn begin(&mut self, commit: u64, epoch: u64) -> bool {
        self.turn(epoch);
        let begins = self.fresh.commit != commit;
        if begins {
            self.fresh = Fresh { commit, ..Fresh::default() };
        }
        begins
    }

    /// Once checkpoint number `epoch` began, what is in the journal before it is frozen.
    pub(crate) fn turn(&mut self, epoch: u64) {
        if self.epoch < epoch {
            self.epoch = epoch;
            if !self.live.is_empty() {
                debug_assert!(self.frozen.is_none(), "one checkpoint at a time");
                self.frozen = Some(Arc::new(std::mem::take(&mut self.live)));
            }
        }
    }

    /// How many of its pages lie in the journal.
    pub(crate) fn journaled(&self) -> u64 {
        (self.live.pages.len() + self.frozen.as_ref().map_or(0, |layer| layer.pages.len())) as u64
    }

    /// The page after the last one that lies in the journal.
    pub(crate) fn journaled_end(&self) -> u64 {
        let layers = [Some(&self.live), self.frozen.as_deref()];
        let last = layers.into_iter().flatten().filter_map(|layer| layer.pages.last_key_value());
        last.map(|(page, _)| page + 1).max().unwrap_or(0)
    }

    /// Whether a cut was not carried out in place yet. Until it is, every page goes to the journal.
    pub(crate) fn is_cut(&self) -> bool {
        self.live.cut.is_some() || self.frozen.as_ref().is_some_and(|layer| layer.cut.is_some())
    }

    /// Where a page is read from.
    pub(crate) fn source(&self, page: u64) -> Source {
        if let Some(entry) = self.entry(page) {
            return Source::Journal(entry.place);
        }
        let is_cut = |layer: &Layer| layer.cut.is_some_and(|cut| page >= cut);
        let cut = is_cut(&self.live) || self.frozen.as_deref().is_some_and(is_cut);
        if cut { Source::Zeros } else { Source::Own }
    }

    /// What the journal says of a page that is read from there.
    pub(crate) fn entry(&self, page: u64) -> Option<&Entry> {
        if let Some(entry) = self.live.pages.get(&page) {
            return Some(entry);
        }
        let cut = self.live.cut.is_some_and(|cut| page >= cut);
        self.frozen.as_ref().filter(|_| !cut)?.pages.get(&page)
    }

    /// Where a page is written to. `durable` is the last durable commit; `new` objects are in none.
    pub(crate) fn target(&self, page: u64, durable: u64, new: bool) -> Target {
        if let Some(entry) = self.live.pages.get(&page) {
            let unlisted = entry.commit == self.fresh.commit;
            return if unlisted { Target::Again(entry.place) } else { Target::Append };
        }
        let past = self.stable.is_some_and(|stable| page >= stable) && (!new || page >= SMALL);
        let may = new || self.appendable.is_some_and(|commit| commit <= durable);
        if past && may && !self.is_cut() { Target::Own } else { Target::Append }
    }

    /// Notes pages that were written in place.
    pub(crate) fn note_placed(&mut self, pages: Range<u64>) {
        self.end = self.end.max(pages.end);
        let fresh = &mut self.fresh;
        fresh.placed += pages.end - pages.start;
        if fresh.placed <= COPIED {
            fresh.runs.push(pages);
        }
    }

    /// Notes a page that was written to the journal.
    pub(crate) fn note_journaled(&mut self, page: u64, entry: Entry) {
        self.end = self.end.max(page + 1);
        if self.live.pages.insert(page, entry).is_none_or(|old| old.commit != entry.commit) {
            self.fresh.journaled.push(page);
        }
    }

    /// Cuts it. Whether pages that no commit refers to are to be cut in place now.
    pub(crate) fn cut(&mut self, pages: u64) -> bool {
        drop(self.live.pages.split_off(&pages));
        self.end = self.end.min(pages);
        if self.stable.is_none_or(|stable| pages < stable) {
            self.live.cut = Some(self.live.cut.map_or(pages, |cut| cut.min(pages)));
            self.fresh.cut = Some(self.fresh.cut.map_or(pages, |cut| cut.min(pages)));
            return false;
        }
        !self.is_cut()
    }

    /// Cuts it where its file could not be cut, although no commit refers to what lies there: the
    /// next record says that it is cut.
    pub(crate) fn cut_above_file(&mut self, pages: u64) {
        self.live.cut = Some(self.live.cut.map_or(pages, |cut| cut.min(pages)));
        self.fresh.cut = Some(self.fresh.cut.map_or(pages, |cut| cut.min(pages)));
        self.fresh.shrunk = true;
    }

    /// Pages that the next record lists, in order.
    pub(crate) fn listed(&self) -> Vec<(u64, Entry)> {
        let mut pages: Vec<u64> = self.fresh.journaled.clone();
        pages.sort_unstable();
        pages.dedup();
        let entry = |page: u64| Some((page, *self.live.pages.get(&page)?));
        pages.into_iter().filter_map(entry).filter(|(_, entry)| entry.commit == self.fresh.commit).collect()
    }

    /// After a record took what was fresh: commits refer to every page written so far.
    pub(crate) fn said(&mut self, appendable: Option<u64>) {
        self.stable = self.stable.map(|stable| stable.max(self.end));
        self.appendable = appendable;
        self.fresh = Fresh::default();
    }

    /// Whether nothing is known of it that its file does not tell: no commit is owed, and nothing
    /// is in the journal.
    pub(crate) fn is_idle(&self, commit: u64) -> bool {
        let owed = self.fresh.commit == commit;
        !owed
            && self.live.is_empty()
            && self.frozen.is_none()
            && self.appendable.is_none()
            && !self.name_unsynced
            && (!self.removed || self.gone)
    }
}
