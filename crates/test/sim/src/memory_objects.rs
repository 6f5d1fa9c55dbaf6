//! An object store in memory, for tests and golden images: transactions, keys, and snapshots. As
//! RADOS does for self-managed snapshots, it copies an object at the first write after a snapshot.

use crate::memory_pages::PagedBytes;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{
    KeySelection, ObjectKey, ObjectStep, ObjectStore, ObjectTransaction, Query, QueryAnswer, SnapshotId,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most bytes of one object.
const LIMIT: u64 = 128 << 20;

/// The state of one object: bytes and keys. Clones share them until one of them changes.
#[derive(Clone, Default)]
pub struct MemoryObject {
    bytes: PagedBytes,
    keys: Arc<BTreeMap<ObjectKey, Vec<u8>>>,
    version: u64,
}

/// The state of an object before a write, kept for the snapshots that still refer to it.
#[derive(Clone)]
struct Preserved {
    snapshots: BTreeSet<SnapshotId>,
    object: MemoryObject,
}

/// An object with its past states. It stays, without a head, while a snapshot may need it.
#[derive(Clone, Default)]
struct ObjectHistory {
    head: Option<MemoryObject>,
    /// The newest snapshot that any write knew. A newer snapshot refers to the head.
    known: SnapshotId,
    /// Past states by the newest snapshot known to the write that preserved them.
    past: BTreeMap<SnapshotId, Preserved>,
}

impl ObjectHistory {
    fn at(&self, id: SnapshotId) -> Option<&MemoryObject> {
        if id > self.known {
            return self.head.as_ref();
        }
        let (_, preserved) = self.past.range(id..).next()?;
        preserved.snapshots.contains(&id).then_some(&preserved.object)
    }

    /// Preserves the head for the snapshots since the last write.
    fn preserve(&mut self, context: &BTreeSet<SnapshotId>) {
        let Some(&newest) = context.last() else { return };
        if newest <= self.known {
            return;
        }
        if let Some(head) = &self.head {
            let snapshots = context.range(self.known + 1..).copied().collect();
            self.past.insert(newest, Preserved { snapshots, object: head.clone() });
        }
        self.known = newest;
    }
}

#[derive(Clone, Default)]
struct StoreState {
    objects: BTreeMap<u64, ObjectHistory>,
    snapshots: BTreeSet<SnapshotId>,
    last_snapshot: SnapshotId,
    last_version: u64,
}

impl StoreState {
    fn check_snapshot(&self, id: SnapshotId) -> Result<()> {
        if self.snapshots.contains(&id) {
            return Ok(());
        }
        Err(Error::new(Kind::NotFound, format!("the store has no snapshot {id}")))
    }

    fn next_version(&mut self) -> u64 {
        self.last_version += 1;
        self.last_version
    }
}

/// Objects in memory. Each handle has its own list of snapshots to preserve;
/// [`MemoryObjects::reopened`] returns another handle on the same objects.
pub struct MemoryObjects {
    shared: Arc<Mutex<StoreState>>,
    context: Mutex<BTreeSet<SnapshotId>>,
    view: Option<SnapshotId>,
    has_keys: bool,
}

impl MemoryObjects {
    /// An empty store, with key-value maps or without.
    pub fn new(has_keys: bool) -> Self {
        Self::over(Arc::default(), None, has_keys)
    }

    fn over(shared: Arc<Mutex<StoreState>>, view: Option<SnapshotId>, has_keys: bool) -> Self {
        MemoryObjects { shared, context: Mutex::default(), view, has_keys }
    }

    /// A handle for another client of the same objects. It preserves nothing until told.
    pub fn reopened(&self) -> Self {
        Self::over(self.shared.clone(), self.view, self.has_keys)
    }

    /// An independent copy of the store, with its snapshots: the adversary's copy, or the state
    /// after a power cut.
    pub fn copied(&self) -> Self {
        let copy = self.lock().clone();
        Self::over(Arc::new(Mutex::new(copy)), self.view, self.has_keys)
    }

    /// The state of the object, if it exists.
    pub fn object(&self, object: u64) -> Option<MemoryObject> {
        self.seen(&self.lock(), object).cloned()
    }

    /// Replaces an object by `state`, as an adversary could. Snapshots stay unchanged.
    pub fn replace(&self, object: u64, state: Option<MemoryObject>) {
        let mut shared = self.lock();
        let version = shared.next_version();
        let line = shared.objects.entry(object).or_default();
        line.head = state.map(|state| MemoryObject { version, ..state });
    }

    /// Replaces the state of an object for one snapshot by `state`, as an adversary could.
    pub fn replace_at(&self, object: u64, id: SnapshotId, state: Option<MemoryObject>) {
        let mut shared = self.lock();
        let snapshots: BTreeSet<SnapshotId> = shared.snapshots.range(..=id).copied().collect();
        let line = shared.objects.entry(object).or_default();
        line.preserve(&snapshots);
        let kept = line.past.range(id..).next().map(|(key, _)| *key);
        if let Some((key, mut kept)) = kept.and_then(|key| line.past.remove_entry(&key)) {
            let mut newer = kept.snapshots.split_off(&id);
            newer.remove(&id);
            if !newer.is_empty() {
                line.past.insert(key, Preserved { snapshots: newer, object: kept.object.clone() });
            }
            if let Some(last) = kept.snapshots.last().copied() {
                line.past.insert(last, kept);
            }
        }
        if let Some(object) = state {
            line.past.insert(id, Preserved { snapshots: BTreeSet::from([id]), object });
        }
    }

    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.shared.lock()
    }

    fn seen<'a>(&self, shared: &'a StoreState, object: u64) -> Option<&'a MemoryObject> {
        let line = shared.objects.get(&object)?;
        match self.view {
            None => line.head.as_ref(),
            Some(id) => line.at(id),
        }
    }

    /// Refuses changes through a view.
    fn check_writable(&self, what: &str) -> Result<()> {
        match self.view {
            None => Ok(()),
            Some(id) => Err(Error::new(Kind::ReadOnly, format!("cannot {what}"))
                .found(format!("a view of snapshot {id}"))
                .expected("the objects themselves")),
        }
    }

    fn check_has_keys(&self) -> Result<()> {
        if self.has_keys {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, "this store has no keys").hint("use a layout that needs none"))
    }

    fn perform(&self, transaction: &ObjectTransaction<'_>) -> Result<u64> {
        self.check_writable("write objects")?;
        let context = self.context.lock().clone();
        let mut shared = self.lock();
        let mut head = shared.objects.get(&transaction.object).and_then(|line| line.head.clone());
        for step in &transaction.steps {
            self.step(&mut head, step).map_err(|e| e.context(format!("object {}", transaction.object)))?;
        }
        let version = shared.next_version();
        let line = shared.objects.entry(transaction.object).or_default();
        line.preserve(&context);
        line.head = head.map(|object| MemoryObject { version, ..object });
        Ok(version)
    }

    fn step(&self, head: &mut Option<MemoryObject>, step: &ObjectStep<'_>) -> Result<()> {
        match step {
            ObjectStep::Create if head.is_some() => {
                return Err(Error::new(Kind::Exists, "the object is there already"));
            }
            ObjectStep::Create => *head = Some(MemoryObject::default()),
            ObjectStep::Expect(version) => {
                let found = head.as_ref().map(|object| object.version);
                if found != Some(*version) {
                    return Err(changed("the object's version")
                        .found(format!("{found:?}"))
                        .expected(version.to_string()));
                }
            }
            ObjectStep::Compare { offset, data } => {
                let mut stands = vec![0; data.len()];
                if let Some(object) = head {
                    object.bytes.read(*offset, &mut stands);
                }
                if stands != *data {
                    return Err(changed(&format!("{} bytes at offset {offset}", data.len())));
                }
            }
            ObjectStep::Write { offset, data } => {
                within(*offset, data.len() as u64)?;
                head.get_or_insert_default().bytes.write(*offset, data);
            }
            ObjectStep::Zero { offset, len } => {
                if let Some(object) = head {
                    object.bytes.zero(*offset, *len);
                }
            }
            ObjectStep::Truncate(len) => {
                within(0, *len)?;
                if let Some(object) = head {
                    object.bytes.set_len(*len);
                }
            }
            ObjectStep::Remove => *head = None,
            ObjectStep::SetKeys(pairs) => {
                self.check_has_keys()?;
                Arc::make_mut(&mut head.get_or_insert_default().keys).extend(pairs.iter().cloned());
            }
            ObjectStep::RemoveKeys(keys) => {
                self.check_has_keys()?;
                if let Some(object) = head {
                    let map = Arc::make_mut(&mut object.keys);
                    map.retain(|key, _| !keys.contains(key));
                }
            }
            ObjectStep::RemoveKeyRange(first, end) => {
                self.check_has_keys()?;
                if let Some(object) = head {
                    Arc::make_mut(&mut object.keys).retain(|key, _| key < first || key >= end);
                }
            }
        }
        Ok(())
    }

    fn answer(&self, query: &mut Query<'_>) -> Result<QueryAnswer> {
        if !matches!(query.keys, KeySelection::None) {
            self.check_has_keys()?;
        }
        let shared = self.lock();
        if let Some(id) = self.view {
            shared.check_snapshot(id)?;
        }
        query.extents.iter_mut().for_each(|extent| extent.buf.fill(0));
        let Some(object) = self.seen(&shared, query.object) else { return Ok(QueryAnswer::default()) };
        for extent in &mut query.extents {
            object.bytes.read(extent.offset, extent.buf);
        }
        let owned = |(key, value): (&ObjectKey, &Vec<u8>)| (key.clone(), value.clone());
        let in_range = query
            .keys
            .range()
            .into_iter()
            .flat_map(|(first, end, most)| object.keys.range(first.clone()..end.clone()).take(most));
        let named: BTreeSet<&ObjectKey> = query.keys.named().iter().collect();
        let named = named.into_iter().filter_map(|key| object.keys.get_key_value(key));
        let pairs = in_range.chain(named).map(owned).collect();
        Ok(QueryAnswer { version: Some(object.version), pairs })
    }
}

impl MemoryObject {
    /// The object's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes.len() as usize];
        self.bytes.read(0, &mut bytes);
        bytes
    }

    /// The object's keys.
    pub fn keys(&self) -> &BTreeMap<ObjectKey, Vec<u8>> {
        &self.keys
    }
}

fn changed(what: &str) -> Error {
    Error::new(Kind::Changed, format!("{what} changed since it was read"))
}

fn within(offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= LIMIT => Ok(()),
        _ => Err(Error::new(Kind::Usage, "the object would be too large")
            .found(format!("offset {offset}, length {len}"))
            .expected(format!("an end at or before byte {LIMIT}"))),
    }
}

impl ObjectStore for MemoryObjects {
    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        batch.iter().map(|transaction| self.perform(transaction)).collect()
    }

    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        batch.iter_mut().map(|query| self.answer(query)).collect()
    }

    fn object_limit(&self) -> u64 {
        LIMIT
    }

    fn has_keys(&self) -> bool {
        self.has_keys
    }

    fn list(&self) -> Result<Vec<u64>> {
        let shared = self.lock();
        if let Some(id) = self.view {
            shared.check_snapshot(id)?;
        }
        Ok(shared.objects.keys().copied().filter(|&object| self.seen(&shared, object).is_some()).collect())
    }

    fn create_snapshot(&self) -> Result<SnapshotId> {
        self.check_writable("make a snapshot")?;
        let mut shared = self.lock();
        shared.last_snapshot += 1;
        let id = shared.last_snapshot;
        shared.snapshots.insert(id);
        Ok(id)
    }

    fn remove_snapshot(&self, id: SnapshotId) -> Result<()> {
        self.check_writable("remove a snapshot")?;
        let mut shared = self.lock();
        shared.check_snapshot(id)?;
        shared.snapshots.remove(&id);
        for line in shared.objects.values_mut() {
            for preserved in line.past.values_mut() {
                preserved.snapshots.remove(&id);
            }
            line.past.retain(|_, preserved| !preserved.snapshots.is_empty());
        }
        Ok(())
    }

    fn set_snapshots(&self, ids: &[SnapshotId]) -> Result<()> {
        self.check_writable("preserve snapshots")?;
        *self.context.lock() = ids.iter().copied().collect();
        Ok(())
    }

    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        self.check_writable("roll an object back")?;
        let context = self.context.lock().clone();
        let mut shared = self.lock();
        shared.check_snapshot(id)?;
        let version = shared.next_version();
        let Some(line) = shared.objects.get_mut(&object) else { return Ok(()) };
        let past = line.at(id).cloned();
        line.preserve(&context);
        line.head = past.map(|object| MemoryObject { version, ..object });
        Ok(())
    }

    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        self.lock().check_snapshot(id)?;
        Ok(Arc::new(Self::over(self.shared.clone(), Some(id), self.has_keys)))
    }
}

#[cfg(test)]
#[path = "memory_objects_tests.rs"]
mod tests;
