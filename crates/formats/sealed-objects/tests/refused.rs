//! Objects of a `gcm` disk that are removed or replayed during a session: blocks that a write to
//! one does not replace are lost and stay lost, replaced blocks are valid, and other objects are
//! not affected. Also a full store, which is no failure.

mod fixture;

use fixture::*;
use lacuna_contracts::{BlockAddr, Disk, Error, Kind, Result};
use lacuna_crypto::Cipher;
use lacuna_medium::{Found, MemoryObjects, ObjectStore, Query, Step, Transaction};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, ObjectParams, Stores};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Two whole segments and a part of one.
const BLOCKS: u64 = 2 * 1024 + 200;
/// The blocks written at first, in objects 0, 1 and 2.
const WRITTEN: [u64; 6] = [0, 5, 700, 1024, 1500, BLOCKS - 1];

fn scene(layout: ObjectLayout) -> Scene {
    let scene = Scene::new(Cipher::Gcm, layout, BLOCKS);
    scene.session(|disk| WRITTEN.iter().for_each(|block| write(disk, *block, 1, 1)));
    scene
}

/// The blocks of an object except the `good` ones.
fn object_without(number: u64, good: &[u64]) -> BTreeSet<u64> {
    let blocks = number * 1024..(number * 1024 + 1024).min(BLOCKS);
    blocks.filter(|block| !good.contains(block)).collect()
}

/// The blocks that a check of the disk reports.
fn bad(disk: &ObjectDisk) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let report = disk.check(|_| Ok(()), |bad| assert!(found.insert(bad.block.0))).unwrap();
    assert_eq!(report.bad, found.len() as u64);
    found
}

/// Asserts which blocks are refused, now and in every later session; `stamps` gives valid blocks.
fn assert_refused(scene: &Scene, disk: ObjectDisk, refused: &BTreeSet<u64>, stamps: &[(u64, u64)]) {
    let look = |disk: &ObjectDisk| {
        for (block, stamp) in stamps {
            assert_reads(disk, *block, *stamp);
        }
        for block in refused {
            assert_eq!(read(disk, *block).unwrap_err().kind(), Kind::Corrupt, "block {block}");
        }
    };
    look(&disk);
    disk.close().unwrap();
    drop(disk);
    look(&scene.open());
    assert_eq!(&bad(&scene.open()), refused);
}

#[test]
fn a_write_to_an_object_that_went_after_its_first_touch_saves_nothing_but_itself() {
    for layout in ObjectLayout::ALL {
        for first_touch in [700, 5] {
            let scene = scene(layout);
            let disk = scene.open();
            if first_touch == 5 {
                write(&disk, 5, 1, 1);
                disk.flush().unwrap();
            } else {
                assert_reads(&disk, first_touch, 1);
            }
            scene.data.replace(0, None);
            write(&disk, 5, 1, 2);
            disk.flush().unwrap();
            let refused = object_without(0, &[5]);
            assert_refused(&scene, disk, &refused, &[(5, 2), (1024, 1), (BLOCKS - 1, 1)]);
        }
    }
}

#[test]
fn an_object_that_is_put_back_after_its_first_touch_is_not_sealed_anew() {
    for layout in ObjectLayout::ALL {
        let scene = scene(layout);
        let old = scene.data.object(1);
        scene.write(1024, 1, 2);
        let disk = scene.open();
        assert_reads(&disk, 1024, 2);
        scene.data.replace(1, old.clone());
        write(&disk, 1500, 1, 3);
        disk.flush().unwrap();
        assert_refused(&scene, disk, &object_without(1, &[1500]), &[(1500, 3), (0, 1)]);
        // A write of a whole MiB bypasses the cache, with the same effect.
        let disk = scene.open();
        write(&disk, 1024, 1, 4);
        disk.flush().unwrap();
        scene.data.replace(1, old);
        write(&disk, 1024 + 512, 256, 5);
        let good: Vec<u64> = (1536..1792).collect();
        assert_refused(&scene, disk, &object_without(1, &good), &[(1536, 5), (1791, 5), (0, 1)]);
    }
}

#[test]
fn what_is_put_back_is_noticed_by_the_next_read_as_well() {
    for layout in ObjectLayout::ALL {
        let scene = scene(layout);
        let old = scene.data.object(1);
        let disk = scene.open();
        write(&disk, 1024, 1, 2);
        disk.flush().unwrap();
        assert_reads(&disk, 1500, 1);
        let now = scene.data.object(1);
        scene.data.replace(1, old);
        assert_eq!(read(&disk, 1500).unwrap_err().kind(), Kind::Corrupt);
        // The right object, put back, is valid and can be written.
        scene.data.replace(1, now);
        assert_reads(&disk, 1500, 1);
        write(&disk, 1025, 1, 3);
        assert_refused(&scene, disk, &BTreeSet::new(), &[(1024, 2), (1025, 3), (1500, 1), (0, 1)]);
    }
}

#[test]
fn an_object_where_none_was_is_replaced_and_its_blocks_are_zeros() {
    for layout in ObjectLayout::ALL {
        let scene = Scene::new(Cipher::Gcm, layout, BLOCKS);
        scene.write(0, 10, 1);
        let foreign = scene.data.object(0);
        let disk = scene.open();
        assert_reads(&disk, 1500, 0);
        scene.data.replace(1, foreign);
        write(&disk, 1024, 1, 2);
        disk.flush().unwrap();
        assert_refused(&scene, disk, &BTreeSet::new(), &[(1024, 2), (1025, 0), (1500, 0), (3, 1)]);
    }
}

#[test]
fn refused_blocks_are_mended_by_writing_and_by_discarding_them() {
    for layout in ObjectLayout::ALL {
        let scene = scene(layout);
        scene.data.replace(0, None);
        scene.data.replace(2, Some(scene.data.object(1).unwrap()));
        let refused = &object_without(0, &[]) | &object_without(2, &[]);
        assert_eq!(bad(&scene.open()), refused);
        // Other objects are not affected, and a flush succeeds.
        let disk = scene.open();
        write(&disk, 1030, 1, 4);
        write(&disk, 3, 2, 5);
        disk.flush().unwrap();
        disk.discard(BlockAddr(100), 50).unwrap();
        disk.flush().unwrap();
        write(&disk, 1031, 1, 6);
        disk.flush().unwrap();
        let mended: Vec<u64> = (3..5).chain(100..150).collect();
        let left = &object_without(0, &mended) | &object_without(2, &[]);
        assert_refused(&scene, disk, &left, &[(3, 5), (4, 5), (120, 0), (1030, 4), (1031, 6), (1500, 1)]);
        // Whole objects: one discarded, one written.
        let disk = scene.open();
        disk.discard(BlockAddr(2048), BLOCKS - 2048).unwrap();
        for first in (0..1024).step_by(64) {
            write(&disk, first, 64, 7);
        }
        assert_refused(&scene, disk, &BTreeSet::new(), &[(0, 7), (1023, 7), (2048, 0), (BLOCKS - 1, 0)]);
    }
}

#[test]
fn what_lies_past_the_end_of_the_disk_is_not_lost_with_it() {
    for layout in ObjectLayout::ALL {
        let mut scene = scene(layout);
        scene.data.replace(2, None);
        scene.write(2048, 1, 3);
        scene.params = scene.params.grown(3 * 1024).unwrap();
        let disk = scene.open();
        assert_reads(&disk, 2048, 3);
        assert!(read(&disk, BLOCKS - 1).is_err());
        assert_reads(&disk, BLOCKS, 0);
    }
}

#[test]
fn keys_that_mean_nothing_are_mended_by_writing() {
    for (layout, key) in [(ObjectLayout::Kv, &[0u8, 5][..]), (ObjectLayout::Adaptive, &b"p\0d\0"[..])] {
        let scene = scene(layout);
        scene.change(0, vec![Step::SetKeys(vec![(key.to_vec(), vec![1; 7])])]);
        let refused = bad(&scene.open());
        assert!(!refused.is_empty() && refused.iter().all(|block| *block < 128), "{layout:?}");
        let disk = scene.open();
        for block in &refused {
            write(&disk, *block, 1, 9);
            disk.flush().unwrap();
            assert_reads(&disk, *block, 9);
        }
        disk.close().unwrap();
        assert_eq!(bad(&scene.open()), BTreeSet::new(), "{layout:?}");
        assert_reads(&scene.open(), 700, 1);
    }
}

/// A store that counts its calls, and that can be full.
struct Narrow {
    inner: MemoryObjects,
    told: Arc<Told>,
}

#[derive(Default)]
struct Told {
    queries: AtomicU64,
    transactions: AtomicU64,
    /// If set, transactions that create or lengthen an object are refused.
    full: AtomicBool,
}

impl Narrow {
    fn stores(scene: &Scene, told: &Arc<Told>) -> Stores {
        let narrow = |objects: &MemoryObjects| -> Arc<dyn ObjectStore> {
            Arc::new(Narrow { inner: objects.reopened(), told: told.clone() })
        };
        Stores { data: narrow(&scene.data), book: narrow(&scene.book) }
    }

    fn has_room(&self, transaction: &Transaction<'_>) -> bool {
        let copy = self.inner.copied();
        let len = || copy.object(transaction.object).map_or(0, |object| 1 + object.bytes().len());
        let before = len();
        copy.apply_one(transaction.clone()).is_err() || len() <= before
    }
}

impl ObjectStore for Narrow {
    fn apply(&self, batch: &[Transaction<'_>]) -> Vec<Result<u64>> {
        let one = |transaction: &Transaction<'_>| {
            self.told.transactions.fetch_add(1, Ordering::SeqCst);
            if self.told.full.load(Ordering::SeqCst) && !self.has_room(transaction) {
                return Err(Error::new(Kind::NoSpace, "no room"));
            }
            self.inner.apply_one(transaction.clone())
        };
        batch.iter().map(one).collect()
    }
    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<Found>> {
        self.told.queries.fetch_add(batch.len() as u64, Ordering::SeqCst);
        self.inner.query(batch)
    }
    delegate_to_inner!();
}

#[test]
fn to_assert_what_an_object_is_takes_no_round_trip() {
    for layout in ObjectLayout::ALL {
        let scene = scene(layout);
        let told = Arc::new(Told::default());
        let disk = scene.open_with(Narrow::stores(&scene, &told), |_| ()).unwrap();
        assert_reads(&disk, 5, 1);
        write(&disk, 5, 1, 2);
        disk.flush().unwrap();
        let counts = || (told.queries.load(Ordering::SeqCst), told.transactions.load(Ordering::SeqCst));
        let before = counts();
        for stamp in 3..13 {
            write(&disk, 5, 1, stamp);
            disk.flush().unwrap();
        }
        assert_eq!(counts(), (before.0, before.1 + 10), "{layout:?}");
    }
}

/// Runs a test on a disk of many small objects in a full store, with or without background threads.
fn full_store(background: bool, test: impl Fn(&Scene, &ObjectDisk, &AtomicBool)) {
    for (cipher, layout) in all_kinds() {
        let mut scene = Scene::new(cipher, layout, BLOCKS);
        scene.params = ObjectParams::plan(cipher, layout, 64 * 1024).unwrap();
        scene.session(|disk| (0..10).for_each(|n| write(disk, n * 1024, 20, 1)));
        let told = Arc::new(Told::default());
        let stores = Narrow::stores(&scene, &told);
        let disk = scene.open_with(stores, |options| options.background = background).unwrap();
        // The page that counts the writes to these objects is written before the store is full.
        write(&disk, 0, 1, 1);
        disk.flush().unwrap();
        told.full.store(true, Ordering::SeqCst);
        test(&scene, &disk, &told.full);
        told.full.store(false, Ordering::SeqCst);
        disk.flush().unwrap();
        disk.close().unwrap();
        assert_reads(&scene.open(), 20 * 1024, 3);
        assert_eq!(bad(&scene.open()), BTreeSet::new());
    }
}

/// A flush that fails because the store is full.
fn flush_in_vain(disk: &ObjectDisk) {
    let error = disk.flush().unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
}

#[test]
fn a_store_without_room_says_so_as_long_as_it_is_so() {
    for background in [false, true] {
        full_store(background, |_, disk, full| {
            write(disk, 20 * 1024, 1, 2);
            (0..3).for_each(|_| flush_in_vain(disk));
            // Pending blocks are kept, writes that need no space succeed, and stored blocks are
            // readable.
            assert_reads(disk, 20 * 1024, 2);
            write(disk, 20 * 1024, 1, 3);
            write(disk, 3 * 1024, 1, 4);
            assert_reads(disk, 3 * 1024 + 5, 1);
            flush_in_vain(disk);
            let large: Vec<u8> = (0..256).flat_map(|n| content(30 * 1024 + n, 5)).collect();
            let error = disk.write(BlockAddr(30 * 1024), &large).unwrap_err();
            assert_eq!(error.kind(), Kind::NoSpace);
            assert_reads(disk, 30 * 1024, 0);
            full.store(false, Ordering::SeqCst);
            disk.flush().unwrap();
            disk.write(BlockAddr(30 * 1024), &large).unwrap();
            assert_reads(disk, 30 * 1024 + 255, 5);
            assert_reads(disk, 3 * 1024, 4);
        });
    }
}

#[test]
fn discards_give_a_store_without_room_some_again() {
    for background in [false, true] {
        full_store(background, |scene, disk, _| {
            // More than the cache holds: finally a write is refused, but a discard is not.
            let refused = (20..60).find_map(|n| {
                let data: Vec<u8> = (0..20).flat_map(|b| content(n * 1024 + b, 3)).collect();
                disk.write(BlockAddr(n * 1024), &data).err()
            });
            assert_eq!(refused.expect("the cache has no end").kind(), Kind::NoSpace);
            let before = |n: u64| scene.data.object(n).map_or(0, |object| object.keys().len());
            let keys = before(5);
            disk.discard(BlockAddr(5 * 1024), 1024).unwrap();
            let there = scene.data.object(5);
            let emptied = there.is_none_or(|there| {
                let seal = if scene.params.layout.needs_keys() { there.keys().len() < keys } else { true };
                seal && there.bytes().iter().take(20 * 4096).all(|byte| *byte == 0)
            });
            assert!(emptied, "the discard waits behind what has no room");
            disk.discard(BlockAddr(6 * 1024), 10).unwrap();
            assert_reads(disk, 6 * 1024, 0);
            assert_reads(disk, 6 * 1024 + 11, 1);
        });
    }
}
