//! The change collector: gathers the changes since the last record for a commit, while no object
//! changes, and starts the next interval.

use crate::commits::codec::{
    APPENDABLE, CommitState, JournaledPage, MACHINES, ObjectPages, ROOT_MAX, RecordChanges,
};
use crate::commits::commit_interval::{ChangedObjects, CommitInterval};
use crate::commits::record;
use crate::journal::Journal;
use crate::objects::object::MAX_COPIED_PAGES;
use crate::objects::table::ObjectTable;
use crate::objects::writer::ObjectWriter;
use lacuna_contracts::Result;
use parking_lot::{MutexGuard, RwLockWriteGuard};
use std::sync::Arc;

/// The parameters of a commit.
pub(crate) struct CommitRequest<'a> {
    pub(crate) puts: &'a [u8],
    pub(crate) root: Option<&'a [u8]>,
    /// Whether a record is written even if nothing changed.
    pub(crate) is_forced: bool,
}

/// Gathers the changed objects of an open store.
pub(crate) struct ChangeCollector {
    objects: Arc<ObjectTable>,
    interval: Arc<CommitInterval>,
    journal: Arc<Journal>,
    writer: Arc<ObjectWriter>,
}

/// The changes of a commit. No object changes while this value exists.
pub(crate) struct Collected<'c> {
    collector: &'c ChangeCollector,
    // The fields are dropped in this order: the gate last.
    changed: MutexGuard<'c, ChangedObjects>,
    _gate: RwLockWriteGuard<'c, ()>,
    /// The number of the commit.
    pub(crate) number: u64,
    pub(crate) changes: RecordChanges,
    /// Objects that are appendable in place after the commit, with their pages.
    pub(crate) appendable: Vec<ObjectPages>,
    /// Objects that must be durable before the record.
    pub(crate) must_sync: Vec<u64>,
}

/// The objects of recorded changes.
pub(crate) struct Recorded {
    /// Objects that changed, and objects that are no longer appendable.
    pub(crate) touched: Vec<u64>,
    pub(crate) removed: Vec<u64>,
    /// With a root: the checkpoint that began.
    pub(crate) checkpoint: Option<BegunCheckpoint>,
}

/// The objects that a checkpoint writes back.
pub(crate) struct BegunCheckpoint {
    pub(crate) objects: Vec<u64>,
    /// The journal file that holds them, and takes no new pages.
    pub(crate) journal_file: u8,
}

impl ChangeCollector {
    /// A collector of the changes of these objects in this interval.
    pub(crate) fn new(
        objects: Arc<ObjectTable>,
        interval: Arc<CommitInterval>,
        journal: Arc<Journal>,
        writer: Arc<ObjectWriter>,
    ) -> ChangeCollector {
        ChangeCollector { objects, interval, journal, writer }
    }

    /// Collects the changes for a commit; `None` if there is nothing to record. If few pages were
    /// written in place, copies them to the journal. Nothing is recorded before
    /// [`Collected::record`]: if the result is dropped, a later commit collects the same changes.
    pub(crate) fn collect(&self, request: &CommitRequest<'_>) -> Result<Option<Collected<'_>>> {
        let gate = self.interval.lock_exclusive();
        let mut changed = self.interval.changed();
        changed.touched.sort_unstable();
        changed.removed.sort_unstable();
        let nothing = changed.touched.is_empty() && changed.removed.is_empty();
        if nothing && request.puts.is_empty() && request.root.is_none() && !request.is_forced {
            return Ok(None);
        }
        let copied = self.writer.copy_to_journal(&changed)?;
        let number = self.interval.commit();
        let mut changes = RecordChanges {
            removals: changed.removed.clone(),
            root: request.root.map(<[u8]>::to_vec),
            // Also with a root: until its checkpoint is finished, the puts lead to it from the
            // previous root, which has its pages whole.
            puts: request.puts.to_vec(),
            ..RecordChanges::default()
        };
        let (appendable, must_sync) = self.list(&changed, copied, &mut changes);
        Ok(Some(Collected { collector: self, changed, _gate: gate, number, changes, appendable, must_sync }))
    }

    /// Adds the cuts and journaled pages of touched objects to `changes`. Returns the objects that
    /// are appendable in place after the commit, with their pages; and the objects that must be
    /// durable before the record: none if pages written in place were `copied` to the journal.
    fn list(
        &self,
        changed: &ChangedObjects,
        copied: bool,
        changes: &mut RecordChanges,
    ) -> (Vec<ObjectPages>, Vec<u64>) {
        let objects = &self.objects;
        let (mut appendable, mut must_sync) = (Vec::new(), Vec::new());
        for &id in &changed.touched {
            let Some(object) = objects.get(id) else { continue };
            let object = object.read();
            if object.removed {
                continue;
            }
            changes.cuts.extend(object.unrecorded.cut.map(|cut| (id, cut)));
            changes.pages.extend(object.pages_to_record().into_iter().map(|(page, entry)| JournaledPage {
                object: id,
                page,
                place: entry.place.page,
                sequence: entry.sequence,
                tag: entry.tag,
            }));
            let fresh = &object.unrecorded;
            if !copied && (fresh.in_place_pages > 0 || fresh.must_sync) {
                must_sync.push(id);
            }
            let many = fresh.in_place_pages.max(fresh.journaled.len() as u64) > MAX_COPIED_PAGES;
            if many && !object.is_cut() && appendable.len() < APPENDABLE && !objects.doubled.has(id) {
                appendable.push((id, object.committed_end.unwrap_or(0).max(object.end)));
            }
        }
        (appendable, must_sync)
    }

    /// The first unused object number, and how many numbers were given since the last record.
    pub(crate) fn next_numbers(&self) -> (u64, u64) {
        self.interval.numbers_given()
    }

    /// The pages of the journal that writes of this many pages may take, and the pages of the
    /// record of a later commit with a root and with this many bytes of puts.
    pub(crate) fn space_needed(&self, pages: u64, puts: u64) -> (u64, u64) {
        let pages = pages + MAX_COPIED_PAGES;
        let (touched, removed) = {
            let changed = self.interval.changed();
            (changed.touched.len() as u64, changed.removed.len() as u64)
        };
        // The worst case: every page since the last record is listed, every object was truncated,
        // and all lists of facts are full.
        let lists = 44 * (self.journal.pages_since_record() + pages) + 16 * touched + 8 * removed;
        let facts = 88 * MACHINES as u64 + 16 * APPENDABLE as u64 + puts + ROOT_MAX as u64 + 256;
        (pages, record::pages_of((lists + facts) as usize))
    }

    /// Makes objects durable that were written in place.
    pub(crate) fn sync(&self, objects: &[u64]) -> Result<()> {
        self.objects.sync(objects)
    }

    /// Called when a commit is durable: objects below `object_limit` may now be made.
    pub(crate) fn note_durable(&self, number: u64, object_limit: u64) {
        self.interval.made_durable(number, object_limit);
    }
}

impl Collected<'_> {
    /// Ends the interval: the record of the collected changes has its place in the journal, and
    /// `state` is the state after the commit. Later changes belong to the next commit. `previous`
    /// are the objects that were appendable before. With a root, a checkpoint begins. Cannot fail.
    pub(crate) fn record(mut self, state: &CommitState, previous: &[ObjectPages]) -> Recorded {
        let ChangeCollector { objects, interval, journal, .. } = self.collector;
        let ChangedObjects { mut touched, removed } = std::mem::take(&mut *self.changed);
        for id in &touched {
            let Some(object) = objects.get(*id) else { continue };
            let mut object = object.write();
            // An object that is new or was in the previous list is truncated by a recovery that
            // does not find this record.
            let known = interval.is_new(*id) || object.appendable.is_some();
            object.note_recorded(is_appendable(state, *id).then_some(if known { 0 } else { self.number }));
        }
        // Objects of the previous list that are not in this one are no longer appendable.
        let dropped = previous.iter().map(|(id, _)| *id).filter(|id| !is_appendable(state, *id));
        for id in dropped {
            if let Some(object) = objects.get(id) {
                object.write().appendable = None;
            }
            touched.push(id);
        }
        interval.note_commit(self.number, state.next_object);
        let checkpoint = self.changes.root.is_some().then(|| {
            let frozen = interval.begin_checkpoint();
            let journal_file = journal.switch(frozen.len() as u64);
            BegunCheckpoint { objects: frozen.into_iter().collect(), journal_file }
        });
        Recorded { touched, removed, checkpoint }
    }
}

/// Whether an object may be appended to in place after a commit.
fn is_appendable(state: &CommitState, object: u64) -> bool {
    state.appendable.binary_search_by_key(&object, |(listed, _)| *listed).is_ok()
}
