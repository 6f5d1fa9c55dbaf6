//! Object stores with queries that time out.

use crate::{InterceptedObjects, ObjectInterceptor};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{ObjectStore, Query, QueryAnswer};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Chooses the queries that get no answer in time, of every store that it wraps. Clones share the
/// choice. A query that times out reads nothing, and all other queries are answered.
#[derive(Clone, Default)]
pub struct QueryTimeouts(Arc<Mutex<ChosenTimeouts>>);

#[derive(Default)]
struct ChosenTimeouts {
    objects: BTreeSet<u64>,
    in_next_read: bool,
}

/// A store with queries that time out.
struct UnansweringObjects {
    inner: Arc<dyn ObjectStore>,
    timeouts: QueryTimeouts,
}

impl QueryTimeouts {
    /// Wraps a store. All queries are answered until told otherwise.
    pub fn wrap(&self, inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(InterceptedObjects(UnansweringObjects { inner, timeouts: self.clone() }))
    }

    /// From now on, every query of these objects times out, and no query of other objects does.
    pub fn set_objects(&self, objects: &[u64]) {
        self.0.lock().objects = objects.iter().copied().collect();
    }

    /// In the next batch of queries that reads bytes, every query times out. Later batches are
    /// answered.
    pub fn fail_next_read(&self) {
        self.0.lock().in_next_read = true;
    }

    /// Begins a batch of queries. Returns the objects with queries that time out; an error if all
    /// queries of the batch do.
    fn begin(&self, batch: &[Query<'_>]) -> Result<BTreeSet<u64>> {
        let mut chosen = self.0.lock();
        let reads = batch.iter().any(|query| !query.extents.is_empty());
        if reads && std::mem::take(&mut chosen.in_next_read) {
            return Err(no_answer());
        }
        Ok(chosen.objects.clone())
    }
}

fn no_answer() -> Error {
    Error::new(Kind::TimedOut, "no answer")
}

impl ObjectInterceptor for UnansweringObjects {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        let objects = match self.timeouts.begin(batch) {
            Ok(objects) if objects.is_empty() => return self.inner.query(batch),
            Ok(objects) => objects,
            Err(e) => return batch.iter().map(|_| Err(e.clone())).collect(),
        };
        let one = |query: &mut Query<'_>| {
            if objects.contains(&query.object) {
                return Err(no_answer());
            }
            self.inner.query(std::slice::from_mut(query)).remove(0)
        };
        batch.iter_mut().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryObjects;
    use lacuna_medium::{KeySelection, ObjectStep, ObjectTransaction, ReadExtent};

    /// A store whose objects 1 and 2 hold a byte each.
    fn two_objects(timeouts: &QueryTimeouts) -> Arc<dyn ObjectStore> {
        let store = timeouts.wrap(Arc::new(MemoryObjects::new(true)));
        for object in [1, 2] {
            let data = [object as u8];
            let steps = vec![ObjectStep::Write { offset: 0, data: &data }];
            store.apply_one(ObjectTransaction { object, steps }).unwrap();
        }
        store
    }

    /// The bytes that one batch reads from objects 1 and 2; `None` for a query that times out.
    fn read(store: &dyn ObjectStore) -> [Option<u8>; 2] {
        let mut bytes = [[0xee_u8]; 2];
        let extents = bytes.iter_mut().map(|buf| vec![ReadExtent { offset: 0, buf }]);
        let mut batch: Vec<Query<'_>> = (1..)
            .zip(extents)
            .map(|(object, extents)| Query { object, extents, keys: KeySelection::None })
            .collect();
        let answers = store.query(&mut batch);
        drop(batch);
        assert_eq!(answers.len(), 2);
        [0, 1].map(|at| match &answers[at] {
            Ok(_) => Some(bytes[at][0]),
            Err(e) => {
                assert_eq!((e.kind(), bytes[at]), (Kind::TimedOut, [0xee]), "{e}");
                None
            }
        })
    }

    #[test]
    fn queries_of_chosen_objects_time_out_and_other_ones_are_answered() {
        let timeouts = QueryTimeouts::default();
        let store = two_objects(&timeouts);
        assert_eq!(read(&*store), [Some(1), Some(2)]);
        timeouts.set_objects(&[1, 7]);
        assert_eq!([read(&*store), read(&*store)], [[None, Some(2)]; 2]);
        assert_eq!(store.list().unwrap(), [1, 2]);
        timeouts.set_objects(&[2]);
        assert_eq!(read(&*store), [Some(1), None]);
        timeouts.set_objects(&[]);
        assert_eq!(read(&*store), [Some(1), Some(2)]);
    }

    #[test]
    fn the_next_batch_that_reads_bytes_times_out_as_a_whole_and_once() {
        let timeouts = QueryTimeouts::default();
        let store = two_objects(&timeouts);
        timeouts.fail_next_read();
        let version = Query { object: 1, extents: vec![], keys: KeySelection::None };
        assert!(store.query_one(version).unwrap().version.is_some());
        assert_eq!([read(&*store), read(&*store)], [[None, None], [Some(1), Some(2)]]);
    }
}
