//! Rolls a whole disk back to one of its snapshots.
//!
//! # The steps
//! 1. The store must have the snapshot: the mark proves it, and with `gcm` the version table must
//!    match the record. With `gcm` the seals of the snapshot's objects are compared with the
//!    version table of that time, so that a rollback never makes an altered object valid; if one is
//!    bad, nothing happens. The seals of the present objects are compared too, so that the version
//!    table has every counter assigned so far, and the table is written. An old page of the version
//!    table is renewed: all its objects are refused until step 3 restores them.
//! 2. The snapshot is durably marked as being rolled back to.
//! 3. Every object that exists, or existed, is restored: the objects that the store lists, and with
//!    `gcm` all that the version table counts, since a list may omit some. With `gcm` each object
//!    then gets a new seal with a counter above every earlier one, so that no version written after
//!    the snapshot can be replayed later; an object that was absent gets only the seal. If an
//!    object of the snapshot proves bad in this step, it gets no seal, and its counter in the
//!    version table rises: it is unreadable, and `check` reports it.
//! 4. The mark is removed.
//!
//! A power cut before 2 changes no content. After 2 the mark persists, and the next opening for
//! writing repeats 3 from the beginning, before anything is read or written. Rolling back an object
//! is idempotent. Step 1 has left no old page of the version table. So if the next opening finds
//! one, an adversary has put back the version table together with the mark of an earlier rollback,
//! and nothing is rolled back.

use crate::Stores;
use crate::segment::Segment;
use crate::snapshots::DiskSnapshots;
use crate::snapshots::table::{SnapshotRecord, SnapshotState};
use crate::versions::table::VersionTable;
use lacuna_contracts::{Action, Hint, Kind, Result};
use lacuna_medium::{ObjectStore, ObjectTransaction};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Objects rolled back at a time by a disk with background threads.
const THREADS: usize = 16;

/// A rollback in progress.
pub(crate) struct Rollback<'a> {
    data: &'a dyn ObjectStore,
    snapshots: &'a DiskSnapshots,
    target: SnapshotRecord,
    /// The present version table and that of the snapshot.
    version_tables: Option<(&'a VersionTable, VersionTable)>,
    /// Every object that exists or existed.
    objects: Vec<Segment>,
    threads: usize,
}

impl<'a> Rollback<'a> {
    /// A rollback of a disk with `segments` segments, several objects at a time if `background` is
    /// set. Errors: [`Kind::Corrupt`] if the store no longer has the snapshot; all errors of the
    /// stores.
    pub(crate) fn new(
        stores: &'a Stores,
        snapshots: &'a DiskSnapshots,
        version_table: Option<&'a VersionTable>,
        segments: u64,
        background: bool,
        to: SnapshotRecord,
    ) -> Result<Rollback<'a>> {
        let past = snapshots.views(&to)?;
        let mut objects = stores.data.list()?;
        objects.extend(past.data.list()?);
        // An object missing in the list would keep its present state. The snapshot's objects were
        // written before it was made, so the present version table counts them.
        let counted = version_table.map_or(Ok(vec![]), VersionTable::written_segments)?;
        objects.extend(counted.into_iter().map(|segment| segment.0));
        let version_tables = match version_table {
            Some(now) => Some((now, now.at_snapshot(past, &to)?)),
            None => None,
        };
        // Objects beyond the last block are not part of the disk.
        objects.retain(|object| *object < segments);
        objects.sort_unstable();
        objects.dedup();
        let objects = objects.into_iter().map(Segment).collect();
        let threads = if background { THREADS } else { 1 };
        Ok(Rollback { data: &*stores.data, snapshots, target: to, version_tables, objects, threads })
    }

    /// Step 1.
    pub(crate) fn verify(&mut self) -> Result<()> {
        let Some((version_table, past)) = &self.version_tables else { return Ok(()) };
        let verify = |object| {
            let verified = past.verify_object(object);
            verified.map_err(|e| e.context(format!("rolling back to {}", self.target.name)))
        };
        self.each_object(|object| {
            verify(object)?;
            match version_table.verify_object(object) {
                // The present object is about to be replaced.
                Err(e) if e.kind() == Kind::Corrupt => Ok(()),
                other => other,
            }
        })?;
        let old = version_table.old_pages(&self.objects)?;
        // An old page does not tell which of its objects existed.
        let of_old = old.iter().flat_map(|page| version_table.segments_of(page.number));
        let added: Vec<Segment> =
            of_old.filter(|object| self.objects.binary_search(object).is_err()).collect();
        added.iter().try_for_each(|object| verify(*object))?;
        old.iter().try_for_each(|page| version_table.renew_page(page))?;
        version_table.checkpoint()?;
        self.objects.extend(added);
        Ok(())
    }

    /// Steps 2 to 4.
    pub(crate) fn start(&self) -> Result<()> {
        self.record_state(SnapshotState::RollingBack)?;
        self.restore_objects()
    }

    /// Repeats steps 3 and 4 after an interruption.
    ///
    /// Errors: [`Kind::Corrupt`] if a page of the version table is old, before anything is changed;
    /// all errors of the stores.
    pub(crate) fn resume(&self) -> Result<()> {
        if let Some((version_table, _)) = &self.version_tables
            && let Some(old) = version_table.old_pages(&self.objects)?.into_iter().next()
        {
            let what = format!("finishing the rollback to {}", self.target.name);
            let advice = Hint::from("put back the newest version of that object; if it is lost, ");
            return Err(old
                .error
                .context(what)
                .hint(advice.action(Action("rescue")).text(" copies what there is")));
        }
        self.restore_objects()
    }

    /// Steps 3 and 4.
    fn restore_objects(&self) -> Result<()> {
        self.each_object(|object| match &self.version_tables {
            Some((version_table, past)) => self.roll_back_sealed(object, version_table, past),
            None => self.data.roll_back(object.0, self.target.data_id),
        })?;
        if let Some((version_table, _)) = &self.version_tables {
            version_table.checkpoint()?;
        }
        self.record_state(SnapshotState::Ready)
    }

    /// Records the state of the snapshot, and has the version table bind that: an older table of
    /// snapshots would hide the rollback, or begin it again after its end.
    fn record_state(&self, state: SnapshotState) -> Result<()> {
        self.snapshots.record_state(&self.target, state)?;
        match &self.version_tables {
            Some((version_table, _)) => version_table.bind_table(self.snapshots.generation()),
            None => Ok(()),
        }
    }

    fn roll_back_sealed(
        &self,
        object: Segment,
        version_table: &VersionTable,
        past: &VersionTable,
    ) -> Result<()> {
        let verdict = past.verified_tails(object);
        if verdict.is_ok() && version_table.is_unchanged_since(past, object)? {
            return Ok(());
        }
        let mut ticket = version_table.begin_anew(object)?;
        let data = self.data;
        match verdict {
            Ok(Some(tails)) => {
                data.roll_back(object.0, self.target.data_id)?;
                let steps = vec![ticket.seal_step(tails)];
                let answer = data.apply_one(ObjectTransaction { object: object.0, steps });
                ticket.finish(answer)?;
            }
            // It did not exist. Removing it now would leave no trace of it after a power cut.
            Ok(None) => {
                let answer =
                    data.apply_one(ObjectTransaction { object: object.0, steps: ticket.emptying_steps() });
                ticket.finish(answer)?;
            }
            Err(e) if e.kind() == Kind::Corrupt => {
                data.roll_back(object.0, self.target.data_id)?;
                ticket.distrust();
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Calls `f` for every object, several at a time if the disk has background threads.
    fn each_object(&self, f: impl Fn(Segment) -> Result<()> + Sync) -> Result<()> {
        let threads = self.threads.min(self.objects.len());
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let first_error = Mutex::new(None);
        let work = || {
            while let Some(object) = self.objects.get(next.fetch_add(1, Ordering::Relaxed)) {
                if failed.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(e) = f(*object) {
                    failed.store(true, Ordering::Relaxed);
                    first_error.lock().get_or_insert(e);
                }
            }
        };
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        first_error.into_inner().map_or(Ok(()), Err)
    }
}
