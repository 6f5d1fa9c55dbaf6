//! Snapshots that a store has lost, although it still answers queries for them, as Ceph does; and
//! snapshots for which the store returns another one's objects. Both are refused before anything is
//! read or rolled back.

mod fixture;

use fixture::*;
use lacuna_contracts::{BlockAddr, Disk, Kind, Result};
use lacuna_crypto::Cipher;
use lacuna_medium::{ObjectStep, ObjectStore, ObjectTransaction, SnapshotId};
use lacuna_sealed_objects::{
    ObjectAccess, ObjectDisk, ObjectLayout, SnapshotRecord, SnapshotState, Stores, list_snapshots,
};
use lacuna_sim::{InterceptedObjects, MemoryObject, MemoryObjects, ObjectInterceptor};
use std::sync::Arc;

const BLOCKS: u64 = 3 * 1024;
/// Blocks that change between the snapshots.
const WRITTEN: [u64; 4] = [0, 700, 1024, 2500];

/// The answer of a store for a snapshot that it does not have.
#[derive(Clone, Copy, Debug)]
enum LostSnapshotAnswer {
    /// The present objects.
    AsNow,
    /// No objects.
    Nothing,
}

/// A store that answers queries for every snapshot.
struct ForgetfulStore {
    inner: MemoryObjects,
    answer: LostSnapshotAnswer,
}

impl ObjectInterceptor for ForgetfulStore {
    fn inner(&self) -> &dyn ObjectStore {
        &self.inner
    }
    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        match (self.inner.roll_back(object, id), self.answer) {
            (Err(e), LostSnapshotAnswer::AsNow) if e.kind() == Kind::NotFound => Ok(()),
            (Err(e), LostSnapshotAnswer::Nothing) if e.kind() == Kind::NotFound => {
                self.inner.apply_one(ObjectTransaction { object, steps: vec![ObjectStep::Remove] }).map(drop)
            }
            (done, _) => done,
        }
    }
    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        match (self.inner.at_snapshot(id), self.answer) {
            (Err(e), LostSnapshotAnswer::AsNow) if e.kind() == Kind::NotFound => {
                Ok(Arc::new(self.inner.reopened()))
            }
            (Err(e), LostSnapshotAnswer::Nothing) if e.kind() == Kind::NotFound => {
                Ok(Arc::new(MemoryObjects::new(self.inner.has_keys())))
            }
            (view, _) => view,
        }
    }
}

/// The state of a disk at one moment: its data objects, and the first object of its version table.
struct DiskMoment {
    data: Vec<Option<MemoryObject>>,
    table: Option<MemoryObject>,
}

fn moment(test_disk: &TestDisk) -> DiskMoment {
    DiskMoment { data: (0..3).map(|n| test_disk.data.object(n)).collect(), table: test_disk.book.object(1) }
}

/// A disk with stamp 3 in its blocks, a snapshot `first` with stamp 1 and `second` with stamp 2;
/// with the state at each snapshot.
fn test_disk(cipher: Cipher, layout: ObjectLayout) -> (TestDisk, [DiskMoment; 2]) {
    let test_disk = TestDisk::new(cipher, layout, BLOCKS);
    let enter = |disk: &ObjectDisk, stamp| WRITTEN.iter().for_each(|block| write(disk, *block, 1, stamp));
    let mut moments = vec![];
    test_disk.session(|disk| {
        for (stamp, name) in [(1, "first"), (2, "second")] {
            enter(disk, stamp);
            disk.create_snapshot(name).unwrap();
            moments.push(moment(&test_disk));
        }
        enter(disk, 3);
    });
    (test_disk, moments.try_into().ok().unwrap())
}

fn forgetful_stores(test_disk: &TestDisk, answer: LostSnapshotAnswer) -> Stores {
    let store = |inner: &MemoryObjects| {
        Arc::new(InterceptedObjects(ForgetfulStore { inner: inner.reopened(), answer }))
    };
    Stores { data: store(&test_disk.data), book: store(&test_disk.book) }
}

fn records(test_disk: &TestDisk) -> Vec<SnapshotRecord> {
    list_snapshots(&*test_disk.book).unwrap()
}

#[track_caller]
fn assert_stamp(disk: &ObjectDisk, stamp: u64) {
    WRITTEN.iter().for_each(|block| assert_reads(disk, *block, stamp));
    assert_reads(disk, 1, 0);
}

#[track_caller]
fn assert_refused<T>(result: Result<T>, what: &str) {
    let error = result.err().unwrap_or_else(|| panic!("{what}: believed"));
    assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
}

/// Asserts that the snapshot can be neither read nor rolled back to, and that the attempt loses
/// nothing.
fn assert_lost(test_disk: &TestDisk, stores: impl Fn() -> Stores, name: &str, what: &str) {
    assert_refused(test_disk.open_with(stores(), |o| o.snapshot = Some(name.into())), what);
    let disk = test_disk.open_with(stores(), |_| ()).unwrap();
    assert_refused(disk.rollback(name), what);
    assert!(records(test_disk).iter().all(|record| record.state == SnapshotState::Ready), "{what}");
    assert_stamp(&disk, 3);
    write(&disk, 5, 1, 5);
    disk.close().unwrap();
    let disk = test_disk.open_with(stores(), |_| ()).unwrap();
    assert_stamp(&disk, 3);
    assert_reads(&disk, 5, 5);
}

#[test]
fn a_snapshot_lost_by_the_store_is_refused_with_every_cipher() {
    for (cipher, layout) in all_ciphers_and_layouts() {
        let (test_disk, _) = test_disk(cipher, layout);
        let first = records(&test_disk).remove(0);
        for answer in [LostSnapshotAnswer::AsNow, LostSnapshotAnswer::Nothing] {
            for (data, book) in [(true, true), (true, false), (false, true)] {
                let what = format!("{cipher:?} {layout:?} {answer:?} data: {data}, book: {book}");
                let left = test_disk.copied();
                if data {
                    left.data.remove_snapshot(first.data_id).unwrap();
                }
                if book {
                    left.book.remove_snapshot(first.book_id).unwrap();
                }
                let stores = || forgetful_stores(&left, answer);
                let at = |name: &str| left.open_with(stores(), |o| o.snapshot = Some(name.into()));
                if data || cipher.authenticates() {
                    assert_lost(&left, stores, "first", &what);
                } else {
                    // The book holds nothing for this snapshot.
                    assert_stamp(&at("first").unwrap(), 1);
                }
                assert_stamp(&at("second").unwrap(), 2);
                let disk = left.open_with(stores(), |_| ()).unwrap();
                disk.remove_snapshot("first").unwrap();
                disk.rollback("second").unwrap();
                assert_stamp(&disk, 2);
                disk.close().unwrap();
            }
        }
    }
}

/// A copy of all present objects without their past, as an object-by-object copy of a pool gives.
fn without_past(store: &MemoryObjects) -> MemoryObjects {
    let copy = MemoryObjects::new(store.has_keys());
    for object in store.list().unwrap() {
        copy.replace(object, store.object(object));
    }
    copy
}

#[test]
fn a_disk_that_was_copied_object_by_object_has_lost_its_snapshots() {
    for (cipher, layout) in all_ciphers_and_layouts() {
        let (test_disk, _) = test_disk(cipher, layout);
        let (data, book) = (Arc::new(without_past(&test_disk.data)), Arc::new(without_past(&test_disk.book)));
        let copy = TestDisk { params: test_disk.params, data, book };
        let stores = || forgetful_stores(&copy, LostSnapshotAnswer::AsNow);
        for name in ["first", "second"] {
            assert_lost(&copy, stores, name, &format!("{cipher:?} {layout:?} {name}"));
        }
        // The numbers of new snapshots begin below those of the old ones, which the stores still
        // keep.
        let disk = copy.open_with(stores(), |_| ()).unwrap();
        let error = disk.create_snapshot("third").unwrap_err();
        assert!(error.to_string().contains("keeps nothing"), "{error}");
        assert_eq!(records(&copy).len(), 2);
        ["first", "second"].into_iter().for_each(|name| disk.remove_snapshot(name).unwrap());
        assert_stamp(&disk, 3);
        // Each attempt takes the next number.
        while disk.create_snapshot("third").is_err() {}
        WRITTEN.iter().for_each(|block| write(&disk, *block, 1, 4));
        disk.close().unwrap();
        assert_stamp(&copy.open_with(stores(), |o| o.snapshot = Some("third".into())).unwrap(), 3);
        assert_stamp(&copy.open_with(stores(), |_| ()).unwrap(), 4);
    }
}

#[test]
fn one_snapshot_does_not_pass_for_another() {
    for layout in ObjectLayout::ALL {
        let (test_disk, [first, second]) = test_disk(Cipher::Gcm, layout);
        let ids = records(&test_disk);
        // Each object of the snapshot, or only the first, with the version table of the other
        // snapshot.
        for (record, name, other) in [(&ids[1], "second", &first), (&ids[0], "first", &second)] {
            for count in [3, 1] {
                let left = test_disk.copied();
                for (object, state) in (0..).zip(&other.data).take(count) {
                    left.data.replace_at(object, record.data_id, state.clone());
                }
                left.book.replace_at(1, record.book_id, other.table.clone());
                let what = format!("{layout:?}: {name}, {count} objects");
                assert_lost(&left, || left.stores(), name, &what);
            }
        }
        assert_stamp(&test_disk.open_at("first"), 1);
        assert_stamp(&test_disk.open_at("second"), 2);
    }
}

/// Asserts that a rescue reads each block as it was before the rollback or at the snapshot, or
/// refuses it, and that it writes nothing.
fn assert_rescued(test_disk: &TestDisk, answer: LostSnapshotAnswer, what: &str) {
    let disk = test_disk
        .open_with(forgetful_stores(test_disk, answer), |o| o.access = ObjectAccess::Rescue)
        .unwrap();
    assert_eq!(disk.unfinished_rollback(), Some("first"), "{what}");
    assert!(disk.is_read_only() && disk.write(BlockAddr(5), &content(5, 5)).is_err());
    let readable = WRITTEN.iter().filter(|block| match read(&disk, **block) {
        Ok(data) => {
            assert!([1, 3].iter().any(|stamp| data == content(**block, *stamp)), "{what}, block {block}");
            true
        }
        // An object that has its past state, and not yet a new seal.
        Err(e) => {
            assert_eq!(e.kind(), Kind::Corrupt, "{what}, block {block}: {e}");
            false
        }
    });
    assert!(readable.count() >= 2, "{what}");
    disk.close().unwrap();
}

/// A rollback that was interrupted is not finished once its snapshot is lost. A rescue reads the
/// disk then.
#[test]
fn an_interrupted_rollback_to_a_lost_snapshot_is_not_finished() {
    for (cipher, layout) in all_ciphers_and_layouts() {
        let (test_disk, _) = test_disk(cipher, layout);
        for changes in 1.. {
            let left = test_disk.copied();
            let cut = ClientCut::after(changes, false);
            let disk = left.open_with(cut.stores(&left), |_| ()).unwrap();
            assert!(disk.rollback("first").is_err(), "{cipher:?} {layout:?}: never cut");
            drop(disk);
            if records(&left)[0].state != SnapshotState::RollingBack {
                continue;
            }
            let objects = || (0..3).map(|n| left.data.object(n).map(|o| o.bytes())).collect::<Vec<_>>();
            let before = objects();
            left.data.remove_snapshot(records(&left)[0].data_id).unwrap();
            for answer in [LostSnapshotAnswer::AsNow, LostSnapshotAnswer::Nothing] {
                let what = format!("{cipher:?} {layout:?} {answer:?}");
                let opened = left.open_with(forgetful_stores(&left, answer), |_| ()).err().unwrap();
                assert!(opened.kind() == Kind::Corrupt && opened.to_string().contains("rescue"), "{opened}");
                assert!(objects() == before);
                assert_rescued(&left, answer, &what);
                assert!(objects() == before);
            }
            break;
        }
    }
}
