//! Snapshots of disks on objects: their content, rollbacks to them, and recovery after a client
//! died during a creation, removal or rollback.

mod fixture;

use fixture::*;
use lacuna_contracts::Result;
use lacuna_contracts::{BlockAddr, Disk, Kind};
use lacuna_crypto::Cipher;
use lacuna_medium::{ObjectStore, SnapshotId};
use lacuna_sealed_objects::{ObjectAccess, ObjectDisk, ObjectLayout, SnapshotState, Stores, list_snapshots};
use lacuna_sim::{InterceptedObjects, ObjectInterceptor};
use std::sync::Arc;

const BLOCKS: u64 = 3 * 1024 + 100;

/// Blocks and their stamps in each of three states of a disk: parts of segments, a whole segment, a
/// discarded one, and the last block.
const STATES: [&[(u64, u64)]; 3] = [
    &[(0, 1), (5, 1), (63, 1), (64, 1), (1024, 1), (2000, 1), (2048, 0), (3000, 0), (BLOCKS - 1, 1)],
    &[(0, 2), (5, 1), (63, 2), (64, 1), (1024, 0), (2000, 0), (2048, 2), (3000, 2), (BLOCKS - 1, 1)],
    &[(0, 2), (5, 3), (63, 2), (64, 3), (1024, 3), (2000, 0), (2048, 0), (3000, 2), (BLOCKS - 1, 0)],
];

/// Brings a disk from the previous state to this one.
fn apply_state(disk: &ObjectDisk, state: usize) {
    match state {
        0 => {
            write(disk, 0, 65, 1);
            write(disk, 1024, 1024, 1);
            write(disk, BLOCKS - 1, 1, 1);
        }
        1 => {
            write(disk, 0, 1, 2);
            write(disk, 63, 1, 2);
            disk.discard(BlockAddr(1024), 1024).unwrap();
            write(disk, 2048, 1024, 2);
        }
        _ => {
            write(disk, 5, 1, 3);
            write(disk, 64, 1, 3);
            write(disk, 1024, 1, 3);
            disk.discard(BlockAddr(2048), 1).unwrap();
            disk.discard(BlockAddr(BLOCKS - 1), 1).unwrap();
        }
    }
}

#[track_caller]
fn assert_state(disk: &ObjectDisk, state: usize) {
    for (block, stamp) in STATES[state] {
        assert_reads(disk, *block, *stamp);
    }
    let bad = std::cell::Cell::new(None);
    let report = disk.check(|_| Ok(()), |b| bad.set(Some(b.error))).unwrap();
    assert_eq!(report.bad, 0, "{:?}", bad.take());
}

/// A disk in its third state, with snapshots `first` and `second` of the two states before.
fn test_disk(cipher: Cipher, layout: ObjectLayout) -> TestDisk {
    let test_disk = TestDisk::new(cipher, layout, BLOCKS);
    test_disk.session(|disk| {
        apply_state(disk, 0);
        disk.create_snapshot("first").unwrap();
        apply_state(disk, 1);
        disk.create_snapshot("second").unwrap();
        apply_state(disk, 2);
    });
    test_disk
}

fn names(test_disk: &TestDisk) -> Vec<String> {
    list_snapshots(&*test_disk.book).unwrap().into_iter().map(|record| record.name).collect()
}

#[test]
fn snapshots_can_be_read_and_rolled_back_to() {
    for (cipher, layout) in all_ciphers_and_layouts() {
        let test_disk = test_disk(cipher, layout);
        let read_all = |head: usize| {
            assert_state(&test_disk.open_at("first"), 0);
            assert_state(&test_disk.open_at("second"), 1);
            assert_state(&test_disk.open(), head);
        };
        read_all(2);
        for (name, state) in [("first", 0), ("second", 1), ("first", 0)] {
            test_disk.session(|disk| {
                disk.rollback(name).unwrap();
                assert_state(disk, state);
            });
            read_all(state);
        }
        // Writes continue after a rollback, starting at the restored state.
        test_disk.session(|disk| apply_state(disk, 1));
        read_all(1);
        test_disk.session(|disk| disk.remove_snapshot("first").unwrap());
        assert_eq!(names(&test_disk), ["second"]);
        assert_eq!(test_disk.try_open_at("first").err().unwrap().kind(), Kind::NotFound);
        assert_state(&test_disk.open_at("second"), 1);
        test_disk.session(|disk| disk.remove_snapshot("second").unwrap());
        assert_state(&test_disk.open(), 1);
    }
}

#[test]
fn a_snapshot_is_read_only_and_errors_name_the_cause() {
    let test_disk = test_disk(Cipher::Gcm, ObjectLayout::Adaptive);
    let past = test_disk.open_at("first");
    assert!(past.is_read_only());
    assert_eq!(past.write(BlockAddr(0), &content(0, 9)).unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(past.create_snapshot("x").unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(past.rollback("second").unwrap_err().kind(), Kind::ReadOnly);
    past.close().unwrap();
    test_disk.session(|disk| {
        let assert_error = |result: lacuna_contracts::Result<()>, kind, words: &str| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(words), "{error}");
        };
        assert_error(disk.create_snapshot("first"), Kind::Exists, "a snapshot of this name");
        assert_error(disk.create_snapshot("a/b"), Kind::Usage, "a/b");
        assert_error(disk.create_snapshot(&"n".repeat(65)), Kind::Usage, "1 to 64");
        assert_error(disk.remove_snapshot("third"), Kind::NotFound, "first, second");
        assert_error(disk.rollback("third"), Kind::NotFound, "first, second");
        // The errors changed nothing.
        write(disk, 7, 1, 7);
        disk.flush().unwrap();
        assert_reads(disk, 7, 7);
    });
    let records = list_snapshots(&*test_disk.book).unwrap();
    assert_eq!(
        records.iter().map(|r| (r.number, r.blocks, r.state)).collect::<Vec<_>>(),
        [(1, BLOCKS, SnapshotState::Ready), (2, BLOCKS, SnapshotState::Ready)]
    );
}

#[test]
fn snapshot_numbers_are_never_reused() {
    let test_disk = TestDisk::new(Cipher::Gcm, ObjectLayout::SegmentEnd, BLOCKS);
    test_disk.session(|disk| {
        disk.create_snapshot("a").unwrap();
        disk.remove_snapshot("a").unwrap();
        disk.create_snapshot("a").unwrap();
    });
    assert_eq!(list_snapshots(&*test_disk.book).unwrap()[0].number, 2);
    test_disk.write(0, 1, 1);
    let meta = meta_of(&test_disk.data.object(0).unwrap(), &test_disk.params, 0);
    assert_eq!(meta[28..], 2u32.to_le_bytes());
    // An entry written after the snapshot does not pass for one of the snapshot.
    let before = test_disk.data.object(0);
    test_disk.session(|disk| disk.create_snapshot("b").unwrap());
    test_disk.write(0, 1, 2);
    assert_reads(&test_disk.open_at("b"), 0, 1);
    assert_eq!(test_disk.try_open_at("a").and_then(|disk| read(&disk, 0)).unwrap(), content(0, 0));
    test_disk.data.replace(0, before);
    assert_eq!(read(&test_disk.open(), 0).unwrap_err().kind(), Kind::Corrupt);
}

/// Cuts a client off at every change that `work` makes, before and after the change happens, and
/// calls `check_left` with the state of the stores.
fn cut_everywhere(test_disk: &TestDisk, work: impl Fn(&ObjectDisk), check_left: impl Fn(&TestDisk)) {
    for unheard in [false, true] {
        for changes in 0.. {
            let left = test_disk.copied();
            let cut = ClientCut::after(changes, unheard);
            if let Ok(disk) = left.open_with(cut.stores(&left), |_| ()) {
                work(&disk);
            }
            check_left(&left);
            if !cut.happened() {
                assert!(changes >= 3);
                break;
            }
        }
    }
}

fn kinds_to_cut() -> [(Cipher, ObjectLayout); 5] {
    [
        (Cipher::Gcm, ObjectLayout::Adaptive),
        (Cipher::Gcm, ObjectLayout::SegmentEnd),
        (Cipher::Gcm, ObjectLayout::Kv),
        (Cipher::XtsRandom, ObjectLayout::Adaptive),
        (Cipher::Xts, ObjectLayout::SegmentEnd),
    ]
}

#[test]
fn an_interrupted_creation_leaves_a_whole_snapshot_or_none() {
    for (cipher, layout) in kinds_to_cut() {
        let test_disk = TestDisk::new(cipher, layout, BLOCKS);
        test_disk.session(|disk| apply_state(disk, 0));
        let work = |disk: &ObjectDisk| {
            drop(disk.create_snapshot("first").and_then(|()| disk.close()));
        };
        cut_everywhere(&test_disk, work, |left| {
            let made = names(left) == ["first"];
            left.session(|disk| {
                assert_state(disk, 0);
                apply_state(disk, 1);
                if !made {
                    disk.create_snapshot("first").unwrap();
                }
            });
            assert_state(&left.open_at("first"), usize::from(!made));
            assert_state(&left.open(), 1);
        });
    }
}

#[test]
fn an_interrupted_removal_is_finished() {
    for (cipher, layout) in kinds_to_cut() {
        let test_disk = test_disk(cipher, layout);
        let work = |disk: &ObjectDisk| {
            drop(disk.remove_snapshot("first").and_then(|()| disk.close()));
        };
        cut_everywhere(&test_disk, work, |left| {
            match left.try_open_at("first") {
                Ok(disk) => assert_state(&disk, 0),
                Err(e) => assert_eq!(e.kind(), Kind::NotFound),
            }
            let begun = left.try_open_at("first").is_err();
            assert_state(&left.open(), 2);
            assert_eq!(names(left).len(), if begun { 1 } else { 2 });
            assert_state(&left.open_at("second"), 1);
        });
    }
}

#[test]
fn an_interrupted_rollback_is_finished() {
    for (cipher, layout) in kinds_to_cut() {
        let test_disk = test_disk(cipher, layout);
        let work = |disk: &ObjectDisk| {
            drop(disk.rollback("first").and_then(|()| disk.close()));
        };
        cut_everywhere(&test_disk, work, |left| {
            let records = list_snapshots(&*left.book).unwrap();
            let begun = records[0].state == SnapshotState::RollingBack;
            let reader = left.open_with(left.stores(), |options| options.access = ObjectAccess::Read);
            if begun {
                assert_eq!(reader.err().unwrap().kind(), Kind::ReadOnly);
            } else {
                drop(reader.unwrap());
            }
            // The snapshots exist at every moment.
            assert_state(&left.open_at("first"), 0);
            assert_state(&left.open_at("second"), 1);
            let disk = left.open();
            let rolled = begun || read(&disk, 0).unwrap() == content(0, 1);
            assert_state(&disk, if rolled { 0 } else { 2 });
            disk.close().unwrap();
            assert_state(&left.open(), if rolled { 0 } else { 2 });
            assert_eq!(names(left), ["first", "second"]);
        });
    }
}

#[test]
fn finishing_a_rollback_can_be_interrupted() {
    let test_disk = test_disk(Cipher::Gcm, ObjectLayout::Adaptive);
    for first in 1.. {
        let begun = test_disk.copied();
        let disk = begun.open_with(ClientCut::after(first, first % 2 == 0).stores(&begun), |_| ()).unwrap();
        if disk.rollback("first").is_ok() {
            assert!(first > 5);
            break;
        }
        drop(disk);
        for second in 0.. {
            let left = begun.copied();
            let cut = ClientCut::after(second, second % 2 == 1);
            drop(left.open_with(cut.stores(&left), |_| ()));
            assert_state(&left.open(), if read(&left.open(), 0).unwrap() == content(0, 1) { 0 } else { 2 });
            assert_state(&left.open_at("second"), 1);
            if !cut.happened() {
                break;
            }
        }
    }
}

#[test]
fn objects_discarded_by_a_rollback_cannot_be_replayed() {
    for layout in ObjectLayout::ALL {
        let test_disk = test_disk(Cipher::Gcm, layout);
        let future: Vec<_> = (0..4).map(|object| test_disk.data.object(object)).collect();
        test_disk.session(|disk| disk.rollback("first").unwrap());
        for (object, state) in (0..4).zip(future) {
            let left = test_disk.copied();
            left.data.replace(object, state);
            let error = read(&left.open(), object * 1024).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{layout:?}, object {object}");
        }
    }
}

#[test]
fn a_rollback_to_a_snapshot_with_a_bad_object_is_refused() {
    for layout in ObjectLayout::ALL {
        let test_disk = test_disk(Cipher::Gcm, layout);
        let record = list_snapshots(&*test_disk.book).unwrap().remove(0);
        let mut past = test_disk.data.at_snapshot(record.data_id).unwrap().list().unwrap();
        past.retain(|object| object * 1024 < BLOCKS);
        assert_eq!(past, [0, 1, 3]);
        for object in past {
            for state in [None, test_disk.data.object(object), test_disk.data.object(2)] {
                let left = test_disk.copied();
                left.data.replace_at(object, record.data_id, state);
                let bad = left.open_at("first");
                assert_eq!(read(&bad, object * 1024).unwrap_err().kind(), Kind::Corrupt);
                left.session(|disk| {
                    let error = disk.rollback("first").unwrap_err();
                    assert_eq!(error.kind(), Kind::Corrupt);
                    assert!(error.to_string().contains(&format!("object {object:016x}")), "{error}");
                    assert_state(disk, 2);
                    apply_state(disk, 2);
                    disk.flush().unwrap();
                });
                assert_state(&left.open_at("second"), 1);
            }
        }
    }
}

#[test]
fn a_check_names_an_object_altered_during_a_rollback() {
    let test_disk = test_disk(Cipher::Gcm, ObjectLayout::Adaptive);
    let record = list_snapshots(&*test_disk.book).unwrap().remove(0);
    let future = test_disk.data.object(1);
    let disk = test_disk.open_with(ClientCut::after(4, false).stores(&test_disk), |_| ()).unwrap();
    assert!(disk.rollback("first").is_err());
    drop(disk);
    assert_eq!(list_snapshots(&*test_disk.book).unwrap()[0].state, SnapshotState::RollingBack);
    test_disk.data.replace_at(1, record.data_id, future);
    let disk = test_disk.open();
    assert_reads(&disk, 0, 1);
    let mut bad = vec![];
    let report = disk.check(|_| Ok(()), |b| bad.push(b)).unwrap();
    assert_eq!(report.bad, 1024);
    assert!(bad.iter().all(|b| b.error.to_string().contains("object 0000000000000001")));
    disk.close().unwrap();
}

/// An object that verified when the rollback was decided and is gone, or replaced, at its turn is
/// not made valid.
#[test]
fn a_rollback_does_not_validate_an_object_altered_after_its_check() {
    for layout in ObjectLayout::ALL {
        for gone in [true, false] {
            let test_disk = test_disk(Cipher::Gcm, layout);
            let record = list_snapshots(&*test_disk.book).unwrap().remove(0);
            let (data, later) = (test_disk.data.clone(), test_disk.data.object(1));
            let state = if gone { None } else { later };
            let act = move || data.replace_at(1, record.data_id, state);
            let book = Arc::new(RollbackHook::wrap(test_disk.book.reopened(), act));
            let stores = Stores { data: Arc::new(test_disk.data.reopened()), book };
            let disk = test_disk.open_with(stores, |_| ()).unwrap();
            disk.rollback("first").unwrap();
            assert_reads(&disk, 0, 1);
            assert_eq!(read(&disk, 1024).unwrap_err().kind(), Kind::Corrupt, "{layout:?}, gone: {gone}");
            disk.close().unwrap();
            let report = test_disk.open().check(|_| Ok(()), |_| ()).unwrap();
            assert_eq!(report.bad, 1024, "{layout:?}, gone: {gone}");
        }
    }
}

/// A store that lists no objects.
struct UnlistingStore(Arc<dyn ObjectStore>);

impl ObjectInterceptor for UnlistingStore {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }
    fn list(&self) -> Result<Vec<u64>> {
        Ok(vec![])
    }
    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        Ok(Arc::new(InterceptedObjects(UnlistingStore(self.0.at_snapshot(id)?))))
    }
}

/// With a cipher that authenticates, a rollback does not depend on the list: it restores all
/// objects that the version table counts.
#[test]
fn an_object_missing_in_the_list_is_rolled_back() {
    for layout in ObjectLayout::ALL {
        let test_disk = test_disk(Cipher::Gcm, layout);
        let data = Arc::new(InterceptedObjects(UnlistingStore(Arc::new(test_disk.data.reopened()))));
        let disk =
            test_disk.open_with(Stores { data, book: Arc::new(test_disk.book.reopened()) }, |_| ()).unwrap();
        disk.rollback("first").unwrap();
        disk.close().unwrap();
        drop(disk);
        assert_state(&test_disk.open(), 0);
    }
}

#[test]
fn a_rollback_ignores_objects_beyond_the_disk() {
    for (cipher, layout) in kinds_to_cut() {
        let test_disk = test_disk(cipher, layout);
        for object in [BLOCKS / 1024 + 1, 300_000, u64::MAX] {
            test_disk.poke(object, 0, b"a stray");
        }
        test_disk.session(|disk| {
            disk.rollback("first").unwrap();
            assert_state(disk, 0);
        });
        assert_eq!(test_disk.data.object(u64::MAX).unwrap().bytes(), b"a stray");
    }
}

#[test]
fn a_rollback_of_a_grown_disk_keeps_its_length() {
    for (cipher, layout) in kinds_to_cut() {
        let mut test_disk = test_disk(cipher, layout);
        test_disk.params = test_disk.params.grown(260_000 * 1024).unwrap();
        test_disk.session(|disk| {
            write(disk, BLOCKS + 10, 1, 5);
            write(disk, 255_000 * 1024, 1, 5);
        });
        assert_eq!(test_disk.open_at("first").blocks(), BLOCKS);
        let rolled = |test_disk: &TestDisk| {
            let disk = test_disk.open();
            assert_eq!(disk.blocks(), 260_000 * 1024);
            STATES[0].iter().for_each(|(block, stamp)| assert_reads(&disk, *block, *stamp));
            assert_reads(&disk, BLOCKS + 10, 0);
            assert_reads(&disk, 255_000 * 1024, 0);
        };
        test_disk.session(|disk| disk.rollback("first").unwrap());
        rolled(&test_disk);
        test_disk.session(|disk| disk.rollback("second").unwrap());
        test_disk.session(|disk| disk.rollback("first").unwrap());
        rolled(&test_disk);
    }
}
