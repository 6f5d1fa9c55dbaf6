//! Older tables of the book that an adversary puts back: the table of snapshots in the middle of a
//! rollback, alone or with the version table, and an older version table before a rollback.

mod fixture;

use fixture::*;
use lacuna_contracts::{Disk, Error, Kind, Result};
use lacuna_crypto::Cipher;
use lacuna_medium::{ObjectStep, ObjectStore, ObjectTransaction};
use lacuna_sealed_objects::{ObjectAccess, ObjectDisk, ObjectLayout, SnapshotState, Stores, list_snapshots};
use lacuna_sim::{InterceptedObjects, MemoryObject, MemoryObjects, ObjectInterceptor};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const BLOCKS: u64 = 3 * 1024;
/// The objects of the book.
const SNAPSHOTS: u64 = 0;
const VERSIONS: u64 = 1;
/// A block of each object.
const WRITTEN: [u64; 3] = [0, 1024, 2048];

fn write_all(disk: &ObjectDisk, stamp: u64) {
    WRITTEN.iter().for_each(|block| write(disk, *block, 1, stamp));
    disk.flush().unwrap();
}

#[track_caller]
fn assert_stamp(disk: &ObjectDisk, stamp: u64) {
    WRITTEN.iter().for_each(|block| assert_reads(disk, *block, stamp));
}

#[track_caller]
fn assert_refused(test_disk: &TestDisk, words: &str) {
    for read_only in [true, false] {
        let opened = test_disk.open_with(test_disk.stores(), |options| options.access = access(read_only));
        let error = opened.err().expect("the disk opens");
        // A rollback that is not finished is refused to a reader in any case.
        let unfinished = read_only && error.kind() == Kind::ReadOnly;
        assert!(unfinished || error.kind() == Kind::Corrupt && error.to_string().contains(words), "{error}");
    }
}

/// Rolls a disk with stamp 2 back to its snapshot with stamp 1, and writes stamp 9 in a later
/// session. Returns the disk, and both tables as they were as soon as the rollback had begun.
fn rolled_back(layout: ObjectLayout) -> (TestDisk, [Option<MemoryObject>; 2]) {
    let test_disk = TestDisk::new(Cipher::Gcm, layout, BLOCKS);
    test_disk.session(|disk| {
        write_all(disk, 1);
        disk.create_snapshot("first").unwrap();
        write_all(disk, 2);
    });
    let (kept, book) = (Arc::new(Mutex::new(None)), test_disk.book.clone());
    let keep = {
        let kept = kept.clone();
        move || *kept.lock().unwrap() = Some([SNAPSHOTS, VERSIONS].map(|object| book.object(object)))
    };
    let book = Arc::new(RollbackHook::wrap(test_disk.book.reopened(), keep));
    let stores = Stores { data: Arc::new(test_disk.data.reopened()), book };
    let disk = test_disk.open_with(stores, |_| ()).unwrap();
    disk.rollback("first").unwrap();
    assert_stamp(&disk, 1);
    disk.close().unwrap();
    test_disk.session(|disk| write_all(disk, 9));
    let kept = kept.lock().unwrap().take().unwrap();
    (test_disk, kept)
}

#[test]
fn a_table_from_inside_a_rollback_does_not_repeat_the_rollback() {
    for layout in ObjectLayout::ALL {
        let (test_disk, [snapshots, versions]) = rolled_back(layout);
        let newest = test_disk.book.object(SNAPSHOTS);
        let left = test_disk.copied();
        left.book.replace(SNAPSHOTS, snapshots.clone());
        assert_eq!(list_snapshots(&*left.book).unwrap()[0].state, SnapshotState::RollingBack);
        let data = || WRITTEN.map(|block| left.data.object(block / 1024).unwrap().bytes());
        let before = data();
        assert_refused(&left, "is an older version");
        assert!(data() == before);
        // A rescue reads the disk all the same; with the right table it opens again.
        let rescue = left.open_with(left.stores(), |options| options.access = ObjectAccess::Rescue).unwrap();
        assert_stamp(&rescue, 9);
        left.book.replace(SNAPSHOTS, newest);
        assert_stamp(&left.open(), 9);
        assert_stamp(&left.open_at("first"), 1);
        // The version table of that moment accepts the table, but the objects are of a later
        // session.
        left.book.replace(SNAPSHOTS, snapshots);
        left.book.replace(VERSIONS, versions);
        assert_refused(&left, "is an older version");
        assert!(data() == before);
    }
}

/// A table that is lost or altered costs a rescue the snapshots alone.
#[test]
fn a_rescue_reads_a_disk_without_its_table_of_snapshots() {
    for (cipher, layout) in all_ciphers_and_layouts() {
        let test_disk = TestDisk::new(cipher, layout, BLOCKS);
        test_disk.session(|disk| {
            write_all(disk, 1);
            disk.create_snapshot("first").unwrap();
            write_all(disk, 2);
        });
        let (lost, altered) = (test_disk.copied(), test_disk.copied());
        lost.book.replace(SNAPSHOTS, None);
        let steps = vec![ObjectStep::Write { offset: 70, data: &[0xa5; 4] }];
        altered.book.reopened().apply_one(ObjectTransaction { object: SNAPSHOTS, steps }).unwrap();
        for (left, words) in [(&lost, "does not exist"), (&altered, "does not verify")] {
            for read_only in [true, false] {
                let opened = left.open_with(left.stores(), |options| options.access = access(read_only));
                let refused = opened.err().expect("the disk opens");
                assert!(refused.kind() == Kind::Corrupt && refused.to_string().contains(words), "{refused}");
            }
            let rescue = |snapshot: Option<&str>| {
                left.open_with(left.stores(), |options| {
                    options.access = ObjectAccess::Rescue;
                    options.snapshot = snapshot.map(str::to_owned);
                })
            };
            assert_eq!(rescue(Some("first")).err().unwrap().kind(), Kind::Corrupt);
            let disk = rescue(None).unwrap();
            assert_stamp(&disk, 2);
            assert!(disk.is_read_only() && disk.unfinished_rollback().is_none());
            assert!(disk.table_error().unwrap().to_string().contains(words), "{cipher:?} {layout:?}");
        }
    }
}

#[test]
fn a_table_without_the_newest_snapshots_is_refused() {
    for layout in ObjectLayout::ALL {
        let test_disk = TestDisk::new(Cipher::Gcm, layout, BLOCKS);
        let mut kept = vec![test_disk.book.object(SNAPSHOTS)];
        test_disk.session(|disk| {
            for (name, stamp) in [("first", 1), ("second", 2)] {
                write_all(disk, stamp);
                disk.create_snapshot(name).unwrap();
                kept.push(test_disk.book.object(SNAPSHOTS));
            }
            disk.remove_snapshot("first").unwrap();
        });
        for table in kept {
            let left = test_disk.copied();
            left.book.replace(SNAPSHOTS, table);
            assert_refused(&left, "the table of snapshots");
            left.book.replace(SNAPSHOTS, test_disk.book.object(SNAPSHOTS));
            left.session(|disk| write_all(disk, 3));
            assert_stamp(&left.open_at("second"), 2);
        }
    }
}

/// A book that refuses the write to the version table that follows a write to the table of
/// snapshots, for lack of space.
struct FullBook {
    inner: MemoryObjects,
    refuses: AtomicBool,
}

impl ObjectInterceptor for FullBook {
    fn inner(&self) -> &dyn ObjectStore {
        &self.inner
    }
    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        let one = |transaction: &ObjectTransaction<'_>| {
            if transaction.object == SNAPSHOTS {
                self.refuses.store(true, Ordering::SeqCst);
            } else if self.refuses.swap(false, Ordering::SeqCst) {
                return Err(Error::new(Kind::NoSpace, "no room"));
            }
            self.inner.apply_one(transaction.clone())
        };
        batch.iter().map(one).collect()
    }
}

/// A store without space for the version table makes the snapshot all the same. The next write of
/// the version table binds it.
#[test]
fn a_full_store_binds_the_table_of_snapshots_later() {
    let test_disk = TestDisk::new(Cipher::Gcm, ObjectLayout::Adaptive, BLOCKS);
    let kept = test_disk.book.object(SNAPSHOTS);
    let book = FullBook { inner: test_disk.book.reopened(), refuses: AtomicBool::new(false) };
    let stores =
        Stores { data: Arc::new(test_disk.data.reopened()), book: Arc::new(InterceptedObjects(book)) };
    let disk = test_disk.open_with(stores, |_| ()).unwrap();
    write_all(&disk, 1);
    disk.create_snapshot("first").unwrap();
    write_all(&disk, 2);
    disk.close().unwrap();
    assert_stamp(&test_disk.open_at("first"), 1);
    test_disk.book.replace(SNAPSHOTS, kept);
    assert_refused(&test_disk, "the table of snapshots");
}

/// A disk with a snapshot of stamp 1 in its first session, and six later sessions.
struct LongHistory {
    test_disk: TestDisk,
    /// Object 0 at the snapshot.
    at_snapshot: Option<MemoryObject>,
    /// Object 0 after the last session but one.
    future: Option<MemoryObject>,
    /// The version table of the first session, while the disk was open and afterwards.
    versions: [Option<MemoryObject>; 2],
}

fn long_history(layout: ObjectLayout) -> LongHistory {
    let test_disk = TestDisk::new(Cipher::Gcm, layout, BLOCKS);
    let mut versions = [None, None];
    test_disk.session(|disk| {
        write_all(disk, 1);
        disk.create_snapshot("first").unwrap();
        versions[0] = test_disk.book.object(VERSIONS);
    });
    versions[1] = test_disk.book.object(VERSIONS);
    let at_snapshot = test_disk.data.object(0);
    (2..7).for_each(|stamp| test_disk.session(|disk| write_all(disk, stamp)));
    let future = test_disk.data.object(0);
    test_disk.session(|disk| write_all(disk, 7));
    LongHistory { test_disk, at_snapshot, future, versions }
}

impl LongHistory {
    /// The disk with an old version table, and object 0 as at the snapshot. The other objects
    /// expose the table.
    fn with_old_table(&self, versions: Option<&MemoryObject>) -> TestDisk {
        let left = self.test_disk.copied();
        left.book.replace(VERSIONS, versions.cloned());
        left.data.replace(0, self.at_snapshot.clone());
        for block in [1024, 2048] {
            assert_eq!(read(&left.open(), block).unwrap_err().kind(), Kind::Corrupt);
        }
        left
    }
}

/// The counters after a rollback are above all that any object showed, also if the version table
/// had forgotten these: nothing written after the snapshot can be put back.
#[test]
fn a_rollback_under_an_old_version_table_rises_above_later_sessions() {
    for layout in ObjectLayout::ALL {
        let history = long_history(layout);
        for versions in &history.versions {
            let left = history.with_old_table(versions.as_ref());
            // Power cuts leave the page of the version table open.
            let disk = left.open();
            disk.rollback("first").unwrap();
            assert_stamp(&disk, 1);
            drop(disk);
            for _ in 0..12 {
                let disk = left.open();
                write(&disk, 1025, 1, 9);
                disk.flush().unwrap();
            }
            assert_stamp(&left.open(), 1);
            left.data.replace(0, history.future.clone());
            let refused = read(&left.open(), 0).unwrap_err();
            assert!(refused.to_string().contains("is an older version"), "{layout:?}: {refused}");
        }
    }
}

/// Such a rollback is finished after a cut at any moment, and shows nothing old meanwhile.
#[test]
fn an_interrupted_rollback_under_an_old_version_table_is_finished() {
    for layout in [ObjectLayout::Adaptive, ObjectLayout::SegmentEnd] {
        let history = long_history(layout);
        for versions in &history.versions {
            for changes in 0.. {
                let left = history.with_old_table(versions.as_ref());
                let cut = ClientCut::after(changes, changes % 2 == 0);
                let disk = left.open_with(cut.stores(&left), |_| ()).unwrap();
                let done = disk.rollback("first").is_ok();
                drop(disk);
                let begun = list_snapshots(&*left.book).unwrap()[0].state == SnapshotState::RollingBack;
                let disk = left.open();
                for block in WRITTEN {
                    match read(&disk, block) {
                        Ok(data) => {
                            assert!(data == content(block, 1), "{layout:?}, {changes}, block {block}");
                        }
                        Err(e) => assert!(!done && !begun && e.kind() == Kind::Corrupt, "{e}"),
                    }
                }
                disk.rollback("first").unwrap();
                assert_stamp(&disk, 1);
                disk.close().unwrap();
                assert_eq!(left.open().check(|_| Ok(()), |_| ()).unwrap().bad, 0);
                if done && !cut.happened() {
                    break;
                }
            }
        }
    }
}

/// A page of the version table that was altered makes its objects unreadable. A rollback makes them
/// valid again, as the error advises.
#[test]
fn a_rollback_replaces_a_damaged_page_of_the_version_table() {
    for layout in ObjectLayout::ALL {
        let history = long_history(layout);
        let left = history.test_disk.copied();
        let steps = vec![ObjectStep::Write { offset: 4096 + 100, data: b"damage" }];
        left.book.reopened().apply_one(ObjectTransaction { object: VERSIONS, steps }).unwrap();
        let disk = left.open();
        assert_eq!(read(&disk, 0).unwrap_err().kind(), Kind::Corrupt);
        disk.rollback("first").unwrap();
        assert_stamp(&disk, 1);
        disk.close().unwrap();
        assert_eq!(left.open().check(|_| Ok(()), |_| ()).unwrap().bad, 0);
        left.data.replace(0, history.future.clone());
        assert_eq!(read(&left.open(), 0).unwrap_err().kind(), Kind::Corrupt);
    }
}
