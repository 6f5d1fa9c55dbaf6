//! Replay: reads the journal after the superblock, with the changes of every commit since the
//! checkpoint.

use crate::anchor::AnchorState;
use crate::commits::codec::{Commit, CommitState, RecordChanges, Superblock};
use crate::commits::record::{FoundRecord, RecordLog};
use crate::journal::size::JournalPlace;
use crate::keys::malformed;
use crate::objects::object::{JournalEntry, JournalLayer};
use crate::opening::recovered::PreviousRoot;
use lacuna_contracts::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The replayed changes of an object.
#[derive(Default)]
pub(crate) struct ReplayedObject {
    pub(crate) live: JournalLayer,
    pub(crate) frozen: Option<Arc<JournalLayer>>,
}

/// A checkpoint that began and was not finished.
pub(crate) struct UnfinishedCheckpoint {
    pub(crate) commit: Commit,
    pub(crate) state: CommitState,
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) journal_file: u8,
}

/// The state by superblock and journal.
pub(crate) struct JournalReplay {
    pub(crate) last: Commit,
    pub(crate) state: CommitState,
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) puts: Vec<Vec<u8>>,
    pub(crate) objects: BTreeMap<u64, ReplayedObject>,
    /// Objects with a removal that may be incomplete.
    pub(crate) removed: BTreeSet<u64>,
    pub(crate) unfinished: Option<UnfinishedCheckpoint>,
    /// The tail of the journal.
    pub(crate) area: u8,
    pub(crate) tail: u64,
    pub(crate) records: u64,
    /// The number of the commit with the root: pages written for it carry smaller numbers.
    pub(crate) root_commit: u64,
    pub(crate) previous_root: Option<PreviousRoot>,
    /// The last error of an unreadable page of the journal: its records may be missing.
    pub(crate) read_error: Option<Error>,
    /// Whether the records prove that the checkpoint was finished: then a superblock of it is lost.
    pub(crate) was_finished: bool,
    /// Whether a commit number is missing: a state was accepted since the superblock's.
    pub(crate) has_gap: bool,
}

impl JournalReplay {
    fn new(from: Superblock) -> JournalReplay {
        JournalReplay {
            root_commit: from.commit.number,
            previous_root: None,
            read_error: None,
            last: from.commit,
            state: from.state,
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
        from: Superblock,
        is_durable: impl Fn(&Commit) -> bool,
    ) -> Result<JournalReplay> {
        let mut replay = JournalReplay::new(from);
        let mut read_error = None;
        let mut next = records.find(replay.area, replay.tail, &replay.last, &mut read_error)?;
        while let Some(found) = next {
            // A record is written after the one before is durable with its pages: only the last
            // record can lack pages.
            let switches = found.changes.root.is_some();
            let (area, tail) = if switches { (1 - replay.area, 0) } else { (replay.area, found.end) };
            let after = records.find(area, tail, &found.commit, &mut read_error)?;
            let certain = after.is_some()
                || is_durable(&found.commit)
                || records.is_whole(replay.area, &found, &mut read_error)?;
            next = if certain {
                replay.apply(found)?;
                after
            } else {
                // A power cut left this record without its pages. A later opening may have made
                // another commit in its place, with a record behind this one.
                records.find(replay.area, found.end, &replay.last, &mut read_error)?
            };
        }
        replay.read_error = read_error;
        Ok(replay)
    }

    /// Reads from the older of two superblocks, if it leads to the newer one: then the checkpoint
    /// of the newer one may not have reached the second files, and is finished once more.
    pub(crate) fn read_from_either(
        records: &RecordLog,
        newer: Superblock,
        older: Option<Superblock>,
        is_durable: impl Fn(&Commit) -> bool,
    ) -> Result<JournalReplay> {
        if let Some(older) = older {
            // Any failure here is harmless: the newer superblock covers everything in the first
            // files.
            let read = JournalReplay::read(records, older, &is_durable);
            let leads = |replay: &JournalReplay| {
                replay.unfinished.as_ref().is_some_and(|begun| begun.commit == newer.commit)
            };
            if read.as_ref().is_ok_and(leads) {
                return read;
            }
        }
        JournalReplay::read(records, newer, is_durable)
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
            digest = found.commit.previous_digest;
            chain.push((area, found));
        }
        if self.unfinished.is_some() || chain.iter().all(|(_, found)| found.changes.root.is_none()) {
            return Ok(());
        }
        for (area, found) in chain.into_iter().rev() {
            if area != self.area {
                return Err(malformed("the journal"));
            }
            self.apply_unchecked(found)?;
        }
        // The batches of the damaged records are lost.
        self.previous_root = None;
        Ok(())
    }

    /// The number of the next commit. After an accepted state it is newer than the anchored one:
    /// the anchor never goes back.
    pub(crate) fn next_number(&self, known: Option<&AnchorState>) -> u64 {
        self.last.number.max(known.map_or(0, |known| known.number)) + 1
    }

    /// Applies a record; refuses one that does not follow the last commit.
    fn apply(&mut self, found: FoundRecord) -> Result<()> {
        if found.commit.previous_digest != self.last.digest || found.commit.number <= self.last.number {
            return Err(malformed("the journal"));
        }
        self.apply_unchecked(found)
    }

    /// Applies a record.
    fn apply_unchecked(&mut self, found: FoundRecord) -> Result<()> {
        let FoundRecord { commit, state: facts, changes, end } = found;
        let number = commit.number;
        self.has_gap |= number != self.last.number + 1;
        let RecordChanges { cuts, removals, pages, root, puts } = changes;
        for (object, cut) in cuts {
            let layer = &mut self.objects.entry(object).or_default().live;
            drop(layer.pages.split_off(&cut));
            layer.cut = Some(layer.cut.map_or(cut, |before| before.min(cut)));
        }
        for page in pages {
            let place = JournalPlace { area: self.area, page: page.place };
            let entry = JournalEntry { place, sequence: page.sequence, tag: page.tag, commit: number };
            self.objects.entry(page.object).or_default().live.pages.insert(page.page, entry);
        }
        for object in removals {
            self.objects.remove(&object);
            self.removed.insert(object);
        }
        self.records += 1;
        self.last = commit;
        self.state = facts;
        self.tail = end;
        self.drop_finished_cuts();
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
    fn drop_finished_cuts(&mut self) {
        if self.unfinished.is_none() {
            return;
        }
        for (object, _) in &self.state.appendable {
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
        self.previous_root =
            self.root.replace(root.clone()).map(|root| PreviousRoot { root, puts, commit_limit: below });
        let (commit, facts, root) = (self.last.clone(), self.state.clone(), Some(root));
        self.unfinished = Some(UnfinishedCheckpoint { commit, state: facts, root, journal_file: self.area });
        (self.area, self.tail) = (1 - self.area, 0);
        Ok(())
    }
}
