//! Snapshots of an open disk: making, removing, and rolling the whole disk back to one.
//!
//! # How a disk is rolled back
//! 1. With `gcm` the seals of the snapshot's objects are compared with the version table of that time, so that a rollback
//!    never makes an altered object good; if one is bad nothing happens. Those of the present objects are compared
//!    too, so that the version table knows every counter given so far, and it is written.
//! 2. The snapshot is marked as being rolled back to, durably.
//! 3. Every object that is there, or was, is made what it was. With `gcm` it then gets a new seal with a counter
//!    above every one it had, so that no version of the time after the snapshot can be put back later; an object
//!    that was absent gets nothing but the seal. If an object of the snapshot turns out bad now, it gets none, and
//!    its counter in the version table rises: it is unreadable, and `check` names it.
//! 4. The mark is removed.
//!
//! A power cut before 2 changes nothing. After 2 the mark stands, and the next opening for writing does 3 from the
//! beginning, before anything is read or written; rolling back an object twice does what once does.

use super::disk::{Core, ObjectDisk};
use super::snapshot_table::{SnapshotRecord, SnapshotState};
use super::snapshots::Failure;
use super::version_table::VersionTable;
use lacuna_core::{Error, Kind, Result};
use lacuna_medium::Transaction;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Objects rolled back at a time by a disk with background threads.
const THREADS: usize = 16;

impl ObjectDisk {
    /// Makes a snapshot of everything acknowledged so far. It can be read by its name until it is removed.
    ///
    /// Errors: [`Kind::Usage`] for a name that no snapshot may have, [`Kind::Exists`] for one that there is,
    /// and whatever the stores report.
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        let core = self.core();
        check_writable(core)?;
        core.freeze(|| {
            if let Some(version_table) = &core.version_table {
                version_table.checkpoint().map_err(|e| core.fail(e))?;
            }
            let number =
                core.snapshots.add(name, now(), core.params.blocks).map_err(|failure| match failure {
                    Failure::Unchanged(e) => e,
                    Failure::Unknown(e) => core.fail(e),
                })?;
            core.cipher.set_snapshot_number(number);
            Ok(())
        })
    }

    /// Removes a snapshot; the store gives back what it kept for it. Errors: [`Kind::NotFound`], and whatever the
    /// stores report; a removal that failed half-way goes on at the next opening for writing.
    pub fn remove_snapshot(&self, name: &str) -> Result<()> {
        let core = self.core();
        check_writable(core)?;
        core.snapshots.remove(name)
    }

    /// Makes the disk read as it did when the snapshot was made, which stays. Its length stays what it is now. What
    /// was written since is lost, unless a later snapshot has it.
    ///
    /// Errors: [`Kind::NotFound`], [`Kind::Corrupt`] if an object of the snapshot does not verify (nothing was
    /// changed then), and whatever the stores report; a rollback that failed half-way goes on at the next opening
    /// for writing, and the disk takes no writes before.
    pub fn rollback(&self, name: &str) -> Result<()> {
        let core = self.core();
        check_writable(core)?;
        core.freeze(|| {
            let rollback = Rollback::new(core, core.snapshots.find(name)?)?;
            rollback.verify()?;
            let rolled = core.snapshots.mark(rollback.to.number, SnapshotState::RollingBack);
            let rolled = rolled.and_then(|()| rollback.perform());
            core.forget_all();
            rolled.map_err(|e| core.fail(e))
        })
    }
}

fn check_writable(core: &Core) -> Result<()> {
    if core.read_only {
        return Err(Error::new(Kind::ReadOnly, "the snapshots of this disk cannot be changed")
            .found("a disk opened for reading alone")
            .expected("one opened for writing"));
    }
    core.check_alive()
}

/// Finishes a rollback that was cut short, if there is one. To be called before anything is read or written.
///
/// Errors: [`Kind::ReadOnly`] if there is one and nothing may be written.
pub(crate) fn finish_rollback(core: &Core) -> Result<()> {
    let Some(record) = core.snapshots.rolling_back() else { return Ok(()) };
    if core.read_only {
        return Err(Error::new(Kind::ReadOnly, "cannot open the disk for reading alone")
            .found(format!("a rollback to the snapshot {} that was cut short", record.name))
            .expected("a disk that was rolled back whole")
            .remedy("open it for writing once, which finishes the rollback, or open a snapshot"));
    }
    Rollback::new(core, record)?.perform()
}

/// A rollback under way.
struct Rollback<'a> {
    core: &'a Core,
    to: SnapshotRecord,
    /// The version table of that time.
    past_version_table: Option<VersionTable>,
    /// Every object that is there or was.
    objects: Vec<u64>,
}

impl<'a> Rollback<'a> {
    fn new(core: &'a Core, to: SnapshotRecord) -> Result<Rollback<'a>> {
        let past = core.stores.data.at_snapshot(to.data_id)?;
        let past_version_table = match &core.version_table {
            Some(version_table) => Some(version_table.at_snapshot(
                core.stores.book.at_snapshot(to.book_id)?,
                past.clone(),
                to.number,
            )?),
            None => None,
        };
        let mut objects = core.stores.data.list()?;
        objects.extend(past.list()?);
        // What lies beyond the last block is nobody's.
        objects.retain(|object| *object < core.params.segments());
        objects.sort_unstable();
        objects.dedup();
        Ok(Rollback { core, to, past_version_table, objects })
    }

    /// Step 1.
    fn verify(&self) -> Result<()> {
        let (Some(version_table), Some(past)) = (&self.core.version_table, &self.past_version_table) else {
            return Ok(());
        };
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

    /// Steps 3 and 4.
    fn perform(&self) -> Result<()> {
        self.each_object(|object| match (&self.core.version_table, &self.past_version_table) {
            (Some(version_table), Some(past)) => self.roll_sealed(object, version_table, past),
            _ => self.core.stores.data.roll_back(object, self.to.data_id),
        })?;
        if let Some(version_table) = &self.core.version_table {
            version_table.checkpoint()?;
        }
        self.core.snapshots.mark(self.to.number, SnapshotState::Ready)
    }

    fn roll_sealed(&self, object: u64, version_table: &VersionTable, past: &VersionTable) -> Result<()> {
        let verdict = past.sealed(object);
        if verdict.is_ok() && version_table.is_unchanged_since(past, object)? {
            return Ok(());
        }
        let mut ticket = version_table.begin_anew(object)?;
        let data = &self.core.stores.data;
        match verdict {
            Ok(Some(tails)) => {
                data.roll_back(object, self.to.data_id)?;
                let steps = vec![ticket.place_step(tails)];
                let answer = data.apply_one(Transaction { object, steps });
                ticket.ended(answer)?;
            }
            // It was not there. If it went now, a cut would leave nothing to find it by.
            Ok(None) => {
                let answer = data.apply_one(Transaction { object, steps: ticket.emptying_steps() });
                ticket.ended(answer)?;
            }
            Err(e) if e.kind() == Kind::Corrupt => {
                data.roll_back(object, self.to.data_id)?;
                ticket.condemn();
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Calls `f` for every object, several at a time if the disk has background threads.
    fn each_object(&self, f: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
        let threads = if self.core.background { THREADS.min(self.objects.len()) } else { 1 };
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let first_error = Mutex::new(None);
        let work = || {
            while let Some(object) = self.objects.get(next.fetch_add(1, Ordering::Relaxed)) {
                if failed.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(e) = f(*object) {
                    failed.store(true, Ordering::Relaxed);
                    first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                }
            }
        };
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        first_error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// Seconds since 1970, for people: nothing depends on it.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
