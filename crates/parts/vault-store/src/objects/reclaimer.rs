//! The reclaimer: removes the files of objects as soon as no commit refers to them, and drops the
//! entries of idle objects.

use crate::commits::commit_interval::CommitInterval;
use crate::health::StoreHealth;
use crate::objects::object::Object;
use crate::objects::table::ObjectTable;
use lacuna_contracts::Result;
use parking_lot::Mutex;
use std::sync::Arc;

/// Files that are removed per batch, before changes of objects may go on.
const UNLINKED: usize = 256;

/// Objects with a durable removal and with files that still exist.
pub(crate) struct Reclaimer {
    objects: Arc<ObjectTable>,
    interval: Arc<CommitInterval>,
    health: Arc<StoreHealth>,
    /// Whether a thread removes the files after commits.
    background: bool,
    pending: Mutex<Vec<u64>>,
    /// Held during removals: while it is free, the files of all removed objects that are not listed
    /// are gone.
    at_work: Mutex<()>,
}

impl Reclaimer {
    /// A reclaimer with an empty list. With `background` a thread calls [`Reclaimer::reclaim`]
    /// after commits.
    pub(crate) fn new(
        objects: Arc<ObjectTable>,
        interval: Arc<CommitInterval>,
        health: Arc<StoreHealth>,
        background: bool,
    ) -> Reclaimer {
        let (leaving, at_work) = (Mutex::default(), Mutex::default());
        Reclaimer { objects, interval, health, background, pending: leaving, at_work }
    }

    /// Adds objects with a durable removal.
    pub(crate) fn add(&self, objects: &[u64]) {
        self.pending.lock().extend(objects);
    }

    /// Whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.lock().is_empty()
    }

    /// Takes at most this many objects off the list.
    fn take(&self, most: usize) -> Vec<u64> {
        let mut leaving = self.pending.lock();
        let from = leaving.len().saturating_sub(most);
        leaving.split_off(from)
    }

    /// Removes the files of all listed objects after a commit, unless a thread does.
    pub(crate) fn after_commit(&self) -> Result<()> {
        if self.background { Ok(()) } else { self.reclaim() }
    }

    /// Drops the table's entries of idle `objects`. No object changes meanwhile.
    pub(crate) fn drop_idle(&self, objects: &[u64]) {
        let _alone = self.interval.lock_exclusive();
        self.objects.forget_idle(objects, self.interval.commit());
    }

    /// Removes the files of all listed objects. Objects stay listed if the host refuses.
    pub(crate) fn reclaim(&self) -> Result<()> {
        // Held until the end: a checkpoint may continue only when the files are gone.
        let _alone = self.at_work.lock();
        loop {
            let some = self.take(UNLINKED);
            if some.is_empty() {
                return Ok(());
            }
            let done = some.iter().enumerate().try_for_each(|(nth, id)| {
                let object = self.objects.get_or_make(*id);
                let mut object = object.write();
                if object.is_unlinked {
                    return Ok(());
                }
                self.unlink(*id, &mut object, true).inspect_err(|_| self.add(&some[nth..]))
            });
            self.drop_idle(&some);
            done?;
        }
    }

    /// Removes the files of an object that no commit refers to.
    pub(crate) fn unlink(&self, number: u64, object: &mut Object, has_file: bool) -> Result<()> {
        if has_file {
            self.objects.remove_files(number).map_err(|e| self.health.note_failure(e))?;
        }
        object.is_unlinked = true;
        object.name_unsynced = false;
        object.appendable = None;
        Ok(())
    }
}
