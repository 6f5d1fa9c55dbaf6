//! Replay: reads the journal after the superblock, with the changes of every commit since the
//! checkpoint.

use crate::anchor::AnchorState;
use crate::content::{Changes, Commit, Facts, Super};
use crate::journal_size::Place;
use crate::keys::malformed;
use crate::object::{Entry, Layer};
use crate::record::{Found, RecordLog};
use crate::recovered::Before;
use lacuna_contracts::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The replayed changes of an object.
#[derive(Default)]
pub(crate) struct Replayed {
    pub(crate) live: Layer,
    pub(crate) frozen: Option<Arc<Layer>>,
}

/// A checkpoint that began and was not finished.
pub(crate) struct Unfinished {
    pub(crate) commit: Commit,
    pub(crate) facts: Facts,
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) left: u8,
}

/// The state by superblock and journal.
pub(crate) struct Replay {
    pub(crate) last: Commit,
    pub(crate) facts: Facts,
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) puts: Vec<Vec<u8>>,
    pub(crate) objects: BTreeMap<u64, Replayed>,
    /// Objects with a removal that may be incomplete.
    pub(crate) removed: BTreeSet<u64>,
    pub(crate) unfinished: Option<Unfinished>,
    /// The tail of the journal.
    pub(crate) area: u8,
    pub(crate) tail: u64,
    pub(crate) records: u64,
    /// The number of the commit with the root: pages written for it carry smaller numbers.
    pub(crate) root_commit: u64,
    pub(crate) before: Option<Before>,
    /// The last error of an unreadable page of the journal: its records may be missing.
    pub(crate) unread: Option<Error>,
    /// Whether the records prove that the checkpoint was finished: then a superblock of it is lost.
    pub(crate) was_finished: bool,
    /// Whether a commit number is missing: a state was accepted since the superblock's.
    pub(crate) has_gap: bool,
}

impl Replay {
    fn new(from: Super) -> Replay {
        Replay {
            root_commit: from.commit.number,
            before: None,
            unread: None,
            last: from.commit,
            facts: from.facts,
            root: from.root,
            puts: Vec::new(),
            objects: BTreeMap::new(),
            removed: BTreeSet::new(),
            unfinished: None,
            area: from.area,
            tail: 0,
            records: 0,
            was_finished: false,
            has_gap: false,
        }
    }

    /// Reads every record that follows the superblock. `is_durable` tells whether a commit is known
    /// to have been durable: then pages of it that do not verify were altered later, and are errors
    /// of these pages alone.
    pub(crate) fn read(
        records: &RecordLog,
        from: Super,
        is_durable: impl Fn(&Commit) -> bool,
    ) -> Result<Replay> {
        let mut replay = Replay::new(from);
        let mut unread = None;
        let mut next = records.find(replay.area, replay.tail, &replay.last, &mut unread)?;
        while let Some(found) = next {
            // A record is written after the one before is durable with its pages: only the last
            // record can lack pages.
            let switches = found.changes.root.is_some();
            let (area, tail) = if switches { (1 - replay.area, 0) } else { (replay.area, found.end) };
            let after = records.find(area, tail, &found.commit, &mut unread)?;
            let certain =
                after.is_some() || is_durable(&found.commit) || records.is_whole(replay.area, &found)?;
            if !certain {
                break;
            }
            replay.apply(found)?;
            next = after;
        }
        replay.unread = unread;
        Ok(replay)
    }

    /// Reads from the older of two superblocks, if it leads to the newer one: then the checkpoint
    /// of the newer one may not have reached the second files, and is finished once more.
    pub(crate) fn read_from_either(
        records: &RecordLog,
        newer: Super,
        older: Option<Super>,
        is_durable: impl Fn(&Commit) -> bool,
    ) -> Result<Replay> {
        if let Some(older) = older {
            // Any failure here is harmless: the newer superblock covers everything in the first
            // files.
            let read = Replay::read(records, older, &is_durable);
            let leads = |replay: &Replay| {
                replay.unfinished.as_ref().is_some_and(|begun| begun.commit == newer.commit)
            };
            if read.as_ref().is_ok_and(leads) {
                return read;
            }
        }
        Replay::read(records, newer, is_durable)
    }

    /// Continues after damaged records, if all later ones up to the anchored state exist, and a
    /// checkpoint began with one of those. Its root covers all earlier commits, so the state is the
    /// newest. Pages that only damaged records list may be stale: their reader must detect that.
    /// The chain is followed backwards from the anchor, so every accepted record was committed as
    /// it is read.
    pub(crate) fn cross_gap(&mut self, records: &RecordLog, known: &AnchorState) -> Result<()> {
        let mut behind = BTreeMap::new();
        for area in 0..2 {
            let unreached = records.find_unreachable(area, self.last.number)?;
            behind.extend(unreached.into_iter().map(|found| (found.commit.digest, (area, found))));
        }
        let (mut chain, mut digest) = (Vec::new(), known.digest);
        while let Some((area, found)) = behind.remove(&digest) {
            digest = found.commit.before;
            chain.push((area, found));
        }
        if self.unfinished.is_some() || chain.iter().all(|(_, found)| found.changes.root.is_none()) {
            return Ok(());
        }
        for (area, found) in chain.into_iter().rev() {
            if area != self.area {
                return Err(malformed("the journal"));
            }
            self.take(found)?;
        }
        // The batches of the damaged records are lost.
        self.before = None;
        Ok(())
    }

    /// The number of the next commit. After an accepted state it is newer than the anchored one:
    /// the anchor never goes back.
    pub(crate) fn following(&self, known: Option<&AnchorState>) -> u64 {
        self.last.number.max(known.map_or(0, |known| known.number)) + 1
    }

    /// Applies a record; refuses one that does not follow the last commit.
    fn apply(&mut self, found: Found) -> Result<()> {
        if found.commit.before != self.last.digest || found.commit.number <= self.last.number {
            return Err(malformed("the journal"));
        }
        self.take(found)
    }

    /// Applies a record.
    fn take(&mut self, found: Found) -> Result<()> {
        let Found { commit, facts, changes, end } = found;
        let number = commit.number;
        self.has_gap |= number != self.last.number + 1;
        let Changes { cuts, removals, pages, root, puts } = changes;
        for (object, cut) in cuts {
            let layer = &mut self.objects.entry(object).or_default().live;
            drop(layer.pages.split_off(&cut));
            layer.cut = Some(layer.cut.map_or(cut, |before| before.min(cut)));
        }
        for page in pages {
            let place = Place { area: self.area, page: page.place };
            let entry = Entry { place, sequence: page.sequence, tag: page.tag, commit: number };
            self.objects.entry(page.object).or_default().live.pages.insert(page.page, entry);
        }
        for object in removals {
            self.objects.remove(&object);
            self.removed.insert(object);
        }
        self.records += 1;
        self.last = commit;
        self.facts = facts;
        self.tail = end;
        self.keep_what_was_appended();
        if let Some(root) = root {
            self.switch(root, puts)?;
        } else if !puts.is_empty() {
            self.puts.push(puts);
        }
        Ok(())
    }

    /// Drops cuts that were carried out. An object with a pending cut may not be appended to in
    /// place. So if a commit since the checkpoint began lists an object as appendable, its cut was
    /// carried out, and a second cut would remove pages that were appended later. This happens if
    /// the superblock of the finished checkpoint is lost.
    fn keep_what_was_appended(&mut self) {
        if self.unfinished.is_none() {
            return;
        }
        for (object, _) in &self.facts.appendable {
            let frozen = self.objects.get_mut(object).and_then(|replayed| replayed.frozen.as_mut());
            if let Some(layer) = frozen.filter(|layer| layer.cut.is_some()) {
                Arc::make_mut(layer).cut = None;
                self.was_finished = true;
            }
        }
    }

    /// Begins a checkpoint, by a commit with the batch `last`.
    fn switch(&mut self, root: Vec<u8>, last: Vec<u8>) -> Result<()> {
        if self.unfinished.is_some() {
            return Err(malformed("the journal"));
        }
        for object in self.objects.values_mut() {
            object.frozen = Some(Arc::new(std::mem::take(&mut object.live)));
        }
        let mut puts = std::mem::take(&mut self.puts);
        if !last.is_empty() {
            puts.push(last);
        }
        let below = std::mem::replace(&mut self.root_commit, self.last.number);
        self.before = self.root.replace(root.clone()).map(|root| Before { root, puts, below });
        let (commit, facts, root) = (self.last.clone(), self.facts.clone(), Some(root));
        self.unfinished = Some(Unfinished { commit, facts, root, left: self.area });
        (self.area, self.tail) = (1 - self.area, 0);
        Ok(())
    }
}
