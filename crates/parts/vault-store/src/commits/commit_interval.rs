//! The interval since the last record: the objects that changed, the numbers that were given, and
//! the commit that will record them.

use crate::commits::codec::CommitState;
use crate::ids::ObjectId;
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects that changed since the last record.
#[derive(Default)]
pub(crate) struct ChangedObjects {
    /// Objects that were written or cut.
    pub(crate) touched: Vec<u64>,
    /// Objects that were removed.
    pub(crate) removed: Vec<u64>,
}

/// The interval, with the numbers of the commits and checkpoints around it.
pub(crate) struct CommitInterval {
    /// Shared by all callers that change objects; a commit holds it exclusively while it notes its
    /// changes.
    gate: RwLock<()>,
    /// The number of the commit that will record current changes.
    commit: AtomicU64,
    /// The number of the last durable commit.
    durable: AtomicU64,
    /// The number of checkpoints that began.
    epoch: AtomicU64,
    /// The next object number.
    next: AtomicU64,
    /// Objects with at least this number are in no record.
    new_from: AtomicU64,
    /// Objects with at least this number may not be made before the next commit: a recovery would
    /// not find them.
    limit: AtomicU64,
    changed: Mutex<ChangedObjects>,
    /// Objects with entries in the journal since the last checkpoint began.
    journaled: Mutex<BTreeSet<u64>>,
}

impl CommitInterval {
    /// The empty interval after commit `durable` with the state `facts`. The next commit has number
    /// `commit`; `epoch` checkpoints began, and since then the journal has entries of the objects
    /// `journaled`.
    pub(crate) fn new(
        durable: u64,
        facts: &CommitState,
        commit: u64,
        epoch: u64,
        journaled: BTreeSet<u64>,
    ) -> CommitInterval {
        CommitInterval {
            gate: RwLock::new(()),
            commit: AtomicU64::new(commit),
            durable: AtomicU64::new(durable),
            epoch: AtomicU64::new(epoch),
            next: AtomicU64::new(facts.next_object),
            new_from: AtomicU64::new(facts.next_object),
            limit: AtomicU64::new(facts.object_limit),
            changed: Mutex::default(),
            journaled: Mutex::new(journaled),
        }
    }

    /// The shared guard of a caller that changes objects.
    pub(crate) fn lock_shared(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read()
    }

    /// The exclusive guard: no object changes while it is held.
    pub(crate) fn lock_exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write()
    }

    /// The number of the commit that will record current changes.
    pub(crate) fn commit(&self) -> u64 {
        self.commit.load(Ordering::Acquire)
    }

    /// The number of the last durable commit.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// The number of checkpoints that began.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether an object is in no record.
    pub(crate) fn is_new(&self, object: u64) -> bool {
        object >= self.new_from.load(Ordering::Acquire)
    }

    /// See [`crate::Store::new_object`].
    pub(crate) fn new_object(&self) -> Result<ObjectId> {
        let _shared = self.gate.read();
        let limit = self.limit.load(Ordering::Acquire);
        let given = self
            .next
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |next| (next < limit).then_some(next + 1));
        given.map(ObjectId).map_err(|next| {
            Error::new(Kind::Busy, "no more objects can be made before the next commit")
                .found(format!("object {next}"))
                .expected("a commit first, as `needs_commit` demands")
        })
    }

    /// See [`crate::Store::needs_commit`].
    pub(crate) fn needs_commit(&self) -> bool {
        // The order matters: a commit may be noted between the two loads, and then sets `new_from`
        // to a number that `next` had before.
        let from = self.new_from.load(Ordering::Acquire);
        let next = self.next.load(Ordering::Acquire);
        let limit = self.limit.load(Ordering::Acquire);
        next - from > limit.saturating_sub(from) / 2
    }

    /// The next object number, and how many numbers were given in this interval.
    pub(crate) fn numbers_given(&self) -> (u64, u64) {
        let next = self.next.load(Ordering::Acquire);
        (next, next - self.new_from.load(Ordering::Acquire))
    }

    /// The objects that changed. The commit that records them takes them out.
    pub(crate) fn changed(&self) -> MutexGuard<'_, ChangedObjects> {
        self.changed.lock()
    }

    /// Notes an object that is written or cut for the first time in this interval.
    pub(crate) fn touch(&self, object: u64) {
        self.changed.lock().touched.push(object);
    }

    /// Notes an object that was removed.
    pub(crate) fn note_removed(&self, object: u64) {
        self.changed.lock().removed.push(object);
    }

    /// Notes an object with an entry in the journal.
    pub(crate) fn note_journaled(&self, object: u64) {
        self.journaled.lock().insert(object);
    }

    /// The number of objects with entries in the journal since the last checkpoint began.
    pub(crate) fn journaled(&self) -> u64 {
        self.journaled.lock().len() as u64
    }

    /// Called when the commit is noted: later changes belong to the next commit, and objects with
    /// at least the number `next_object` are in no record.
    pub(crate) fn note_commit(&self, commit: u64, next_object: u64) {
        self.new_from.store(next_object, Ordering::Release);
        self.commit.store(commit + 1, Ordering::Release);
    }

    /// Begins a checkpoint. Returns the objects with entries in the journal.
    pub(crate) fn begin_checkpoint(&self) -> BTreeSet<u64> {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        std::mem::take(&mut *self.journaled.lock())
    }

    /// Called when a commit is durable: objects below `limit` may now be made.
    pub(crate) fn made_durable(&self, commit: u64, limit: u64) {
        self.limit.store(limit, Ordering::Release);
        self.durable.store(commit, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `needs_commit` may be called while a commit is noted.
    #[test]
    fn needs_commit_can_be_called_while_a_commit_is_noted() {
        let facts = CommitState { next_object: 1, object_limit: u64::MAX, ..CommitState::default() };
        let interval = CommitInterval::new(0, &facts, 1, 0, BTreeSet::new());
        std::thread::scope(|scope| {
            let commits = scope.spawn(|| {
                for number in 1..200_000 {
                    interval.new_object().unwrap();
                    interval.note_commit(number, interval.numbers_given().0);
                }
            });
            while !commits.is_finished() {
                assert!(!interval.needs_commit());
            }
        });
    }
}
