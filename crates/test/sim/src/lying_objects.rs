//! An object store that lies: two queries of one object may get different earlier versions of it,
//! or another object, and so may the parts of one answer. Lists, snapshots and rollbacks lie as
//! well.

use crate::lies::lying;
use crate::{Lies, Rng};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{
    Found, Keys, MemoryObject, MemoryObjects, ObjectStore, Query, ReadExtent, SnapshotId, Transaction,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An object at some time, and its version then; both are `None` if it did not exist.
type Was = (Option<MemoryObject>, Option<u64>);

/// Earlier versions of objects.
type Past = BTreeMap<u64, Vec<Was>>;

/// The state that an answer shows.
#[derive(Clone)]
enum Said {
    AsItIs,
    AsItWas(Was),
}

/// Objects in memory that keep every earlier version and lie when told to. Clones share their
/// state.
#[derive(Clone)]
pub struct LyingObjects {
    honest: Arc<MemoryObjects>,
    state: Arc<Mutex<State>>,
}

struct State {
    past: Past,
    lies: Option<Lies>,
}

impl LyingObjects {
    /// Wraps objects. Earlier versions are kept from now.
    pub fn over(honest: Arc<MemoryObjects>) -> Self {
        LyingObjects { honest, state: Arc::new(Mutex::new(State { past: BTreeMap::new(), lies: None })) }
    }

    /// Adds the objects of another store to the earlier versions of this one.
    pub fn remember(&self, earlier: &MemoryObjects) {
        let was = Self::over(Arc::new(earlier.copied()));
        for object in was.honest.list().unwrap_or_default() {
            self.state().past.entry(object).or_default().push(was.now(object));
        }
    }

    /// A separate copy of this store with its objects and earlier versions.
    pub fn fork(&self) -> Self {
        let past = self.state().past.clone();
        let state = Arc::new(Mutex::new(State { past, lies: None }));
        LyingObjects { honest: Arc::new(self.honest.copied()), state }
    }

    /// Starts or ends lying.
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

    /// A random state for an answer about an object: any version of it, or sometimes of another
    /// object.
    fn said(&self, object: u64, past: &Past, rng: &mut Rng) -> Said {
        let others: Vec<u64> = past.keys().copied().collect();
        let told = if rng.chance(1, 5) && !others.is_empty() { *rng.pick(&others) } else { object };
        let versions = past.get(&told).map_or(&[][..], Vec::as_slice);
        match rng.below(versions.len() as u64 + 2) as usize {
            which if which < versions.len() => Said::AsItWas(versions[which].clone()),
            which if which == versions.len() && told == object => Said::AsItIs,
            _ => Said::AsItWas(self.now(told)),
        }
    }

    /// Answers queries of `seen`, which is these objects or a snapshot of them.
    fn answer(&self, seen: &dyn ObjectStore, batch: &mut [Query<'_>]) -> Vec<Result<Found>> {
        let mut state = self.state();
        let State { past, lies } = &mut *state;
        let answer = |query: &mut Query<'_>| match lying(lies) {
            Some(lies) => Answer::begin(self, seen, past, query.object, lies).give(query),
            None => seen.query(std::slice::from_mut(query)).remove(0),
        };
        batch.iter_mut().map(answer).collect()
    }

    /// The objects that a list returns.
    fn listed(&self, seen: &dyn ObjectStore) -> Result<Vec<u64>> {
        let mut there = seen.list()?;
        let mut state = self.state();
        let State { past, lies } = &mut *state;
        if let Some(Lies { rng, .. }) = lying(lies) {
            there.retain(|_| rng.chance(3, 4));
            there.extend(past.keys().filter(|_| rng.chance(1, 4)));
            there.sort_unstable();
            there.dedup();
        }
        Ok(there)
    }
}

/// A forged answer.
struct Answer<'a> {
    store: &'a LyingObjects,
    seen: &'a dyn ObjectStore,
    past: &'a Past,
    object: u64,
    lies: &'a mut Lies,
    /// The state that all parts of the answer show; `None` if each part shows another.
    whole: Option<Said>,
    /// Holds an earlier object while it is queried.
    scratch: MemoryObjects,
}

impl<'a> Answer<'a> {
    fn begin(
        store: &'a LyingObjects,
        seen: &'a dyn ObjectStore,
        past: &'a Past,
        object: u64,
        lies: &'a mut Lies,
    ) -> Answer<'a> {
        let whole = store.said(object, past, &mut lies.rng);
        let whole = (!lies.rng.chance(1, 2)).then_some(whole);
        let scratch = MemoryObjects::new(store.honest.has_keys());
        Answer { store, seen, past, object, lies, whole, scratch }
    }

    /// Fills in an answer, with a separate lie for each part.
    fn give(mut self, query: &mut Query<'_>) -> Result<Found> {
        for extent in &mut query.extents {
            let said = self.part();
            self.bytes(said, extent.offset, extent.buf)?;
            if self.lies.forges_next() {
                let (said, mut other) = (self.part(), vec![0; extent.buf.len()]);
                self.bytes(said, extent.offset, &mut other)?;
                self.lies.forge(extent.buf, &other);
            }
        }
        let said = self.part();
        let mut found = self.ask(said, vec![], query.keys.clone())?;
        if !found.pairs.is_empty() && self.lies.forges_next() {
            let which = self.lies.rng.below(found.pairs.len() as u64) as usize;
            let value = &mut found.pairs[which].1;
            // Splices with zeros, because the values of one key may have different lengths.
            let zeros = vec![0; value.len()];
            self.lies.forge(value, &zeros);
        }
        let said = self.part();
        Ok(Found { version: self.ask(said, vec![], Keys::None)?.version, ..found })
    }

    /// The state that the next part of the answer shows.
    fn part(&mut self) -> Said {
        match &self.whole {
            Some(whole) => whole.clone(),
            None => self.store.said(self.object, self.past, &mut self.lies.rng),
        }
    }

    fn bytes(&self, said: Said, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.ask(said, vec![ReadExtent { offset, buf }], Keys::None).map(drop)
    }

    /// Queries the state `said`.
    fn ask(&self, said: Said, extents: Vec<ReadExtent<'_>>, keys: Keys) -> Result<Found> {
        let Said::AsItWas((was, version)) = said else {
            return self.seen.query_one(Query { object: self.object, extents, keys });
        };
        self.scratch.replace(0, was);
        let found = self.scratch.query_one(Query { object: 0, extents, keys })?;
        Ok(Found { version, ..found })
    }
}

/// Passes these calls, about which no lie is told, on to the field `honest`.
macro_rules! pass_on_to_honest {
    () => {
        fn object_limit(&self) -> u64 {
            self.honest.object_limit()
        }

        fn has_keys(&self) -> bool {
            self.honest.has_keys()
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
    };
}

impl ObjectStore for LyingObjects {
    pass_on_to_honest!();

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
        self.answer(&*self.honest, batch)
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.listed(&*self.honest)
    }

    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        let before = self.now(object);
        self.honest.roll_back(object, id)?;
        let mut state = self.state();
        let State { past, lies } = &mut *state;
        past.entry(object).or_default().push(before);
        // The object becomes an earlier version of it, or another object.
        if let Some(lies) = lying(lies)
            && let Said::AsItWas((was, _)) = self.said(object, past, &mut lies.rng)
        {
            self.honest.replace(object, was);
        }
        Ok(())
    }

    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        let mut honest = self.honest.at_snapshot(id)?;
        let mut state = self.state();
        if let Some(Lies { rng, .. }) = lying(&mut state.lies) {
            match rng.below(8) {
                0 => return Err(Error::new(Kind::NotFound, format!("the store has no snapshot {id}"))),
                // The objects of another snapshot, if there is one.
                1 => honest = self.honest.at_snapshot(1 + rng.below(id + 1)).unwrap_or(honest),
                _ => {}
            }
        }
        drop(state);
        Ok(Arc::new(Snapshot { store: self.clone(), honest }))
    }
}

/// A snapshot of a store that lies about it as well.
struct Snapshot {
    store: LyingObjects,
    honest: Arc<dyn ObjectStore>,
}

impl ObjectStore for Snapshot {
    pass_on_to_honest!();

    fn apply(&self, batch: &[Transaction<'_>]) -> Vec<Result<u64>> {
        self.honest.apply(batch)
    }

    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<Found>> {
        self.store.answer(&*self.honest, batch)
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.store.listed(&*self.honest)
    }

    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        self.honest.roll_back(object, id)
    }

    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        self.honest.at_snapshot(id)
    }
}
