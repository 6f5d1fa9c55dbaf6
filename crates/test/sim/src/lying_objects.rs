//! An object store that lies: two queries of one object may be answered with different versions that it had, or with another
//! object, and the parts of one answer with different ones.

use crate::lies::lying;
use crate::{Lies, Rng};
use lacuna_contracts::Result;
use lacuna_medium::{
    Found, Keys, MemoryObject, MemoryObjects, ObjectStore, Query, ReadExtent, SnapshotId, Transaction,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An object as it was at some time, and its version then; neither, if it was not there.
type Was = (Option<MemoryObject>, Option<u64>);

/// Objects in memory that keep every version since this was made, and lie when told. Snapshots are honest. Clones are one handle.
#[derive(Clone)]
pub struct LyingObjects {
    honest: Arc<MemoryObjects>,
    state: Arc<Mutex<State>>,
}

struct State {
    past: BTreeMap<u64, Vec<Was>>,
    lies: Option<Lies>,
}

impl LyingObjects {
    /// Over objects of which the past begins now.
    pub fn over(honest: Arc<MemoryObjects>) -> Self {
        LyingObjects { honest, state: Arc::new(Mutex::new(State { past: BTreeMap::new(), lies: None })) }
    }

    /// Counts what another store holds among the past of this one.
    pub fn remember(&self, earlier: &MemoryObjects) {
        let was = Self::over(Arc::new(earlier.copied()));
        for object in was.honest.list().unwrap_or_default() {
            self.state().past.entry(object).or_default().push(was.now(object));
        }
    }

    /// A store of its own with everything that is here now, and with the same past.
    pub fn fork(&self) -> Self {
        let past = self.state().past.clone();
        let state = Arc::new(Mutex::new(State { past, lies: None }));
        LyingObjects { honest: Arc::new(self.honest.copied()), state }
    }

    /// Lies from now on, or no longer.
    pub fn lie(&self, lies: Option<Lies>) {
        self.state().lies = lies;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn now(&self, object: u64) -> Was {
        let version = self.honest.query(&mut [Query { object, extents: vec![], keys: Keys::None }]).pop();
        (self.honest.object(object), version.and_then(|found| found.ok()?.version))
    }

    /// What an object is said to be: any version of it, or now and then of another.
    fn said(&self, object: u64, past: &BTreeMap<u64, Vec<Was>>, rng: &mut Rng) -> Was {
        let others: Vec<u64> = past.keys().copied().collect();
        let object = if rng.chance(1, 5) && !others.is_empty() { *rng.pick(&others) } else { object };
        let versions = past.get(&object).map_or(&[][..], Vec::as_slice);
        let which = rng.below(versions.len() as u64 + 1) as usize;
        versions.get(which).cloned().unwrap_or_else(|| self.now(object))
    }

    /// Answers a query with lies, each part with one of its own.
    fn mislead(&self, query: &mut Query<'_>, past: &BTreeMap<u64, Vec<Was>>, rng: &mut Rng) -> Result<Found> {
        let object = query.object;
        let whole = self.said(object, past, rng);
        let mixes = rng.chance(1, 2);
        let mut next = || if mixes { self.said(object, past, rng) } else { whole.clone() };
        let scratch = MemoryObjects::new(self.honest.has_keys());
        let ask = |said: Was, extents: Vec<ReadExtent<'_>>, keys: Keys| {
            scratch.replace(0, said.0);
            scratch.query(&mut [Query { object: 0, extents, keys }]).remove(0)
        };
        for extent in &mut query.extents {
            let extent = ReadExtent { offset: extent.offset, buf: &mut *extent.buf };
            ask(next(), vec![extent], Keys::None)?;
        }
        let found = ask(next(), vec![], query.keys.clone())?;
        Ok(Found { version: next().1, ..found })
    }
}

impl ObjectStore for LyingObjects {
    fn apply(&self, batch: &[Transaction<'_>]) -> Vec<Result<u64>> {
        let one = |transaction: &Transaction<'_>| {
            let before = self.now(transaction.object);
            let done = self.honest.apply_one(transaction.clone());
            if done.is_ok() {
                self.state().past.entry(transaction.object).or_default().push(before);
            }
            done
        };
        batch.iter().map(one).collect()
    }

    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<Found>> {
        let mut state = self.state();
        let State { past, lies } = &mut *state;
        let answer = |query: &mut Query<'_>| match lying(lies) {
            Some(lies) => self.mislead(query, past, &mut lies.rng),
            None => self.honest.query(std::slice::from_mut(query)).remove(0),
        };
        batch.iter_mut().map(answer).collect()
    }

    fn object_limit(&self) -> u64 {
        self.honest.object_limit()
    }

    fn has_keys(&self) -> bool {
        self.honest.has_keys()
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.honest.list()
    }

    fn create_snapshot(&self) -> Result<SnapshotId> {
        self.honest.create_snapshot()
    }

    fn remove_snapshot(&self, id: SnapshotId) -> Result<()> {
        self.honest.remove_snapshot(id)
    }

    fn set_snapshots(&self, ids: &[SnapshotId]) -> Result<()> {
        self.honest.set_snapshots(ids)
    }

    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        self.honest.roll_back(object, id)
    }

    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        self.honest.at_snapshot(id)
    }
}
