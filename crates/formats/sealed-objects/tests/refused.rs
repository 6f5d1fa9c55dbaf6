//! Objects of a `gcm` disk that are removed or replayed during a session: blocks that a write to
//! one does not replace are lost and stay lost, replaced blocks are valid, and other objects are
//! not affected. Also a full store, which is no failure.

mod fixture;

use fixture::*;
use lacuna_contracts::{BlockAddr, Disk, Error, Kind, Result};
use lacuna_crypto::Cipher;
use lacuna_medium::{ObjectStep, ObjectStore, ObjectTransaction, Query, QueryAnswer};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, ObjectParams, Stores};
use lacuna_sim::{InterceptedObjects, MemoryObjects, ObjectInterceptor};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Two whole segments and a part of one.
const BLOCKS: u64 = 2 * 1024 + 200;
/// The blocks written at first, in objects 0, 1 and 2.
const WRITTEN: [u64; 6] = [0, 5, 700, 1024, 1500, BLOCKS - 1];

fn test_disk(layout: ObjectLayout) -> TestDisk {
    let test_disk = TestDisk::new(Cipher::Gcm, layout, BLOCKS);
    test_disk.session(|disk| WRITTEN.iter().for_each(|block| write(disk, *block, 1, 1)));
    test_disk
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
fn assert_refused(test_disk: &TestDisk, disk: ObjectDisk, refused: &BTreeSet<u64>, stamps: &[(u64, u64)]) {
    let assert_blocks = |disk: &ObjectDisk| {
        for (block, stamp) in stamps {
            assert_reads(disk, *block, *stamp);
        }
        for block in refused {
            assert_eq!(read(disk, *block).unwrap_err().kind(), Kind::Corrupt, "block {block}");
        }
    };
    assert_blocks(&disk);
    disk.close().unwrap();
    drop(disk);
    assert_blocks(&test_disk.open());
    assert_eq!(&bad(&test_disk.open()), refused);
}

#[test]
fn a_write_to_a_removed_object_makes_only_its_own_blocks_valid() {
    for layout in ObjectLayout::ALL {
        for first_touch in [700, 5] {
            let test_disk = test_disk(layout);
            let disk = test_disk.open();
            if first_touch == 5 {
                write(&disk, 5, 1, 1);
                disk.flush().unwrap();
            } else {
                assert_reads(&disk, first_touch, 1);
            }
            test_disk.data.replace(0, None);
            write(&disk, 5, 1, 2);
            disk.flush().unwrap();
            let refused = object_without(0, &[5]);
            assert_refused(&test_disk, disk, &refused, &[(5, 2), (1024, 1), (BLOCKS - 1, 1)]);
        }
    }
}

#[test]
fn a_write_to_a_replayed_object_makes_only_its_own_blocks_valid() {
    for layout in ObjectLayout::ALL {
        let test_disk = test_disk(layout);
        let old = test_disk.data.object(1);
        test_disk.write(1024, 1, 2);
        let disk = test_disk.open();
        assert_reads(&disk, 1024, 2);
        test_disk.data.replace(1, old.clone());
        write(&disk, 1500, 1, 3);
        disk.flush().unwrap();
        assert_refused(&test_disk, disk, &object_without(1, &[1500]), &[(1500, 3), (0, 1)]);
        // A write of a whole MiB bypasses the cache, with the same effect.
        let disk = test_disk.open();
        write(&disk, 1024, 1, 4);
        disk.flush().unwrap();
        test_disk.data.replace(1, old);
        write(&disk, 1024 + 512, 256, 5);
        let good: Vec<u64> = (1536..1792).collect();
        assert_refused(&test_disk, disk, &object_without(1, &good), &[(1536, 5), (1791, 5), (0, 1)]);
    }
}

#[test]
fn the_next_read_refuses_a_replayed_object() {
    for layout in ObjectLayout::ALL {
        let test_disk = test_disk(layout);
        let old = test_disk.data.object(1);
        let disk = test_disk.open();
        write(&disk, 1024, 1, 2);
        disk.flush().unwrap();
        assert_reads(&disk, 1500, 1);
        let now = test_disk.data.object(1);
        test_disk.data.replace(1, old);
        assert_eq!(read(&disk, 1500).unwrap_err().kind(), Kind::Corrupt);
        // The right object, put back, is valid and can be written.
        test_disk.data.replace(1, now);
        assert_reads(&disk, 1500, 1);
        write(&disk, 1025, 1, 3);
        assert_refused(&test_disk, disk, &BTreeSet::new(), &[(1024, 2), (1025, 3), (1500, 1), (0, 1)]);
    }
}

/// The memory for versions is bounded: with more pages of the version table than that, the session
/// forgets the version of an object, and compares its seal again.
#[test]
fn a_replayed_object_is_refused_although_its_version_was_forgotten() {
    const PAGE_BLOCKS: u64 = 504 * 1024;
    for layout in ObjectLayout::ALL {
        let test_disk = TestDisk::new(Cipher::Gcm, layout, 30 * PAGE_BLOCKS);
        test_disk.session(|disk| [0, 700].iter().for_each(|block| write(disk, *block, 1, 1)));
        let old = test_disk.data.object(0);
        test_disk.session(|disk| [0, 700].iter().for_each(|block| write(disk, *block, 1, 2)));
        for read_only in [false, true] {
            let left = test_disk.copied();
            let disk = left.open_with(left.stores(), |options| options.access = access(read_only)).unwrap();
            assert_reads(&disk, 0, 2);
            (1..30).for_each(|page| assert_reads(&disk, page * PAGE_BLOCKS, 0));
            assert_reads(&disk, 0, 2);
            (1..30).for_each(|page| assert_reads(&disk, page * PAGE_BLOCKS, 0));
            left.data.replace(0, old.clone());
            let refused = read(&disk, 700).unwrap_err();
            assert!(refused.to_string().contains("is an older version"), "{layout:?}: {refused}");
        }
    }
}

#[test]
fn a_foreign_object_is_replaced_and_its_blocks_are_zeros() {
    for layout in ObjectLayout::ALL {
        let test_disk = TestDisk::new(Cipher::Gcm, layout, BLOCKS);
        test_disk.write(0, 10, 1);
        let foreign = test_disk.data.object(0);
        let disk = test_disk.open();
        assert_reads(&disk, 1500, 0);
        test_disk.data.replace(1, foreign);
        write(&disk, 1024, 1, 2);
        disk.flush().unwrap();
        assert_refused(&test_disk, disk, &BTreeSet::new(), &[(1024, 2), (1025, 0), (1500, 0), (3, 1)]);
    }
}

#[test]
fn writes_and_discards_make_refused_blocks_valid() {
    for layout in ObjectLayout::ALL {
        let test_disk = test_disk(layout);
        test_disk.data.replace(0, None);
        test_disk.data.replace(2, Some(test_disk.data.object(1).unwrap()));
        let refused = &object_without(0, &[]) | &object_without(2, &[]);
        assert_eq!(bad(&test_disk.open()), refused);
        // Other objects are not affected, and a flush succeeds.
        let disk = test_disk.open();
        write(&disk, 1030, 1, 4);
        write(&disk, 3, 2, 5);
        disk.flush().unwrap();
        disk.discard(BlockAddr(100), 50).unwrap();
        disk.flush().unwrap();
        write(&disk, 1031, 1, 6);
        disk.flush().unwrap();
        let mended: Vec<u64> = (3..5).chain(100..150).collect();
        let left = &object_without(0, &mended) | &object_without(2, &[]);
        assert_refused(&test_disk, disk, &left, &[(3, 5), (4, 5), (120, 0), (1030, 4), (1031, 6), (1500, 1)]);
        // Whole objects: one discarded, one written.
        let disk = test_disk.open();
        disk.discard(BlockAddr(2048), BLOCKS - 2048).unwrap();
        for first in (0..1024).step_by(64) {
            write(&disk, first, 64, 7);
        }
        assert_refused(&test_disk, disk, &BTreeSet::new(), &[(0, 7), (1023, 7), (2048, 0), (BLOCKS - 1, 0)]);
    }
}

#[test]
fn blocks_past_the_end_of_the_disk_are_not_marked_as_lost() {
    for layout in ObjectLayout::ALL {
        let mut test_disk = test_disk(layout);
        test_disk.data.replace(2, None);
        test_disk.write(2048, 1, 3);
        test_disk.params = test_disk.params.grown(3 * 1024).unwrap();
        let disk = test_disk.open();
        assert_reads(&disk, 2048, 3);
        assert!(read(&disk, BLOCKS - 1).is_err());
        assert_reads(&disk, BLOCKS, 0);
    }
}

#[test]
fn writes_replace_malformed_metadata_keys() {
    for (layout, key) in [(ObjectLayout::Kv, &[0u8, 5][..]), (ObjectLayout::Adaptive, &b"p\0d\0"[..])] {
        let test_disk = test_disk(layout);
        test_disk.change(0, vec![ObjectStep::SetKeys(vec![(key.to_vec(), vec![1; 7])])]);
        let refused = bad(&test_disk.open());
        assert!(!refused.is_empty() && refused.iter().all(|block| *block < 128), "{layout:?}");
        let disk = test_disk.open();
        for block in &refused {
            write(&disk, *block, 1, 9);
            disk.flush().unwrap();
            assert_reads(&disk, *block, 9);
        }
        disk.close().unwrap();
        assert_eq!(bad(&test_disk.open()), BTreeSet::new(), "{layout:?}");
        assert_reads(&test_disk.open(), 700, 1);
    }
}

/// A store that counts its calls, and that can be full.
struct LimitedStore {
    inner: MemoryObjects,
    calls: Arc<StoreCalls>,
}

#[derive(Default)]
struct StoreCalls {
    queries: AtomicU64,
    transactions: AtomicU64,
    /// If set, transactions that create or lengthen an object are refused.
    full: AtomicBool,
}

impl LimitedStore {
    fn stores(test_disk: &TestDisk, calls: &Arc<StoreCalls>) -> Stores {
        let narrow = |objects: &MemoryObjects| -> Arc<dyn ObjectStore> {
            Arc::new(InterceptedObjects(LimitedStore { inner: objects.reopened(), calls: calls.clone() }))
        };
        Stores { data: narrow(&test_disk.data), book: narrow(&test_disk.book) }
    }

    fn has_space(&self, transaction: &ObjectTransaction<'_>) -> bool {
        let copy = self.inner.copied();
        let len = || copy.object(transaction.object).map_or(0, |object| 1 + object.bytes().len());
        let before = len();
        copy.apply_one(transaction.clone()).is_err() || len() <= before
    }
}

impl ObjectInterceptor for LimitedStore {
    fn inner(&self) -> &dyn ObjectStore {
        &self.inner
    }
    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        let one = |transaction: &ObjectTransaction<'_>| {
            self.calls.transactions.fetch_add(1, Ordering::SeqCst);
            if self.calls.full.load(Ordering::SeqCst) && !self.has_space(transaction) {
                return Err(Error::new(Kind::NoSpace, "no room"));
            }
            self.inner.apply_one(transaction.clone())
        };
        batch.iter().map(one).collect()
    }
    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        self.calls.queries.fetch_add(batch.len() as u64, Ordering::SeqCst);
        self.inner.query(batch)
    }
}

#[test]
fn asserting_the_version_of_an_object_takes_no_query() {
    for layout in ObjectLayout::ALL {
        let test_disk = test_disk(layout);
        let calls = Arc::new(StoreCalls::default());
        let disk = test_disk.open_with(LimitedStore::stores(&test_disk, &calls), |_| ()).unwrap();
        assert_reads(&disk, 5, 1);
        write(&disk, 5, 1, 2);
        disk.flush().unwrap();
        let counts = || (calls.queries.load(Ordering::SeqCst), calls.transactions.load(Ordering::SeqCst));
        let before = counts();
        for stamp in 3..13 {
            write(&disk, 5, 1, stamp);
            disk.flush().unwrap();
        }
        assert_eq!(counts(), (before.0, before.1 + 10), "{layout:?}");
    }
}

/// Runs a test on a disk of many small objects in a full store, with or without background threads.
fn full_store(background: bool, test: impl Fn(&TestDisk, &ObjectDisk, &AtomicBool)) {
    for (cipher, layout) in all_ciphers_and_layouts() {
        let mut test_disk = TestDisk::new(cipher, layout, BLOCKS);
        test_disk.params = ObjectParams::plan(cipher, layout, 64 * 1024).unwrap();
        test_disk.session(|disk| (0..10).for_each(|n| write(disk, n * 1024, 20, 1)));
        let calls = Arc::new(StoreCalls::default());
        let stores = LimitedStore::stores(&test_disk, &calls);
        let disk = test_disk.open_with(stores, |options| options.background = background).unwrap();
        // The page that counts the writes to these objects is written before the store is full.
        write(&disk, 0, 1, 1);
        disk.flush().unwrap();
        calls.full.store(true, Ordering::SeqCst);
        test(&test_disk, &disk, &calls.full);
        calls.full.store(false, Ordering::SeqCst);
        disk.flush().unwrap();
        disk.close().unwrap();
        assert_reads(&test_disk.open(), 20 * 1024, 3);
        assert_eq!(bad(&test_disk.open()), BTreeSet::new());
    }
}

/// A flush that fails because the store is full.
fn assert_flush_refused(disk: &ObjectDisk) {
    let error = disk.flush().unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
}

#[test]
fn a_full_store_refuses_writes_until_it_has_space() {
    for background in [false, true] {
        full_store(background, |_, disk, full| {
            write(disk, 20 * 1024, 1, 2);
            (0..3).for_each(|_| assert_flush_refused(disk));
            // Pending blocks are kept, writes that need no space succeed, and stored blocks are
            // readable.
            assert_reads(disk, 20 * 1024, 2);
            write(disk, 20 * 1024, 1, 3);
            write(disk, 3 * 1024, 1, 4);
            assert_reads(disk, 3 * 1024 + 5, 1);
            assert_flush_refused(disk);
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
fn discards_free_space_in_a_full_store() {
    for background in [false, true] {
        full_store(background, |test_disk, disk, _| {
            // More than the cache holds: finally a write is refused, but a discard is not.
            let refused = (20..60).find_map(|n| {
                let data: Vec<u8> = (0..20).flat_map(|b| content(n * 1024 + b, 3)).collect();
                disk.write(BlockAddr(n * 1024), &data).err()
            });
            assert_eq!(refused.expect("the cache has no end").kind(), Kind::NoSpace);
            let before = |n: u64| test_disk.data.object(n).map_or(0, |object| object.keys().len());
            let keys = before(5);
            disk.discard(BlockAddr(5 * 1024), 1024).unwrap();
            let there = test_disk.data.object(5);
            let emptied = there.is_none_or(|there| {
                let seal =
                    if test_disk.params.layout.needs_keys() { there.keys().len() < keys } else { true };
                seal && there.bytes().iter().take(20 * 4096).all(|byte| *byte == 0)
            });
            assert!(emptied, "the discard waits behind writes without room");
            disk.discard(BlockAddr(6 * 1024), 10).unwrap();
            assert_reads(disk, 6 * 1024, 0);
            assert_reads(disk, 6 * 1024 + 11, 1);
        });
    }
}
