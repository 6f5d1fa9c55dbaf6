//! An object store that lies: two queries of one object may get different earlier versions of it,
//! or another object, and so may the parts of one answer. Lists, snapshots and rollbacks lie as
//! well.

use crate::lies::next_lie;
use crate::{Lies, MemoryObject, MemoryObjects, Rng};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{
    KeySelection, ObjectStore, ObjectTransaction, Query, QueryAnswer, ReadExtent, SnapshotId,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An object at some time, and its version then; both are `None` if it did not exist.
type ObjectVersion = (Option<MemoryObject>, Option<u64>);

/// Earlier versions of objects.
type PastVersions = BTreeMap<u64, Vec<ObjectVersion>>;

/// The state that an answer shows.
#[derive(Clone)]
enum ShownState {
    Present,
    Earlier(ObjectVersion),
}

/// Objects in memory that keep every earlier version and lie when told to. Clones share their
/// state.
#[derive(Clone)]
pub struct LyingObjects {
    honest: Arc<MemoryObjects>,
    state: Arc<Mutex<LyingObjectsState>>,
}

struct LyingObjectsState {
    past: PastVersions,
    lies: Option<Lies>,
}

impl LyingObjects {
    /// Wraps objects. Earlier versions are kept from now.
    pub fn wrap(honest: Arc<MemoryObjects>) -> Self {
        LyingObjects {
            honest,
            state: Arc::new(Mutex::new(LyingObjectsState { past: BTreeMap::new(), lies: None })),
        }
    }

    /// Adds the objects of another store to the earlier versions of this one.
    pub fn add_history(&self, earlier: &MemoryObjects) {
        let was = Self::wrap(Arc::new(earlier.copied()));
        for object in was.honest.list().unwrap_or_default() {
            self.state().past.entry(object).or_default().push(was.current_version(object));
        }
    }

    /// A separate copy of this store with its objects and earlier versions.
    pub fn fork(&self) -> Self {
        let past = self.state().past.clone();
        let state = Arc::new(Mutex::new(LyingObjectsState { past, lies: None }));
        LyingObjects { honest: Arc::new(self.honest.copied()), state }
    }

    /// Starts or ends lying.
    pub fn set_lies(&self, lies: Option<Lies>) {
        self.state().lies = lies;
    }

    fn state(&self) -> MutexGuard<'_, LyingObjectsState> {
        self.state.lock()
    }

    fn current_version(&self, object: u64) -> ObjectVersion {
        let version =
            self.honest.query(&mut [Query { object, extents: vec![], keys: KeySelection::None }]).pop();
        (self.honest.object(object), version.and_then(|found| found.ok()?.version))
    }

    /// A random state for an answer about an object: any version of it, or sometimes of another
    /// object.
    fn choose_state(&self, object: u64, past: &PastVersions, rng: &mut Rng) -> ShownState {
        let others: Vec<u64> = past.keys().copied().collect();
        let chosen = if rng.chance(1, 5) && !others.is_empty() { *rng.pick(&others) } else { object };
        let versions = past.get(&chosen).map_or(&[][..], Vec::as_slice);
        match rng.below(versions.len() as u64 + 2) as usize {
            which if which < versions.len() => ShownState::Earlier(versions[which].clone()),
            which if which == versions.len() && chosen == object => ShownState::Present,
            _ => ShownState::Earlier(self.current_version(chosen)),
        }
    }

    /// Answers queries of `seen`, which is these objects or a snapshot of them.
    fn answer_queries(&self, seen: &dyn ObjectStore, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        let mut state = self.state();
        let LyingObjectsState { past, lies } = &mut *state;
        let answer = |query: &mut Query<'_>| match next_lie(lies) {
            Some(lies) => ForgedAnswer::new(self, seen, past, query.object, lies).fill(query),
            None => seen.query(std::slice::from_mut(query)).remove(0),
        };
        batch.iter_mut().map(answer).collect()
    }

    /// The objects that a list returns.
    fn listed_objects(&self, seen: &dyn ObjectStore) -> Result<Vec<u64>> {
        let mut there = seen.list()?;
        let mut state = self.state();
        let LyingObjectsState { past, lies } = &mut *state;
        if let Some(Lies { rng, .. }) = next_lie(lies) {
            there.retain(|_| rng.chance(3, 4));
            there.extend(past.keys().filter(|_| rng.chance(1, 4)));
            there.sort_unstable();
            there.dedup();
        }
        Ok(there)
    }
}

/// A forged answer.
struct ForgedAnswer<'a> {
    store: &'a LyingObjects,
    source: &'a dyn ObjectStore,
    past: &'a PastVersions,
    object: u64,
    lies: &'a mut Lies,
    /// The state that all parts of the answer show; `None` if each part shows another.
    common_state: Option<ShownState>,
    /// Holds an earlier object while it is queried.
    scratch: MemoryObjects,
}

impl<'a> ForgedAnswer<'a> {
    fn new(
        store: &'a LyingObjects,
        seen: &'a dyn ObjectStore,
        past: &'a PastVersions,
        object: u64,
        lies: &'a mut Lies,
    ) -> ForgedAnswer<'a> {
        let whole = store.choose_state(object, past, &mut lies.rng);
        let whole = (!lies.rng.chance(1, 2)).then_some(whole);
        let scratch = MemoryObjects::new(store.honest.has_keys());
        ForgedAnswer { store, source: seen, past, object, lies, common_state: whole, scratch }
    }

    /// Fills in an answer, with a separate lie for each part.
    fn fill(mut self, query: &mut Query<'_>) -> Result<QueryAnswer> {
        for extent in &mut query.extents {
            let said = self.next_state();
            self.read_bytes(said, extent.offset, extent.buf)?;
            if self.lies.next_is_forged() {
                let (said, mut other) = (self.next_state(), vec![0; extent.buf.len()]);
                self.read_bytes(said, extent.offset, &mut other)?;
                self.lies.forge(extent.buf, &other);
            }
        }
        let said = self.next_state();
        let mut found = self.query_state(said, vec![], query.keys.clone())?;
        if !found.pairs.is_empty() && self.lies.next_is_forged() {
            let which = self.lies.rng.below(found.pairs.len() as u64) as usize;
            let value = &mut found.pairs[which].1;
            // Splices with zeros, because the values of one key may have different lengths.
            let zeros = vec![0; value.len()];
            self.lies.forge(value, &zeros);
        }
        let said = self.next_state();
        Ok(QueryAnswer { version: self.query_state(said, vec![], KeySelection::None)?.version, ..found })
    }

    /// The state that the next part of the answer shows.
    fn next_state(&mut self) -> ShownState {
        match &self.common_state {
            Some(whole) => whole.clone(),
            None => self.store.choose_state(self.object, self.past, &mut self.lies.rng),
        }
    }

    fn read_bytes(&self, said: ShownState, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.query_state(said, vec![ReadExtent { offset, buf }], KeySelection::None).map(drop)
    }

    /// Queries the state `said`.
    fn query_state(
        &self,
        said: ShownState,
        extents: Vec<ReadExtent<'_>>,
        keys: KeySelection,
    ) -> Result<QueryAnswer> {
        let ShownState::Earlier((was, version)) = said else {
            return self.source.query_one(Query { object: self.object, extents, keys });
        };
        self.scratch.replace(0, was);
        let found = self.scratch.query_one(Query { object: 0, extents, keys })?;
        Ok(QueryAnswer { version, ..found })
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

    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        let one = |transaction: &ObjectTransaction<'_>| {
            let before = self.current_version(transaction.object);
            let done = self.honest.apply_one(transaction.clone());
            if done.is_ok() {
                self.state().past.entry(transaction.object).or_default().push(before);
            }
            done
        };
        batch.iter().map(one).collect()
    }

    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        self.answer_queries(&*self.honest, batch)
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.listed_objects(&*self.honest)
    }

    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        let before = self.current_version(object);
        self.honest.roll_back(object, id)?;
        let mut state = self.state();
        let LyingObjectsState { past, lies } = &mut *state;
        past.entry(object).or_default().push(before);
        // The object becomes an earlier version of it, or another object.
        if let Some(lies) = next_lie(lies)
            && let ShownState::Earlier((was, _)) = self.choose_state(object, past, &mut lies.rng)
        {
            self.honest.replace(object, was);
        }
        Ok(())
    }

    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        let mut honest = self.honest.at_snapshot(id)?;
        let mut state = self.state();
        if let Some(Lies { rng, .. }) = next_lie(&mut state.lies) {
            match rng.below(8) {
                0 => return Err(Error::new(Kind::NotFound, format!("the store has no snapshot {id}"))),
                // The objects of another snapshot, if there is one.
                1 => honest = self.honest.at_snapshot(1 + rng.below(id + 1)).unwrap_or(honest),
                _ => {}
            }
        }
        drop(state);
        Ok(Arc::new(LyingSnapshot { store: self.clone(), honest }))
    }
}

/// A snapshot of a store that lies about it as well.
struct LyingSnapshot {
    store: LyingObjects,
    honest: Arc<dyn ObjectStore>,
}

impl ObjectStore for LyingSnapshot {
    pass_on_to_honest!();

    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        self.honest.apply(batch)
    }

    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        self.store.answer_queries(&*self.honest, batch)
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.store.listed_objects(&*self.honest)
    }

    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        self.honest.roll_back(object, id)
    }

    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        self.honest.at_snapshot(id)
    }
}
