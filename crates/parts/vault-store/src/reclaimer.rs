//! The reclaimer: removes the files of objects as soon as no commit refers to them.

use crate::object::Object;
use crate::parts::Parts;
use lacuna_contracts::Result;
use parking_lot::Mutex;
use std::sync::Arc;

/// Files that are removed per batch, before changes of objects may go on.
const UNLINKED: usize = 256;

/// Objects with a durable removal and with files that still exist.
pub(crate) struct Reclaimer {
    parts: Arc<Parts>,
    leaving: Mutex<Vec<u64>>,
    /// Held during removals: while it is free, the files of all removed objects that are not listed
    /// are gone.
    at_work: Mutex<()>,
}

impl Reclaimer {
    /// A reclaimer with an empty list.
    pub(crate) fn new(parts: Arc<Parts>) -> Reclaimer {
        Reclaimer { parts, leaving: Mutex::default(), at_work: Mutex::default() }
    }

    /// Adds objects with a durable removal.
    pub(crate) fn add(&self, objects: &[u64]) {
        self.leaving.lock().extend(objects);
    }

    /// Whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.leaving.lock().is_empty()
    }

    /// Takes at most this many objects off the list.
    fn take(&self, most: usize) -> Vec<u64> {
        let mut leaving = self.leaving.lock();
        let from = leaving.len().saturating_sub(most);
        leaving.split_off(from)
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
                let object = self.parts.objects.get_or_make(*id);
                let mut object = object.write();
                if object.gone {
                    return Ok(());
                }
                self.unlink(*id, &mut object, true).inspect_err(|_| self.add(&some[nth..]))
            });
            let _still = self.parts.interval.alone();
            self.parts.objects.forget_idle(&some, self.parts.interval.commit());
            done?;
        }
    }

    /// Removes the files of an object that no commit refers to.
    pub(crate) fn unlink(&self, number: u64, object: &mut Object, has_file: bool) -> Result<()> {
        if has_file {
            self.parts.objects.remove_files(number).map_err(|e| self.parts.health.refused(e))?;
        }
        object.gone = true;
        object.name_unsynced = false;
        object.appendable = None;
        Ok(())
    }
}
