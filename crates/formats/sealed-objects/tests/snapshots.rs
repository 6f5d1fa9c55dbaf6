//! Snapshots of disks on objects: their content, rollbacks to them, and recovery after a client
//! died during a creation, removal or rollback.

mod fixture;

use fixture::*;
use lacuna_contracts::Result;
use lacuna_contracts::{BlockAddr, Disk, Kind};
use lacuna_crypto::Cipher;
use lacuna_medium::{Found, MemoryObjects, ObjectStore, Query, SnapshotId, Transaction};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, SnapshotState, Stores, list_snapshots};
use std::sync::{Arc, Mutex};

const BLOCKS: u64 = 3 * 1024 + 100;

/// Blocks and their stamps in each of three states of a disk: parts of segments, a whole segment, a
/// discarded one, and the last block.
const STATES: [&[(u64, u64)]; 3] = [
    &[(0, 1), (5, 1), (63, 1), (64, 1), (1024, 1), (2000, 1), (2048, 0), (3000, 0), (BLOCKS - 1, 1)],
    &[(0, 2), (5, 1), (63, 2), (64, 1), (1024, 0), (2000, 0), (2048, 2), (3000, 2), (BLOCKS - 1, 1)],
    &[(0, 2), (5, 3), (63, 2), (64, 3), (1024, 3), (2000, 0), (2048, 0), (3000, 2), (BLOCKS - 1, 0)],
];

/// Brings a disk from the previous state to this one.
fn enter(disk: &ObjectDisk, state: usize) {
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
fn scene(cipher: Cipher, layout: ObjectLayout) -> Scene {
    let scene = Scene::new(cipher, layout, BLOCKS);
    scene.session(|disk| {
        enter(disk, 0);
        disk.create_snapshot("first").unwrap();
        enter(disk, 1);
        disk.create_snapshot("second").unwrap();
        enter(disk, 2);
    });
    scene
}

fn names(scene: &Scene) -> Vec<String> {
    list_snapshots(&*scene.book).unwrap().into_iter().map(|record| record.name).collect()
}

#[test]
fn each_snapshot_shows_its_time_and_a_rollback_brings_it_back() {
    for (cipher, layout) in all_kinds() {
        let scene = scene(cipher, layout);
        let read_all = |head: usize| {
            assert_state(&scene.open_at("first"), 0);
            assert_state(&scene.open_at("second"), 1);
            assert_state(&scene.open(), head);
        };
        read_all(2);
        for (name, state) in [("first", 0), ("second", 1), ("first", 0)] {
            scene.session(|disk| {
                disk.rollback(name).unwrap();
                assert_state(disk, state);
            });
            read_all(state);
        }
        // Writes continue after a rollback, starting at the restored state.
        scene.session(|disk| enter(disk, 1));
        read_all(1);
        scene.session(|disk| disk.remove_snapshot("first").unwrap());
        assert_eq!(names(&scene), ["second"]);
        assert_eq!(scene.try_open_at("first").err().unwrap().kind(), Kind::NotFound);
        assert_state(&scene.open_at("second"), 1);
        scene.session(|disk| disk.remove_snapshot("second").unwrap());
        assert_state(&scene.open(), 1);
    }
}

#[test]
fn a_snapshot_is_read_only_and_what_is_wrong_is_said() {
    let scene = scene(Cipher::Gcm, ObjectLayout::Adaptive);
    let past = scene.open_at("first");
    assert!(past.read_only());
    assert_eq!(past.write(BlockAddr(0), &content(0, 9)).unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(past.create_snapshot("x").unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(past.rollback("second").unwrap_err().kind(), Kind::ReadOnly);
    past.close().unwrap();
    scene.session(|disk| {
        let said = |result: lacuna_contracts::Result<()>, kind, words: &str| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(words), "{error}");
        };
        said(disk.create_snapshot("first"), Kind::Exists, "a snapshot of this name");
        said(disk.create_snapshot("a/b"), Kind::Usage, "a/b");
        said(disk.create_snapshot(&"n".repeat(65)), Kind::Usage, "1 to 64");
        said(disk.remove_snapshot("third"), Kind::NotFound, "first, second");
        said(disk.rollback("third"), Kind::NotFound, "first, second");
        // The errors changed nothing.
        write(disk, 7, 1, 7);
        disk.flush().unwrap();
        assert_reads(disk, 7, 7);
    });
    let records = list_snapshots(&*scene.book).unwrap();
    assert_eq!(
        records.iter().map(|r| (r.number, r.blocks, r.state)).collect::<Vec<_>>(),
        [(1, BLOCKS, SnapshotState::Ready), (2, BLOCKS, SnapshotState::Ready)]
    );
}

#[test]
fn numbers_are_never_given_twice() {
    let scene = Scene::new(Cipher::Gcm, ObjectLayout::SegmentEnd, BLOCKS);
    scene.session(|disk| {
        disk.create_snapshot("a").unwrap();
        disk.remove_snapshot("a").unwrap();
        disk.create_snapshot("a").unwrap();
    });
    assert_eq!(list_snapshots(&*scene.book).unwrap()[0].number, 2);
    scene.write(0, 1, 1);
    let meta = meta_of(&scene.data.object(0).unwrap(), &scene.params, 0);
    assert_eq!(meta[28..], 2u32.to_le_bytes());
    // An entry written after the snapshot does not pass for one of the snapshot.
    let before = scene.data.object(0);
    scene.session(|disk| disk.create_snapshot("b").unwrap());
    scene.write(0, 1, 2);
    assert_reads(&scene.open_at("b"), 0, 1);
    assert_eq!(scene.try_open_at("a").and_then(|disk| read(&disk, 0)).unwrap(), content(0, 0));
    scene.data.replace(0, before);
    assert_eq!(read(&scene.open(), 0).unwrap_err().kind(), Kind::Corrupt);
}

/// Cuts a client off at every change that `work` makes, before and after the change happens, and
/// calls `look` with the state of the stores.
fn cut_everywhere(scene: &Scene, work: impl Fn(&ObjectDisk), look: impl Fn(&Scene)) {
    for unheard in [false, true] {
        for changes in 0.. {
            let left = scene.copied();
            let cut = Cut::after(changes, unheard);
            if let Ok(disk) = left.open_with(cut.stores(&left), |_| ()) {
                work(&disk);
            }
            look(&left);
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
fn a_snapshot_cut_in_the_making_is_there_whole_or_not() {
    for (cipher, layout) in kinds_to_cut() {
        let scene = Scene::new(cipher, layout, BLOCKS);
        scene.session(|disk| enter(disk, 0));
        let work = |disk: &ObjectDisk| {
            drop(disk.create_snapshot("first").and_then(|()| disk.close()));
        };
        cut_everywhere(&scene, work, |left| {
            let made = names(left) == ["first"];
            left.session(|disk| {
                assert_state(disk, 0);
                enter(disk, 1);
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
fn a_removal_cut_in_the_midst_is_finished() {
    for (cipher, layout) in kinds_to_cut() {
        let scene = scene(cipher, layout);
        let work = |disk: &ObjectDisk| {
            drop(disk.remove_snapshot("first").and_then(|()| disk.close()));
        };
        cut_everywhere(&scene, work, |left| {
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
fn a_rollback_cut_in_the_midst_is_finished() {
    for (cipher, layout) in kinds_to_cut() {
        let scene = scene(cipher, layout);
        let work = |disk: &ObjectDisk| {
            drop(disk.rollback("first").and_then(|()| disk.close()));
        };
        cut_everywhere(&scene, work, |left| {
            let records = list_snapshots(&*left.book).unwrap();
            let begun = records[0].state == SnapshotState::RollingBack;
            let reader = left.open_with(left.stores(), |options| options.read_only = true);
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
fn finishing_a_rollback_can_be_cut_too() {
    let scene = scene(Cipher::Gcm, ObjectLayout::Adaptive);
    for first in 1.. {
        let begun = scene.copied();
        let disk = begun.open_with(Cut::after(first, first % 2 == 0).stores(&begun), |_| ()).unwrap();
        if disk.rollback("first").is_ok() {
            assert!(first > 5);
            break;
        }
        drop(disk);
        for second in 0.. {
            let left = begun.copied();
            let cut = Cut::after(second, second % 2 == 1);
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
fn what_a_rollback_threw_away_cannot_be_put_back() {
    for layout in ObjectLayout::ALL {
        let scene = scene(Cipher::Gcm, layout);
        let future: Vec<_> = (0..4).map(|object| scene.data.object(object)).collect();
        scene.session(|disk| disk.rollback("first").unwrap());
        for (object, state) in (0..4).zip(future) {
            let left = scene.copied();
            left.data.replace(object, state);
            let error = read(&left.open(), object * 1024).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{layout:?}, object {object}");
        }
    }
}

#[test]
fn a_snapshot_with_a_bad_object_is_not_rolled_back_to() {
    for layout in ObjectLayout::ALL {
        let scene = scene(Cipher::Gcm, layout);
        let record = list_snapshots(&*scene.book).unwrap().remove(0);
        let mut past = scene.data.at_snapshot(record.data_id).unwrap().list().unwrap();
        past.retain(|object| object * 1024 < BLOCKS);
        assert_eq!(past, [0, 1, 3]);
        for object in past {
            for state in [None, scene.data.object(object), scene.data.object(2)] {
                let left = scene.copied();
                left.data.replace_at(object, record.data_id, state);
                let bad = left.open_at("first");
                assert_eq!(read(&bad, object * 1024).unwrap_err().kind(), Kind::Corrupt);
                left.session(|disk| {
                    let error = disk.rollback("first").unwrap_err();
                    assert_eq!(error.kind(), Kind::Corrupt);
                    assert!(error.to_string().contains(&format!("object {object:016x}")), "{error}");
                    assert_state(disk, 2);
                    enter(disk, 2);
                    disk.flush().unwrap();
                });
                assert_state(&left.open_at("second"), 1);
            }
        }
    }
}

#[test]
fn an_object_that_turns_bad_in_the_midst_of_a_rollback_is_named() {
    let scene = scene(Cipher::Gcm, ObjectLayout::Adaptive);
    let record = list_snapshots(&*scene.book).unwrap().remove(0);
    let future = scene.data.object(1);
    let disk = scene.open_with(Cut::after(4, false).stores(&scene), |_| ()).unwrap();
    assert!(disk.rollback("first").is_err());
    drop(disk);
    assert_eq!(list_snapshots(&*scene.book).unwrap()[0].state, SnapshotState::RollingBack);
    scene.data.replace_at(1, record.data_id, future);
    let disk = scene.open();
    assert_reads(&disk, 0, 1);
    let mut bad = vec![];
    let report = disk.check(|_| Ok(()), |b| bad.push(b)).unwrap();
    assert_eq!(report.bad, 1024);
    assert!(bad.iter().all(|b| b.error.to_string().contains("object 0000000000000001")));
    disk.close().unwrap();
}

/// The book of a disk; runs `act` as soon as its table says that a rollback has begun.
struct Watched {
    inner: MemoryObjects,
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl ObjectStore for Watched {
    fn apply(&self, batch: &[Transaction<'_>]) -> Vec<Result<u64>> {
        let applied = self.inner.apply(batch);
        let table = list_snapshots(&self.inner).unwrap();
        if table.iter().any(|snapshot| snapshot.state == SnapshotState::RollingBack) {
            self.act.lock().unwrap().take().into_iter().for_each(|act| act());
        }
        applied
    }
    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<Found>> {
        self.inner.query(batch)
    }
    delegate_to_inner!();
}

/// An object that verified when the rollback was decided and is gone, or replaced, at its turn is
/// not made valid.
#[test]
fn a_rollback_makes_nothing_good_that_it_did_not_compare() {
    for layout in ObjectLayout::ALL {
        for gone in [true, false] {
            let scene = scene(Cipher::Gcm, layout);
            let record = list_snapshots(&*scene.book).unwrap().remove(0);
            let (data, later) = (scene.data.clone(), scene.data.object(1));
            let state = if gone { None } else { later };
            let act: Box<dyn FnOnce() + Send> = Box::new(move || data.replace_at(1, record.data_id, state));
            let book = Arc::new(Watched { inner: scene.book.reopened(), act: Mutex::new(Some(act)) });
            let stores = Stores { data: Arc::new(scene.data.reopened()), book };
            let disk = scene.open_with(stores, |_| ()).unwrap();
            disk.rollback("first").unwrap();
            assert_reads(&disk, 0, 1);
            assert_eq!(read(&disk, 1024).unwrap_err().kind(), Kind::Corrupt, "{layout:?}, gone: {gone}");
            disk.close().unwrap();
            let report = scene.open().check(|_| Ok(()), |_| ()).unwrap();
            assert_eq!(report.bad, 1024, "{layout:?}, gone: {gone}");
        }
    }
}

/// A store that lists no objects.
struct Unlisted(Arc<dyn ObjectStore>);

impl ObjectStore for Unlisted {
    fn apply(&self, batch: &[Transaction<'_>]) -> Vec<Result<u64>> {
        self.0.apply(batch)
    }
    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<Found>> {
        self.0.query(batch)
    }
    fn object_limit(&self) -> u64 {
        self.0.object_limit()
    }
    fn has_keys(&self) -> bool {
        self.0.has_keys()
    }
    fn list(&self) -> Result<Vec<u64>> {
        Ok(vec![])
    }
    fn create_snapshot(&self) -> Result<SnapshotId> {
        self.0.create_snapshot()
    }
    fn remove_snapshot(&self, id: SnapshotId) -> Result<()> {
        self.0.remove_snapshot(id)
    }
    fn set_snapshots(&self, ids: &[SnapshotId]) -> Result<()> {
        self.0.set_snapshots(ids)
    }
    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        self.0.roll_back(object, id)
    }
    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        Ok(Arc::new(Unlisted(self.0.at_snapshot(id)?)))
    }
}

/// With a cipher that authenticates, a rollback does not depend on the list: it restores all
/// objects that the version table counts.
#[test]
fn an_object_that_is_not_listed_is_rolled_back() {
    for layout in ObjectLayout::ALL {
        let scene = scene(Cipher::Gcm, layout);
        let data = Arc::new(Unlisted(Arc::new(scene.data.reopened())));
        let disk = scene.open_with(Stores { data, book: Arc::new(scene.book.reopened()) }, |_| ()).unwrap();
        disk.rollback("first").unwrap();
        disk.close().unwrap();
        drop(disk);
        assert_state(&scene.open(), 0);
    }
}

#[test]
fn objects_beyond_the_disk_are_in_nobodys_way() {
    for (cipher, layout) in kinds_to_cut() {
        let scene = scene(cipher, layout);
        for object in [BLOCKS / 1024 + 1, 300_000, u64::MAX] {
            scene.poke(object, 0, b"a stray");
        }
        scene.session(|disk| {
            disk.rollback("first").unwrap();
            assert_state(disk, 0);
        });
        assert_eq!(scene.data.object(u64::MAX).unwrap().bytes(), b"a stray");
    }
}

#[test]
fn a_disk_that_grew_since_is_rolled_back_in_its_present_length() {
    for (cipher, layout) in kinds_to_cut() {
        let mut scene = scene(cipher, layout);
        scene.params = scene.params.grown(260_000 * 1024).unwrap();
        scene.session(|disk| {
            write(disk, BLOCKS + 10, 1, 5);
            write(disk, 255_000 * 1024, 1, 5);
        });
        assert_eq!(scene.open_at("first").blocks(), BLOCKS);
        let rolled = |scene: &Scene| {
            let disk = scene.open();
            assert_eq!(disk.blocks(), 260_000 * 1024);
            STATES[0].iter().for_each(|(block, stamp)| assert_reads(&disk, *block, *stamp));
            assert_reads(&disk, BLOCKS + 10, 0);
            assert_reads(&disk, 255_000 * 1024, 0);
        };
        scene.session(|disk| disk.rollback("first").unwrap());
        rolled(&scene);
        scene.session(|disk| disk.rollback("second").unwrap());
        scene.session(|disk| disk.rollback("first").unwrap());
        rolled(&scene);
    }
}
