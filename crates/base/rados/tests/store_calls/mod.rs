//! Short calls of an object store, for tests.

use lacuna_contracts::Result;
use lacuna_medium::{
    KeySelection, ObjectStep, ObjectStore, ObjectTransaction, Query, QueryAnswer, ReadExtent,
};

pub(crate) fn do_steps(store: &dyn ObjectStore, object: u64, steps: Vec<ObjectStep<'_>>) -> Result<u64> {
    store.apply_one(ObjectTransaction { object, steps })
}

pub(crate) fn write(store: &dyn ObjectStore, object: u64, offset: u64, data: &[u8]) -> u64 {
    do_steps(store, object, vec![ObjectStep::Write { offset, data }]).unwrap()
}

/// The bytes of an object, and its version if it exists. The buffer is filled with junk before.
pub(crate) fn read(store: &dyn ObjectStore, object: u64, offset: u64, len: usize) -> (Vec<u8>, Option<u64>) {
    let mut buf = vec![0xee; len];
    let extents = vec![ReadExtent { offset, buf: &mut buf }];
    let found = store.query_one(Query { object, extents, keys: KeySelection::None }).unwrap();
    assert_eq!(found.pairs, []);
    (buf, found.version)
}

pub(crate) fn found(store: &dyn ObjectStore, object: u64, keys: KeySelection) -> QueryAnswer {
    store.query_one(Query { object, extents: Vec::new(), keys }).unwrap()
}

pub(crate) fn pairs(of: &[(&[u8], &[u8])]) -> Vec<(Vec<u8>, Vec<u8>)> {
    of.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

pub(crate) fn all_keys() -> KeySelection {
    KeySelection::Range(Vec::new(), vec![0xff; 9], 1 << 20)
}

pub(crate) fn listed(store: &dyn ObjectStore) -> Vec<u64> {
    let mut objects = store.list().unwrap();
    objects.sort_unstable();
    objects
}
