//! Rolling a whole disk back to one of its snapshots.
//!
//! # How a disk is rolled back
//! 1. The store must have the snapshot: its mark says so, and with `gcm` its version table is the
//!    one of which the record speaks. With `gcm` the seals of the snapshot's objects are compared
//!    with the version table of that time, so that a rollback never makes an altered object good;
//!    if one is bad nothing happens. Those of the present objects are compared too, so that the
//!    version table knows every counter given so far, and it is written.
//! 2. The snapshot is marked as being rolled back to, durably.
//! 3. Every object that is there, or was, is made what it was: those that the store lists, and with
//!    `gcm` all that the version table counts, since a list may leave one out. With `gcm` it then
//!    gets a new seal with a counter above every one it had, so that no version of the time after
//!    the snapshot can be put back later; an object that was absent gets nothing but the seal. If
//!    an object of the snapshot turns out bad now, it gets none, and its counter in the version
//!    table rises: it is unreadable, and `check` names it.
//! 4. The mark is removed.
//!
//! A power cut before 2 changes nothing. After 2 the mark stands, and the next opening for writing
//! does 3 from the beginning, before anything is read or written; rolling back an object twice does
//! what once does.

use crate::Stores;
use crate::segment::Segment;
use crate::snapshot_table::{SnapshotRecord, SnapshotState};
use crate::snapshots::Snapshots;
use crate::version_table::VersionTable;
use lacuna_contracts::{Kind, Result};
use lacuna_medium::{ObjectStore, Transaction};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Objects rolled back at a time by a disk with background threads.
const THREADS: usize = 16;

/// A rollback under way.
pub(crate) struct Rollback<'a> {
    data: &'a dyn ObjectStore,
    snapshots: &'a Snapshots,
    to: SnapshotRecord,
    /// The version tables of now and of that time.
    version_tables: Option<(&'a VersionTable, VersionTable)>,
    /// Every object that is there or was.
    objects: Vec<Segment>,
    threads: usize,
}

impl<'a> Rollback<'a> {
    /// Rolls back a disk of so many segments, with `background` several objects at a time. Errors:
    /// [`Kind::Corrupt`] if the store does not have the snapshot any more; whatever the stores
    /// report.
    pub(crate) fn new(
        stores: &'a Stores,
        snapshots: &'a Snapshots,
        version_table: Option<&'a VersionTable>,
        segments: u64,
        background: bool,
        to: SnapshotRecord,
    ) -> Result<Rollback<'a>> {
        let past = snapshots.views(&to)?;
        let mut objects = stores.data.list()?;
        objects.extend(past.data.list()?);
        // A list that leaves out an object would leave it as it is now. What the snapshot has was
        // written before it was made, so the version table of now counts it.
        let counted = version_table.map_or(Ok(vec![]), VersionTable::counted)?;
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
        Ok(Rollback { data: &*stores.data, snapshots, to, version_tables, objects, threads })
    }

    /// Step 1.
    pub(crate) fn verify(&self) -> Result<()> {
        let Some((version_table, past)) = &self.version_tables else { return Ok(()) };
        self.each_object(|object| {
            past.touch(object).map_err(|e| e.context(format!("rolling back to {}", self.to.name)))?;
            match version_table.touch(object) {
                // What is there now is about to be replaced.
                Err(e) if e.kind() == Kind::Corrupt => Ok(()),
                other => other,
            }
        })?;
        version_table.checkpoint()
    }

    /// Steps 2 to 4.
    pub(crate) fn run(&self) -> Result<()> {
        self.snapshots.mark(&self.to, SnapshotState::RollingBack)?;
        self.perform()
    }

    /// Steps 3 and 4, which an opening begins with if they were cut short.
    pub(crate) fn perform(&self) -> Result<()> {
        self.each_object(|object| match &self.version_tables {
            Some((version_table, past)) => self.roll_sealed(object, version_table, past),
            None => self.data.roll_back(object.0, self.to.data_id),
        })?;
        if let Some((version_table, _)) = &self.version_tables {
            version_table.checkpoint()?;
        }
        self.snapshots.mark(&self.to, SnapshotState::Ready)
    }

    fn roll_sealed(&self, object: Segment, version_table: &VersionTable, past: &VersionTable) -> Result<()> {
        let verdict = past.sealed(object);
        if verdict.is_ok() && version_table.is_unchanged_since(past, object)? {
            return Ok(());
        }
        let mut ticket = version_table.begin_anew(object)?;
        let data = self.data;
        match verdict {
            Ok(Some(tails)) => {
                data.roll_back(object.0, self.to.data_id)?;
                let steps = vec![ticket.place_step(tails)];
                let answer = data.apply_one(Transaction { object: object.0, steps });
                ticket.ended(answer)?;
            }
            // It was not there. If it went now, a cut would leave nothing to find it by.
            Ok(None) => {
                let answer = data.apply_one(Transaction { object: object.0, steps: ticket.emptying_steps() });
                ticket.ended(answer)?;
            }
            Err(e) if e.kind() == Kind::Corrupt => {
                data.roll_back(object.0, self.to.data_id)?;
                ticket.condemn();
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
