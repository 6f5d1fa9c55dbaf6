//! The requirements on every object store, tested on the store in memory and on Ceph pools: they
//! behave alike.

mod ceph;
mod store_calls;

use lacuna_contracts::{Kind, Result};
use lacuna_medium::{
    KeySelection, ObjectStep, ObjectStore, ObjectTransaction, Query, QueryAnswer, ReadExtent,
};
use lacuna_sim::MemoryObjects;
use store_calls::{all_keys, do_steps, found, listed, pairs, read, write};

/// A requirement on a store, and its name.
type Demand = (&'static str, fn(&dyn ObjectStore));

const DEMANDS: [Demand; 8] = [
    ("bytes", bytes),
    ("guards", guards),
    ("absence", absence),
    ("batches", batches),
    ("listing", listing),
    ("snapshots", snapshots),
    ("several snapshots", several_snapshots),
    ("views", views),
];

const KEY_DEMANDS: [Demand; 5] = [
    ("keys", keys),
    ("keys and bytes together", keys_and_bytes_together),
    ("key ranges", key_ranges),
    ("many keys", many_keys),
    ("keys in snapshots", keys_in_snapshots),
];

fn bytes(store: &dyn ObjectStore) {
    let first = write(store, 0, 4096, &[7; 8192]);
    let (data, version) = read(store, 0, 0, 16384);
    assert_eq!(version, Some(first));
    assert_eq!(data, [vec![0; 4096], vec![7; 8192], vec![0; 4096]].concat());

    // Several steps, in order, and several extents, in any order.
    let steps = vec![
        ObjectStep::Write { offset: 0, data: &[1; 100] },
        ObjectStep::Write { offset: 50, data: &[2; 10] },
        ObjectStep::Zero { offset: 4096, len: 4096 },
        ObjectStep::Zero { offset: 0, len: 0 },
    ];
    let second = do_steps(store, 0, steps).unwrap();
    assert!(second > first);
    let (mut a, mut b, mut none) = (vec![9; 4096], vec![9; 100], vec![]);
    let extents = vec![
        ReadExtent { offset: 8192, buf: &mut a },
        ReadExtent { offset: 3, buf: &mut none },
        ReadExtent { offset: 0, buf: &mut b },
    ];
    let answer = store.query_one(Query { object: 0, extents, keys: KeySelection::None }).unwrap();
    assert_eq!(answer.version, Some(second));
    assert_eq!(a, [7; 4096]);
    assert_eq!(b, [vec![1; 50], vec![2; 10], vec![1; 40]].concat());
    assert_eq!(read(store, 0, 4096, 4096).0, [0; 4096]);

    // Truncated bytes read as zeros, even after the object is extended again.
    do_steps(store, 0, vec![ObjectStep::Truncate(60)]).unwrap();
    assert_eq!(read(store, 0, 55, 10).0, [2, 2, 2, 2, 2, 0, 0, 0, 0, 0]);
    do_steps(store, 0, vec![ObjectStep::Truncate(12288)]).unwrap();
    assert_eq!(read(store, 0, 60, 12228).0, [0; 12228]);
    do_steps(store, 0, vec![ObjectStep::Zero { offset: 8192, len: 1 << 20 }]).unwrap();
    assert_eq!(read(store, 0, 8192, 8192).0, [0; 8192]);

    // An object of the size that disks use.
    let large: Vec<u8> = (0..(4 << 20) + 32768_u32).map(|at| (at / 4096 + at) as u8).collect();
    write(store, 1, 0, &large);
    assert_eq!(read(store, 1, 0, large.len()).0, large);
    assert!(store.object_limit() >= large.len() as u64);
}

fn guards(store: &dyn ObjectStore) {
    let create = || vec![ObjectStep::Create, ObjectStep::Write { offset: 0, data: b"made" }];
    let first = do_steps(store, 5, create()).unwrap();
    let again = vec![ObjectStep::Write { offset: 0, data: b"lost" }, ObjectStep::Create];
    assert_eq!(do_steps(store, 5, again).unwrap_err().kind(), Kind::Exists);

    let second =
        do_steps(store, 5, vec![ObjectStep::Expect(first), ObjectStep::Write { offset: 4, data: b" up" }])
            .unwrap();
    for stale in [first, second + 1, 0] {
        let steps = vec![ObjectStep::Expect(stale), ObjectStep::Write { offset: 0, data: b"lost" }];
        assert_eq!(do_steps(store, 5, steps).unwrap_err().kind(), Kind::Changed);
    }
    // An absent object has no version.
    let steps = vec![ObjectStep::Expect(second), ObjectStep::Write { offset: 0, data: b"lost" }];
    assert_eq!(do_steps(store, 6, steps).unwrap_err().kind(), Kind::Changed);
    assert_eq!(read(store, 6, 0, 4), (vec![0; 4], None));

    let steps = vec![
        ObjectStep::Compare { offset: 0, data: b"made" },
        ObjectStep::Compare { offset: 5, data: b"up\0\0\0" },
        ObjectStep::Write { offset: 0, data: b"MADE" },
    ];
    do_steps(store, 5, steps).unwrap();
    for (offset, data) in [(0, &b"made"[..]), (0, b"MADE!"), (100, b"\0x")] {
        let steps =
            vec![ObjectStep::Compare { offset, data }, ObjectStep::Write { offset: 0, data: b"lost" }];
        assert_eq!(do_steps(store, 5, steps).unwrap_err().kind(), Kind::Changed);
    }
    let steps =
        vec![ObjectStep::Compare { offset: 9, data: &[0; 9] }, ObjectStep::Write { offset: 0, data: b"new" }];
    do_steps(store, 7, steps).unwrap();
    assert_eq!(read(store, 7, 0, 3).0, b"new");
    assert_eq!(read(store, 5, 0, 8).0, b"MADE up\0");
}

fn absence(store: &dyn ObjectStore) {
    assert_eq!(read(store, 3, 7, 100), (vec![0; 100], None));
    assert_eq!(found(store, 3, KeySelection::None), QueryAnswer::default());
    // None of these steps creates an object.
    for step in [ObjectStep::Remove, ObjectStep::Zero { offset: 0, len: 4096 }, ObjectStep::Truncate(4096)] {
        do_steps(store, 3, vec![step]).unwrap();
        assert_eq!(found(store, 3, KeySelection::None).version, None);
    }
    let made = do_steps(store, 3, vec![ObjectStep::Create]).unwrap();
    assert_eq!(read(store, 3, 0, 10), (vec![0; 10], Some(made)));
    assert_eq!(found(store, 3, KeySelection::None).version, Some(made));

    // An object that was removed and created again has a new version.
    write(store, 3, 0, &[1; 5000]);
    do_steps(store, 3, vec![ObjectStep::Remove]).unwrap();
    assert_eq!(read(store, 3, 0, 10), (vec![0; 10], None));
    assert!(write(store, 3, 100, b"x") > made);
    assert_eq!(read(store, 3, 99, 3).0, b"\0x\0");

    // Also within one transaction.
    let steps = vec![ObjectStep::Remove, ObjectStep::Write { offset: 2, data: b"y" }];
    do_steps(store, 3, steps).unwrap();
    assert_eq!(read(store, 3, 0, 102).0, [&b"\0\0y"[..], &[0; 99]].concat());
}

fn batches(store: &dyn ObjectStore) {
    let data: Vec<Vec<u8>> = (0..200).map(|n| vec![n as u8 + 1; 8192 + n]).collect();
    let batch: Vec<_> = (0..200)
        .map(|n| ObjectTransaction {
            object: n,
            steps: vec![ObjectStep::Write { offset: n, data: &data[n as usize] }],
        })
        .collect();
    let versions: Vec<u64> = store.apply(&batch).into_iter().map(Result::unwrap).collect();

    let mut buffers = vec![vec![0xee; 9000]; 201];
    let mut queries: Vec<_> = buffers
        .iter_mut()
        .enumerate()
        .map(|(n, buf)| {
            let extents = vec![ReadExtent { offset: n as u64, buf }];
            Query { object: n as u64, extents, keys: KeySelection::None }
        })
        .collect();
    let answers: Vec<_> = store.query(&mut queries).into_iter().map(Result::unwrap).collect();
    for n in 0..200 {
        assert_eq!(answers[n].version, Some(versions[n]));
        assert_eq!(buffers[n][..data[n].len()], data[n]);
        assert!(buffers[n][data[n].len()..].iter().all(|&b| b == 0));
    }
    assert_eq!(answers[200].version, None);
    assert_eq!(buffers[200], [0; 9000]);

    // A failed transaction does not affect the rest of its batch.
    let batch: Vec<_> = (0..200)
        .map(|n| {
            let guard =
                if n % 10 == 3 { ObjectStep::Create } else { ObjectStep::Expect(versions[n as usize]) };
            ObjectTransaction {
                object: n,
                steps: vec![guard, ObjectStep::Write { offset: 0, data: b"again" }],
            }
        })
        .collect();
    for (n, answer) in store.apply(&batch).into_iter().enumerate() {
        let failed = answer.map_err(|e| e.kind()).err();
        assert_eq!(failed, (n % 10 == 3).then_some(Kind::Exists));
        assert_eq!(read(store, n as u64, 0, 5).0 == b"again", n % 10 != 3);
    }
    assert!(store.apply(&[]).is_empty() && store.query(&mut []).is_empty());
}

fn listing(store: &dyn ObjectStore) {
    assert_eq!(listed(store), []);
    for object in [0, 7, 1 << 40, u64::MAX] {
        write(store, object, 0, b"here");
    }
    assert_eq!(listed(store), [0, 7, 1 << 40, u64::MAX]);
    do_steps(store, 7, vec![ObjectStep::Remove]).unwrap();
    assert_eq!(listed(store), [0, 1 << 40, u64::MAX]);
}

fn snapshots(store: &dyn ObjectStore) {
    write(store, 1, 0, b"one at first");
    write(store, 2, 0, b"two");
    write(store, 4, 0, b"four");
    let id = store.create_snapshot().unwrap();
    store.set_snapshots(&[id]).unwrap();
    write(store, 1, 0, b"ONE");
    do_steps(store, 1, vec![ObjectStep::Truncate(5)]).unwrap();
    do_steps(store, 2, vec![ObjectStep::Remove]).unwrap();
    write(store, 3, 0, b"three");

    let view = store.at_snapshot(id).unwrap();
    assert_eq!(read(&*view, 1, 0, 14).0, b"one at first\0\0");
    assert_eq!(read(&*view, 2, 0, 3).0, b"two");
    assert_eq!(read(&*view, 3, 0, 3), (vec![0; 3], None));
    assert_eq!(read(&*view, 4, 0, 4).0, b"four");
    assert_eq!(listed(&*view), [1, 2, 4]);
    assert_eq!(read(store, 1, 0, 14).0, b"ONE a\0\0\0\0\0\0\0\0\0");
    assert_eq!(read(store, 2, 0, 3).1, None);
    assert_eq!(listed(store), [1, 3, 4]);

    for object in 1..=4 {
        store.roll_back(object, id).unwrap();
    }
    // An object that never existed stays absent.
    store.roll_back(9, id).unwrap();
    assert_eq!(read(store, 1, 0, 14).0, b"one at first\0\0");
    assert_eq!(read(store, 2, 0, 3).0, b"two");
    assert_eq!(listed(store), [1, 2, 4]);
    write(store, 2, 0, b"TWO");
    assert_eq!(read(&*view, 2, 0, 3).0, b"two");

    drop(view);
    store.set_snapshots(&[]).unwrap();
    store.remove_snapshot(id).unwrap();
    write(store, 1, 0, b"last");
    assert_eq!(read(store, 1, 0, 4).0, b"last");
}

fn several_snapshots(store: &dyn ObjectStore) {
    let mut ids = Vec::new();
    for round in 0..4_u8 {
        write(store, 0, 0, &[round; 16]);
        if round != 2 {
            write(store, 1, u64::from(round) * 8, &[round; 8]);
        }
        let id = store.create_snapshot().unwrap();
        assert!(ids.iter().all(|&earlier| earlier < id));
        // In any order.
        ids.insert(0, id);
        store.set_snapshots(&ids).unwrap();
        ids.reverse();
        store.set_snapshots(&ids).unwrap();
        ids.sort_unstable();
    }
    do_steps(store, 0, vec![ObjectStep::Remove]).unwrap();
    let seen = |round: usize| {
        let view = store.at_snapshot(ids[round]).unwrap();
        (read(&*view, 0, 0, 16).0, read(&*view, 1, 0, 32).0)
    };
    let one = |rounds: &[u8]| {
        let mut bytes = [0; 32];
        rounds.iter().for_each(|&round| bytes[round as usize * 8..][..8].fill(round));
        bytes.to_vec()
    };
    assert_eq!(seen(0), (vec![0; 16], one(&[0])));
    assert_eq!(seen(1), (vec![1; 16], one(&[0, 1])));
    assert_eq!(seen(2), (vec![2; 16], one(&[0, 1])));
    assert_eq!(seen(3), (vec![3; 16], one(&[0, 1, 3])));

    // The remaining snapshots are unchanged after one is removed.
    let removed = ids[1];
    store.set_snapshots(&[ids[0], ids[2], ids[3]]).unwrap();
    store.remove_snapshot(removed).unwrap();
    write(store, 1, 0, &[9; 32]);
    assert_eq!(seen(0), (vec![0; 16], one(&[0])));
    assert_eq!(seen(2), (vec![2; 16], one(&[0, 1])));
    assert_eq!(seen(3), (vec![3; 16], one(&[0, 1, 3])));
    store.roll_back(0, ids[2]).unwrap();
    store.roll_back(1, ids[0]).unwrap();
    assert_eq!(read(store, 0, 0, 16).0, [2; 16]);
    assert_eq!(read(store, 1, 0, 32).0, one(&[0]));
    assert_eq!(seen(3), (vec![3; 16], one(&[0, 1, 3])));
    for id in [ids[0], ids[2], ids[3]] {
        store.remove_snapshot(id).unwrap();
    }
    store.set_snapshots(&[]).unwrap();
}

fn views(store: &dyn ObjectStore) {
    write(store, 0, 0, b"kept");
    let id = store.create_snapshot().unwrap();
    let view = store.at_snapshot(id).unwrap();
    let steps = || vec![ObjectStep::Write { offset: 0, data: b"lost" }];
    assert_eq!(do_steps(&*view, 0, steps()).unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(view.create_snapshot().unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(view.remove_snapshot(id).unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(view.set_snapshots(&[id]).unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(view.roll_back(0, id).unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(view.has_keys(), store.has_keys());
    assert_eq!(read(&*view.at_snapshot(id).unwrap(), 0, 0, 4).0, b"kept");
    store.remove_snapshot(id).unwrap();
}

fn keys(store: &dyn ObjectStore) {
    let set = |of: &[(&[u8], &[u8])]| do_steps(store, 0, vec![ObjectStep::SetKeys(pairs(of))]).unwrap();
    set(&[(b"b", b"2"), (b"a", b"1"), (b"", b"none")]);
    let version = set(&[(b"b", b"two"), (b"c\0c", b""), (b"\xff\x01", &[0; 5000])]);
    let everything =
        pairs(&[(b"", b"none"), (b"a", b"1"), (b"b", b"two"), (b"c\0c", b""), (b"\xff\x01", &[0; 5000])]);
    assert_eq!(found(store, 0, all_keys()), QueryAnswer { version: Some(version), pairs: everything });

    let some = KeySelection::These([&b"c\0c"[..], b"nothing", b"a", b"c"].map(<[u8]>::to_vec).to_vec());
    assert_eq!(found(store, 0, some).pairs, pairs(&[(b"a", b"1"), (b"c\0c", b"")]));
    assert_eq!(found(store, 0, KeySelection::These(vec![])).pairs, []);
    assert_eq!(found(store, 1, all_keys()), QueryAnswer::default());
    assert_eq!(found(store, 1, KeySelection::These(vec![b"a".to_vec()])), QueryAnswer::default());

    let remove = [&b"a"[..], b"nothing", b"\xff\x01"].map(<[u8]>::to_vec).to_vec();
    do_steps(store, 0, vec![ObjectStep::RemoveKeys(remove.clone())]).unwrap();
    assert_eq!(found(store, 0, all_keys()).pairs, pairs(&[(b"", b"none"), (b"b", b"two"), (b"c\0c", b"")]));
    // An absent object stays absent.
    do_steps(store, 1, vec![ObjectStep::RemoveKeys(remove)]).unwrap();
    do_steps(store, 1, vec![ObjectStep::RemoveKeyRange(b"a".to_vec(), b"z".to_vec())]).unwrap();
    assert_eq!(found(store, 1, KeySelection::None).version, None);
    // Keys are removed with their object.
    do_steps(store, 0, vec![ObjectStep::Remove]).unwrap();
    write(store, 0, 0, b"new");
    assert_eq!(found(store, 0, all_keys()).pairs, []);
}

fn keys_and_bytes_together(store: &dyn ObjectStore) {
    let steps = |byte: u8, guard: Option<u64>| {
        let value = vec![byte; 32];
        let set = ObjectStep::SetKeys(vec![(b"tag".to_vec(), value)]);
        guard.map(ObjectStep::Expect).into_iter().chain([set]).collect::<Vec<_>>()
    };
    let both = |byte: u8, guard| {
        let data = vec![byte; 4096];
        let mut steps = steps(byte, guard);
        steps.push(ObjectStep::Write { offset: 4096, data: &data });
        do_steps(store, 0, steps)
    };
    let both_found = || {
        let mut buf = vec![0xee; 4096];
        let extents = vec![ReadExtent { offset: 4096, buf: &mut buf }];
        let keys = KeySelection::These(vec![b"tag".to_vec()]);
        let found = store.query_one(Query { object: 0, extents, keys }).unwrap();
        assert_eq!(found.pairs, [(b"tag".to_vec(), vec![buf[0]; 32])]);
        assert!(buf.iter().all(|&byte| byte == buf[0]));
        (buf[0], found.version)
    };
    let first = both(1, None).unwrap();
    assert_eq!(both_found(), (1, Some(first)));
    let second = both(2, Some(first)).unwrap();
    assert_eq!(both(3, Some(first)).unwrap_err().kind(), Kind::Changed);
    assert_eq!(both_found(), (2, Some(second)));

    // Under concurrent writes, a reader finds bytes and keys of a single write.
    std::thread::scope(|scope| {
        for byte in 10..14_u8 {
            scope.spawn(move || assert!((0..25).all(|round| both(byte + round * 4, None).is_ok())));
        }
        assert!((0..100).all(|_| both_found().1 >= Some(second)));
    });
    both_found();
}

fn key_ranges(store: &dyn ObjectStore) {
    let mut all: Vec<Vec<u8>> = vec![vec![]];
    for a in [0, 1, 2, 3, b'p', 0xff] {
        all.push(vec![a]);
        all.extend([0, 1, 2, 3, 0xfe, 0xff].map(|b| vec![a, b]));
        all.extend([0, 2, 0xff].map(|b| vec![a, b'd', b]));
    }
    all.sort();
    let set = all.iter().map(|key| (key.clone(), key.clone())).collect();
    do_steps(store, 0, vec![ObjectStep::SetKeys(set)]).unwrap();
    let some = || all.iter().step_by(3);
    for first in some() {
        for end in some() {
            for most in [0, 1, 5, 1000] {
                let expected: Vec<_> =
                    all.iter().filter(|key| *key >= first && *key < end).take(most).collect();
                let answer = found(store, 0, KeySelection::Range(first.clone(), end.clone(), most));
                let keys: Vec<_> = answer.pairs.iter().map(|(key, _)| key).collect();
                assert_eq!(keys, expected, "from {first:?} to {end:?}, {most} at most");
                assert!(answer.pairs.iter().all(|(key, value)| key == value));
                let behind = all.last().filter(|last| *last >= end).unwrap();
                let and = vec![behind.clone(), vec![0xff, 0xff, 0xff]];
                let answer = found(store, 0, KeySelection::RangeAnd(first.clone(), end.clone(), most, and));
                let keys: Vec<_> = answer.pairs.iter().map(|(key, _)| key).collect();
                assert_eq!(keys, expected.into_iter().chain([behind]).collect::<Vec<_>>());
            }
        }
    }
    for (first, end) in [([1].to_vec(), vec![2, 2]), (vec![0xff, b'd'], vec![0xff; 5]), (vec![3], vec![2])] {
        do_steps(store, 0, vec![ObjectStep::RemoveKeyRange(first.clone(), end.clone())]).unwrap();
        all.retain(|key| *key < first || *key >= end);
        let left: Vec<_> = found(store, 0, all_keys()).pairs.into_iter().map(|(key, _)| key).collect();
        assert_eq!(left, all);
    }
}

fn many_keys(store: &dyn ObjectStore) {
    let key = |n: u32| n.to_be_bytes()[1..].to_vec();
    let set = (0..5000).map(|n| (key(n), n.to_le_bytes().to_vec())).collect();
    let version = do_steps(store, 0, vec![ObjectStep::SetKeys(set)]).unwrap();
    for (from, to, most) in [(0, 5000, 9999), (1, 4999, 4500), (300, 3000, 2000), (4999, 6000, 10)] {
        let answer = found(store, 0, KeySelection::Range(key(from), key(to), most));
        let expected: Vec<_> =
            (from..to.min(5000)).take(most).map(|n| (key(n), n.to_le_bytes().to_vec())).collect();
        assert!(answer == QueryAnswer { version: Some(version), pairs: expected });
    }
    let these = (0..5000).rev().step_by(2).map(key).collect();
    assert_eq!(found(store, 0, KeySelection::These(these)).pairs.len(), 2500);
}

fn keys_in_snapshots(store: &dyn ObjectStore) {
    let set = |of: &[(&[u8], &[u8])]| ObjectStep::SetKeys(pairs(of));
    do_steps(
        store,
        0,
        vec![ObjectStep::Write { offset: 0, data: b"old" }, set(&[(b"a", b"1"), (b"b", b"2")])],
    )
    .unwrap();
    let id = store.create_snapshot().unwrap();
    store.set_snapshots(&[id]).unwrap();
    do_steps(store, 0, vec![set(&[(b"a", b"new")]), ObjectStep::RemoveKeys(vec![b"b".to_vec()])]).unwrap();
    let old = pairs(&[(b"a", b"1"), (b"b", b"2")]);
    let view = store.at_snapshot(id).unwrap();
    assert_eq!(found(&*view, 0, all_keys()).pairs, old);
    assert_eq!(found(store, 0, all_keys()).pairs, pairs(&[(b"a", b"new")]));
    store.roll_back(0, id).unwrap();
    assert_eq!(found(store, 0, all_keys()).pairs, old);
    do_steps(store, 0, vec![ObjectStep::Remove]).unwrap();
    assert_eq!(found(&*view, 0, all_keys()).pairs, old);
    store.set_snapshots(&[]).unwrap();
    store.remove_snapshot(id).unwrap();
}

/// Shows that without keys every transaction and query about keys fails, without other effects.
fn no_keys(store: &dyn ObjectStore) {
    assert!(!store.has_keys());
    write(store, 0, 0, b"old");
    let steps =
        vec![ObjectStep::Write { offset: 0, data: b"new" }, ObjectStep::SetKeys(pairs(&[(b"a", b"1")]))];
    assert_eq!(do_steps(store, 0, steps).unwrap_err().kind(), Kind::Usage);
    let query = Query { object: 0, extents: Vec::new(), keys: all_keys() };
    assert_eq!(store.query_one(query).unwrap_err().kind(), Kind::Usage);
    assert_eq!(read(store, 0, 0, 3).0, b"old");
}

#[test]
fn the_store_in_memory_meets_the_contract() {
    for (name, demand) in DEMANDS.iter().chain(&KEY_DEMANDS) {
        println!("{name}");
        demand(&MemoryObjects::new(true));
    }
    for (name, demand) in &DEMANDS {
        println!("{name}, without keys");
        demand(&MemoryObjects::new(false));
    }
    no_keys(&MemoryObjects::new(false));
}

#[test]
fn a_replicated_pool_meets_the_contract() {
    let Some(pool) = ceph::pool() else { return };
    assert!(pool.has_keys());
    for (name, demand) in DEMANDS.iter().chain(&KEY_DEMANDS) {
        println!("{name}");
        demand(&*ceph::store(&pool, "store").0);
    }
}

#[test]
fn an_erasure_coded_pool_meets_the_contract() {
    let Some(pool) = ceph::erasure_coded_pool() else { return };
    assert!(!pool.has_keys());
    for (name, demand) in &DEMANDS {
        println!("{name}");
        demand(&*ceph::store(&pool, "store").0);
    }
    no_keys(&*ceph::store(&pool, "store").0);
}
