//! Shows that the store in memory behaves as RADOS does: atomic transactions, guards, keys,
//! snapshots.

use super::*;
use lacuna_medium::ReadExtent;

fn write(store: &MemoryObjects, object: u64, offset: u64, data: &[u8]) -> u64 {
    store.apply_one(ObjectTransaction { object, steps: vec![ObjectStep::Write { offset, data }] }).unwrap()
}

fn read(store: &dyn ObjectStore, object: u64, offset: u64, len: usize) -> (Vec<u8>, QueryAnswer) {
    let mut buf = vec![0xee; len];
    let extents = vec![ReadExtent { offset, buf: &mut buf }];
    let found = store.query_one(Query { object, extents, keys: KeySelection::None }).unwrap();
    (buf, found)
}

fn pairs(store: &dyn ObjectStore, keys: KeySelection) -> Vec<(ObjectKey, Vec<u8>)> {
    store.query_one(Query { object: 1, extents: Vec::new(), keys }).unwrap().pairs
}

fn key(name: &str) -> ObjectKey {
    name.as_bytes().to_vec()
}

fn pair(name: &str, value: &[u8]) -> (ObjectKey, Vec<u8>) {
    (key(name), value.to_vec())
}

#[test]
fn bytes_past_the_end_and_of_absent_objects_are_zeros() {
    let store = MemoryObjects::new(true);
    assert_eq!(read(&store, 5, 0, 4), (vec![0; 4], QueryAnswer::default()));
    let version = write(&store, 5, 16380, b"across a page");
    let (bytes, found) = read(&store, 5, 16378, 20);
    assert_eq!(bytes, b"\0\0across a page\0\0\0\0\0");
    assert_eq!(found.version, Some(version));
    assert_eq!(store.list().unwrap(), vec![5]);
    assert_eq!(store.object(5).unwrap().bytes().len(), 16393);
}

#[test]
fn zeroing_does_not_lengthen_and_truncation_discards() {
    let store = MemoryObjects::new(false);
    let steps = vec![
        ObjectStep::Write { offset: 0, data: b"12345678" },
        ObjectStep::Zero { offset: 6, len: 1 << 40 },
    ];
    store.apply_one(ObjectTransaction { object: 0, steps }).unwrap();
    assert_eq!(store.object(0).unwrap().bytes(), b"123456\0\0");
    let steps = vec![ObjectStep::Truncate(3), ObjectStep::Truncate(5)];
    store.apply_one(ObjectTransaction { object: 0, steps }).unwrap();
    assert_eq!(store.object(0).unwrap().bytes(), b"123\0\0");
    let steps = vec![ObjectStep::Truncate(100), ObjectStep::Zero { offset: 0, len: 5 }];
    store.apply_one(ObjectTransaction { object: 9, steps }).unwrap();
    assert_eq!(store.list().unwrap(), vec![0], "neither makes an object");
}

#[test]
fn a_refused_transaction_leaves_nothing() {
    let store = MemoryObjects::new(true);
    let version = write(&store, 1, 0, b"old");
    let refused = |steps: Vec<ObjectStep<'_>>| {
        let mut all =
            vec![ObjectStep::Write { offset: 0, data: b"new" }, ObjectStep::SetKeys(vec![pair("k", b"v")])];
        all.extend(steps);
        store.apply_one(ObjectTransaction { object: 1, steps: all }).unwrap_err().kind()
    };
    assert_eq!(refused(vec![ObjectStep::Create]), Kind::Exists);
    assert_eq!(refused(vec![ObjectStep::Expect(version + 1)]), Kind::Changed);
    assert_eq!(refused(vec![ObjectStep::Compare { offset: 0, data: b"old" }]), Kind::Changed);
    assert_eq!(refused(vec![ObjectStep::Write { offset: u64::MAX, data: b"x" }]), Kind::Usage);
    assert_eq!(refused(vec![ObjectStep::Truncate(LIMIT + 1)]), Kind::Usage);
    assert_eq!(
        read(&store, 1, 0, 3),
        (b"old".to_vec(), QueryAnswer { version: Some(version), pairs: Vec::new() })
    );
    assert!(pairs(&store, KeySelection::These(vec![key("k")])).is_empty());
    let steps = vec![
        ObjectStep::Expect(version),
        ObjectStep::Compare { offset: 0, data: b"old\0\0" },
        ObjectStep::Remove,
        ObjectStep::Create,
    ];
    assert!(store.apply_one(ObjectTransaction { object: 1, steps }).unwrap() > version);
    let none = ObjectTransaction { object: 2, steps: vec![ObjectStep::Expect(0)] };
    assert_eq!(store.apply_one(none).unwrap_err().kind(), Kind::Changed);
}

#[test]
fn keys_are_sorted_and_ranges_half_open() {
    let store = MemoryObjects::new(true);
    let all = ["d", "a", "c", "b"].map(|name| pair(name, name.as_bytes())).to_vec();
    store.apply_one(ObjectTransaction { object: 1, steps: vec![ObjectStep::SetKeys(all)] }).unwrap();
    let names = |keys| -> Vec<ObjectKey> { pairs(&store, keys).into_iter().map(|(key, _)| key).collect() };
    assert_eq!(names(KeySelection::Range(key("b"), key("d"), 9)), [key("b"), key("c")]);
    assert_eq!(names(KeySelection::Range(key("a"), key("z"), 3)), [key("a"), key("b"), key("c")]);
    assert!(names(KeySelection::Range(key("z"), key("a"), 3)).is_empty());
    assert_eq!(names(KeySelection::These(vec![key("d"), key("x"), key("a")])), [key("a"), key("d")]);
    let and_d = |end: &str, most| KeySelection::RangeAnd(key("a"), key(end), most, vec![key("x"), key("d")]);
    assert_eq!(names(and_d("c", 9)), [key("a"), key("b"), key("d")]);
    assert_eq!(names(and_d("d", 1)), [key("a"), key("d")]);
    assert_eq!(names(and_d("a", 9)), [key("d")]);
    let steps = vec![
        ObjectStep::RemoveKeyRange(key("b"), key("d")),
        ObjectStep::RemoveKeys(vec![key("d"), key("nothing")]),
    ];
    store.apply_one(ObjectTransaction { object: 1, steps }).unwrap();
    assert_eq!(names(KeySelection::Range(key(""), key("z"), 9)), [key("a")]);
    let keyless = MemoryObjects::new(false);
    let steps = vec![ObjectStep::SetKeys(vec![pair("k", b"v")])];
    assert_eq!(keyless.apply_one(ObjectTransaction { object: 1, steps }).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn snapshots_keep_overwritten_data() {
    let store = MemoryObjects::new(true);
    write(&store, 1, 0, b"one");
    let first = store.create_snapshot().unwrap();
    store.set_snapshots(&[first]).unwrap();
    write(&store, 1, 0, b"two");
    write(&store, 1, 0, b"TWO");
    write(&store, 2, 0, b"new");
    let second = store.create_snapshot().unwrap();
    store.set_snapshots(&[first, second]).unwrap();
    store.apply_one(ObjectTransaction { object: 1, steps: vec![ObjectStep::Remove] }).unwrap();

    let (old, new) = (store.at_snapshot(first).unwrap(), store.at_snapshot(second).unwrap());
    assert_eq!(read(&*old, 1, 0, 3).0, b"one");
    assert_eq!(read(&*old, 2, 0, 3), (vec![0; 3], QueryAnswer::default()));
    assert_eq!(old.list().unwrap(), [1]);
    assert_eq!(read(&*new, 1, 0, 3).0, b"TWO");
    assert_eq!(read(&*new, 2, 0, 3).0, b"new", "unchanged since");
    assert_eq!(new.list().unwrap(), [1, 2]);
    assert_eq!(store.list().unwrap(), [2]);
    let refused = old.apply_one(ObjectTransaction { object: 1, steps: vec![ObjectStep::Remove] });
    assert_eq!(refused.unwrap_err().kind(), Kind::ReadOnly);

    store.roll_back(1, first).unwrap();
    store.roll_back(2, first).unwrap();
    assert_eq!(store.list().unwrap(), [1]);
    assert_eq!(read(&store, 1, 0, 3).0, b"one");
    assert_eq!(read(&*new, 2, 0, 3).0, b"new", "a rollback preserves too");

    store.remove_snapshot(second).unwrap();
    assert_eq!(store.at_snapshot(second).err().unwrap().kind(), Kind::NotFound);
    let query = Query { object: 1, extents: Vec::new(), keys: KeySelection::None };
    assert_eq!(new.query_one(query).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(read(&*old, 1, 0, 3).0, b"one");
}

#[test]
fn a_handle_without_snapshots_preserves_nothing() {
    let store = MemoryObjects::new(true);
    write(&store, 1, 0, b"one");
    let id = store.create_snapshot().unwrap();
    write(&store.reopened(), 1, 0, b"two");
    assert_eq!(read(&*store.at_snapshot(id).unwrap(), 1, 0, 3).0, b"two");
}

#[test]
fn copies_and_replacements_are_independent() {
    let store = MemoryObjects::new(true);
    write(&store, 1, 0, b"one");
    let (copy, before) = (store.copied(), store.object(1));
    let version = write(&store, 1, 0, b"two");
    assert_eq!(read(&copy, 1, 0, 3).0, b"one");
    store.replace(1, before);
    let (bytes, found) = read(&store, 1, 0, 3);
    assert_eq!(bytes, b"one");
    assert!(found.version > Some(version));
    store.replace(1, None);
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn one_snapshot_can_be_replaced() {
    let store = MemoryObjects::new(true);
    write(&store, 1, 0, b"one");
    let ids: Vec<_> = (0..3).map(|_| store.create_snapshot().unwrap()).collect();
    write(&store, 2, 0, b"two");
    let seen = |ids: &[SnapshotId]| -> Vec<Vec<u8>> {
        ids.iter().map(|id| read(&*store.at_snapshot(*id).unwrap(), 1, 0, 3).0).collect()
    };
    store.replace_at(1, ids[1], store.object(2));
    assert_eq!(seen(&ids), [b"one", b"two", b"one"]);
    store.set_snapshots(&ids).unwrap();
    write(&store, 1, 0, b"new");
    assert_eq!(seen(&ids), [b"one", b"two", b"one"]);
    store.replace_at(1, ids[0], None);
    store.replace_at(1, ids[2], store.object(1));
    assert_eq!(seen(&ids), [b"\0\0\0", b"two", b"new"]);
}
