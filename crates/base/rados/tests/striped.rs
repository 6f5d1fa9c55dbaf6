//! A flat medium on objects, in memory and on a Ceph cluster.

mod ceph;

use lacuna_contracts::Kind;
use lacuna_medium::{
    Medium, ObjectStep, ObjectStore, ObjectTransaction, ReadExtent, StripedMedium, WriteExtent,
};
use lacuna_sim::MemoryObjects;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn everything(medium: &dyn Medium) -> Vec<u8> {
    let mut all = vec![0xee; medium.len() as usize];
    medium.read_at(0, &mut all).unwrap();
    all
}

/// Pseudorandom bytes.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| ((at + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8).collect()
}

fn behaves(store: &Arc<dyn ObjectStore>) {
    let len = 13 * MIB + 512;
    let medium = StripedMedium::create(store.clone(), len).unwrap();
    assert_eq!(StripedMedium::create(store.clone(), len).err().unwrap().kind(), Kind::Exists);
    let mut model = vec![0; len as usize];
    assert!(everything(&medium) == model);
    assert_eq!(store.list().unwrap(), [0]);

    let pieces = [(0, 5000, 1), (4 * MIB - 100, 200, 2), (3 * MIB, 9 * MIB, 3), (len - 512, 512, 4)];
    let data: Vec<_> = pieces.iter().map(|&(_, len, seed)| pattern(len as usize, seed)).collect();
    // Two batches, because one piece overlaps another, and the order within a batch is free.
    for range in [0..2, 2..4] {
        let batch: Vec<_> =
            range.clone().map(|n: usize| WriteExtent { offset: pieces[n].0, data: &data[n] }).collect();
        medium.write(&batch).unwrap();
        for n in range {
            model[pieces[n].0 as usize..][..data[n].len()].copy_from_slice(&data[n]);
        }
    }
    medium.write_durable(&[WriteExtent { offset: 77, data: b"durable" }]).unwrap();
    model[77..84].copy_from_slice(b"durable");
    medium.write(&[]).unwrap();
    medium.sync().unwrap();
    assert!(everything(&medium) == model);
    let (mut a, mut b) = ([0; 300], [0; 512]);
    medium
        .read(&mut [
            ReadExtent { offset: len - 512, buf: &mut b },
            ReadExtent { offset: 4 * MIB - 150, buf: &mut a },
        ])
        .unwrap();
    assert_eq!(a, model[4 * MIB as usize - 150..][..300]);
    assert_eq!(b, model[len as usize - 512..]);

    for (offset, len) in [(MIB, 100), (4 * MIB, 4 * MIB), (0, 4 * MIB), (11 * MIB, 2 * MIB), (9, 0)] {
        medium.discard(offset, len).unwrap();
        model[offset as usize..][..len as usize].fill(0);
    }
    assert!(everything(&medium) == model);
    drop(medium);
    let medium = StripedMedium::open(store.clone()).unwrap();
    assert_eq!(medium.len(), len);
    assert!(everything(&medium) == model);
}

#[test]
fn data_is_readable_without_object_0() {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryObjects::new(true));
    StripedMedium::create(store.clone(), 6 * MIB).unwrap().write_at(5 * MIB, b"left").unwrap();
    store.apply_one(ObjectTransaction { object: 0, steps: vec![ObjectStep::Remove] }).unwrap();
    assert_eq!(StripedMedium::open(store.clone()).err().unwrap().kind(), Kind::NotFound);
    let medium = StripedMedium::with_len(store.clone(), 6 * MIB);
    let mut found = [0; 4];
    medium.read_at(5 * MIB, &mut found).unwrap();
    assert_eq!(&found, b"left");
    medium.write_at(0, b"new").unwrap();
    medium.set_len(6 * MIB).unwrap();
    assert_eq!(StripedMedium::open(store).unwrap().len(), 6 * MIB);
}

fn changes_its_length(store: &Arc<dyn ObjectStore>) {
    let medium = StripedMedium::create(store.clone(), 10 * MIB).unwrap();
    let data = pattern(10 * MIB as usize, 5);
    medium.write_at(0, &data).unwrap();
    medium.set_len(5 * MIB).unwrap();
    assert_eq!(medium.len(), 5 * MIB);
    assert_eq!(medium.read_at(5 * MIB - 1, &mut [0; 2]).unwrap_err().kind(), Kind::Io);
    assert_eq!(medium.write_at(5 * MIB, &[1]).unwrap_err().kind(), Kind::Io);
    assert_eq!(medium.discard(5 * MIB, 1).unwrap_err().kind(), Kind::Io);
    assert_eq!(medium.read_at(u64::MAX, &mut [0; 2]).unwrap_err().kind(), Kind::Io);
    // Truncated bytes do not come back.
    medium.set_len(12 * MIB).unwrap();
    drop(medium);
    let medium = StripedMedium::open(store.clone()).unwrap();
    let all = everything(&medium);
    assert_eq!(all.len() as u64, 12 * MIB);
    assert!(all[..5 * MIB as usize] == data[..5 * MIB as usize]);
    assert!(all[5 * MIB as usize..].iter().all(|&byte| byte == 0));
    // Also in the object that holds the length, which stays.
    medium.set_len(100).unwrap();
    medium.set_len(4 * MIB).unwrap();
    let all = everything(&StripedMedium::open(store.clone()).unwrap());
    assert!(all[..100] == data[..100] && all[100..].iter().all(|&byte| byte == 0));
    medium.set_len(0).unwrap();
    assert!(StripedMedium::open(store.clone()).unwrap().is_empty());
}

fn knows_its_own(store: &Arc<dyn ObjectStore>) {
    assert_eq!(StripedMedium::open(store.clone()).err().unwrap().kind(), Kind::NotFound);
    let steps = vec![ObjectStep::Write { offset: 0, data: b"somebody else's" }];
    store.apply_one(ObjectTransaction { object: 0, steps }).unwrap();
    assert_eq!(StripedMedium::open(store.clone()).err().unwrap().kind(), Kind::NotFound);
    assert_eq!(StripedMedium::create(store.clone(), 1).err().unwrap().kind(), Kind::Exists);
}

const DEMANDS: [fn(&Arc<dyn ObjectStore>); 3] = [behaves, changes_its_length, knows_its_own];

#[test]
fn a_striped_medium_works_on_objects_in_memory() {
    for demand in DEMANDS {
        demand(&(Arc::new(MemoryObjects::new(false)) as Arc<dyn ObjectStore>));
    }
}

#[test]
fn a_striped_medium_works_on_a_replicated_pool() {
    let Some(pool) = ceph::pool() else { return };
    for demand in DEMANDS {
        demand(&ceph::store(&pool, "striped").0);
    }
}

#[test]
fn a_striped_medium_works_on_an_erasure_coded_pool() {
    let Some(pool) = ceph::erasure_coded_pool() else { return };
    for demand in DEMANDS {
        demand(&ceph::store(&pool, "striped").0);
    }
}
