//! Tests that lying media, folders and stores return earlier, foreign or forged data, and true data
//! where they are told to.

use lacuna_medium::{
    Folder, KeySelection, Medium, ObjectStep, ObjectStore, ObjectTransaction, Query, ReadExtent,
};
use lacuna_sim::{
    CrashFolder, CrashMedium, HonestReads, Lies, LyingObjects, MediumImage, MemoryObjects, Rng,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const PAGE: u64 = 4096;

#[allow(clippy::unnecessary_wraps, reason = "every caller wants an option")]
fn lie_always(seed: u64) -> Option<Lies> {
    Some(Lies { per_mille: 1000, rng: Rng::new(seed), may_forge: false })
}

/// A medium with its first three pages filled with 1, 2 and 3 in turn, and its fourth page with 9.
fn medium_with_history() -> CrashMedium {
    let medium = CrashMedium::new(8 * PAGE);
    medium.keep_history();
    for version in 1..=3 {
        medium.write_at(0, &[version; 3 * PAGE as usize]).unwrap();
    }
    medium.write_at(3 * PAGE, &[9; PAGE as usize]).unwrap();
    medium
}

/// The bytes that reads of one page return.
fn read_repeatedly(medium: &CrashMedium, page: u64, reads: usize) -> Vec<u8> {
    let mut buf = [0; PAGE as usize];
    let mut read = || {
        medium.read_at(page * PAGE, &mut buf).unwrap();
        assert!(buf.iter().all(|byte| *byte == buf[0]), "a page is of one version");
        buf[0]
    };
    (0..reads).map(|_| read()).collect()
}

#[test]
fn lying_reads_return_every_version_and_other_places() {
    let medium = medium_with_history();
    assert_eq!(read_repeatedly(&medium, 0, 3), [3, 3, 3]);
    medium.set_lies(lie_always(1));
    let read_values: BTreeSet<u8> = read_repeatedly(&medium, 0, 200).into_iter().collect();
    assert_eq!(read_values, BTreeSet::from([0, 1, 2, 3, 9]));
    medium.set_lies(None);
    assert_eq!(read_repeatedly(&medium, 0, 2), [3, 3]);
}

#[test]
fn the_same_seed_gives_the_same_lies_on_every_fork() {
    let medium = medium_with_history();
    let lies_of_seed = |seed| {
        let fork = medium.fork();
        fork.set_lies(lie_always(seed));
        read_repeatedly(&fork, 1, 50)
    };
    assert_eq!(lies_of_seed(5), lies_of_seed(5));
    assert_ne!(lies_of_seed(5), lies_of_seed(6));
    assert_eq!(read_repeatedly(&medium, 1, 1), [3], "the medium itself is honest");
}

#[test]
fn first_reads_are_honest_if_requested() {
    let medium = medium_with_history();
    medium.set_lies_except(lie_always(1), HonestReads { first_reads: true, ..HonestReads::default() });
    let mut start = [0; 64];
    medium.read_at(PAGE, &mut start).unwrap();
    assert_eq!(start, [3; 64]);
    let mut rest = [0; PAGE as usize - 64];
    medium.read_at(PAGE + 64, &mut rest).unwrap();
    assert!(rest.iter().all(|byte| *byte == 3), "the part that was not read yet");
    let again: BTreeSet<u8> = read_repeatedly(&medium, 1, 100).into_iter().collect();
    assert!(again.len() > 2, "{again:?}");
    assert_eq!(read_repeatedly(&medium, 0, 1), [3]);
}

#[test]
fn reads_of_honest_ranges_never_lie() {
    let medium = medium_with_history();
    medium.set_lies_except(
        lie_always(1),
        HonestReads { ranges: std::iter::once(PAGE..2 * PAGE).collect(), ..HonestReads::default() },
    );
    assert_eq!(read_repeatedly(&medium, 1, 50), [3; 50]);
    assert!(read_repeatedly(&medium, 0, 50).iter().any(|byte| *byte != 3));
}

#[test]
fn forged_data_was_never_written() {
    let medium = medium_with_history();
    medium.set_lies(Some(Lies { may_forge: true, ..lie_always(1).unwrap() }));
    let (mut whole, mut flipped, mut spliced) = (0, 0, 0);
    for _ in 0..300 {
        let mut page = [0; PAGE as usize];
        medium.read_at(0, &mut page).unwrap();
        let mut counts = BTreeMap::<u8, u64>::new();
        page.iter().for_each(|byte| *counts.entry(*byte).or_default() += 1);
        let versions = counts.keys().all(|byte| [0, 1, 2, 3, 9].contains(byte));
        match counts.values().min() {
            _ if counts.len() == 1 => whole += 1,
            Some(1) => flipped += 1,
            _ => spliced += u64::from(versions),
        }
    }
    assert!(
        whole > 150 && flipped > 10 && spliced > 10,
        "{whole} whole, {flipped} flipped, {spliced} spliced"
    );
}

#[test]
fn lookups_return_earlier_and_other_files() {
    let folder = CrashFolder::new();
    folder.keep_history();
    let write = |name: &str, byte: u8| folder.create(name).unwrap().write_at(0, &[byte]).unwrap();
    write("a", 1);
    write("a", 2);
    write("b", 3);
    write("gone", 4);
    folder.remove("gone").unwrap();
    let lookup = |name: &str| {
        let mut byte = [0];
        let file = folder.open(name).ok()?;
        file.read_at(0, &mut byte).unwrap();
        Some(byte[0])
    };
    assert_eq!((lookup("a"), lookup("b"), lookup("gone")), (Some(2), Some(3), None));
    assert_eq!(folder.list("").unwrap(), ["a", "b"]);
    folder.set_name_lies(lie_always(1));
    let all = |name| (0..200).map(|_| lookup(name)).collect::<BTreeSet<_>>();
    assert_eq!(all("a"), BTreeSet::from([None, Some(1), Some(2), Some(3)]));
    assert_eq!(all("gone"), BTreeSet::from([None, Some(2), Some(3), Some(4)]));
    let listed: BTreeSet<String> = (0..200).flat_map(|_| folder.list("").unwrap()).collect();
    assert_eq!(listed, ["a", "b", "gone"].map(str::to_owned).into());
    assert!((0..200).any(|_| folder.list("").unwrap().is_empty()));
    folder.set_name_lies(None);
    assert_eq!((lookup("a"), lookup("gone")), (Some(2), None));
    assert_eq!(folder.list("").unwrap(), ["a", "b"]);
}

/// A file that an adversary restores keeps its earlier versions like other files.
#[test]
fn a_restored_file_keeps_its_earlier_versions() {
    let folder = CrashFolder::new();
    folder.keep_history();
    for version in [1u8, 2] {
        folder.replace_file("a", Some(&MediumImage::from(vec![version; 10])));
    }
    folder.set_lies(lie_always(1).as_ref(), |_| true);
    let file = folder.open("a").unwrap();
    let read_values = (0..100).map(|_| {
        let mut byte = [0];
        file.read_at(0, &mut byte).unwrap();
        byte[0]
    });
    assert_eq!(read_values.collect::<BTreeSet<u8>>(), BTreeSet::from([1, 2]));
}

/// Sets eight bytes and the value of a key of an object to `byte`.
fn write_object(store: &LyingObjects, object: u64, byte: u8) -> u64 {
    let (data, keys) = ([byte; 8], ObjectStep::SetKeys(vec![(b"k".to_vec(), vec![byte])]));
    let steps = vec![ObjectStep::Write { offset: 0, data: &data }, keys];
    store.apply_one(ObjectTransaction { object, steps }).unwrap()
}

/// The first byte of object 7.
fn byte(store: &dyn ObjectStore) -> u8 {
    let mut buf = [0xff];
    let extents = vec![ReadExtent { offset: 0, buf: &mut buf }];
    store.query_one(Query { object: 7, extents, keys: KeySelection::None }).unwrap();
    buf[0]
}

#[test]
fn lists_and_snapshots_lie() {
    let store = LyingObjects::wrap(Arc::new(MemoryObjects::new(true)));
    let mut ids = vec![];
    for version in 1..=2 {
        write_object(&store, 7, version);
        ids.push(store.create_snapshot().unwrap());
        store.set_snapshots(&ids).unwrap();
    }
    write_object(&store, 7, 3);
    write_object(&store, 8, 9);
    assert_eq!(byte(&*store.at_snapshot(ids[0]).unwrap()), 1);
    let fork = store.fork();
    fork.set_lies(lie_always(1));
    let views: Vec<_> = (0..300).map(|_| fork.at_snapshot(ids[0])).collect();
    assert!(views.iter().any(Result::is_err), "it is said not to be there");
    let read_values: BTreeSet<u8> = views.iter().flatten().map(|view| byte(&**view)).collect();
    assert_eq!(read_values, BTreeSet::from([0, 1, 2, 3, 9]));
    let lists: BTreeSet<Vec<u64>> = (0..200).map(|_| fork.list().unwrap()).collect();
    assert!(lists.contains(&vec![]) && lists.contains(&vec![7]) && lists.contains(&vec![7, 8]), "{lists:?}");
    let rolled_back = |seed| {
        let fork = store.fork();
        fork.set_lies(lie_always(seed));
        fork.roll_back(7, ids[0]).unwrap();
        fork.set_lies(None);
        byte(&fork)
    };
    let told: BTreeSet<u8> = (0..100).map(rolled_back).collect();
    assert!(told.is_superset(&BTreeSet::from([0, 1, 2, 3])), "{told:?}");
    assert_eq!((byte(&store), store.list().unwrap()), (3, vec![7, 8]), "the store itself is honest");
    store.roll_back(7, ids[0]).unwrap();
    assert_eq!(byte(&store), 1);
}

#[test]
fn queries_return_earlier_other_and_mixed_objects() {
    let store = LyingObjects::wrap(Arc::new(MemoryObjects::new(true)));
    let versions: Vec<u64> = (1..=3).map(|byte| write_object(&store, 7, byte)).collect();
    write_object(&store, 8, 9);
    let ask = |store: &LyingObjects| {
        let mut buf = [0xff; 8];
        let extents = vec![ReadExtent { offset: 0, buf: &mut buf }];
        let keys = KeySelection::These(vec![b"k".to_vec()]);
        let found = store.query_one(Query { object: 7, extents, keys }).unwrap();
        (buf[0], found.pairs.first().map(|(_, value)| value[0]), found.version)
    };
    assert_eq!(ask(&store), (3, Some(3), Some(versions[2])));
    let answers_of_seed = |seed| -> Vec<_> {
        let fork = store.fork();
        fork.set_lies(lie_always(seed));
        (0..300).map(|_| ask(&fork)).collect()
    };
    assert_eq!(answers_of_seed(1), answers_of_seed(1));
    let (bytes, keys): (BTreeSet<u8>, BTreeSet<Option<u8>>) =
        answers_of_seed(1).into_iter().map(|(byte, key, _)| (byte, key)).unzip();
    assert_eq!(bytes, BTreeSet::from([0, 1, 2, 3, 9]));
    assert_eq!(keys, BTreeSet::from([None, Some(1), Some(2), Some(3), Some(9)]));
    let mixed = answers_of_seed(1).iter().filter(|(byte, key, _)| key.unwrap_or(0) != *byte).count();
    assert!(mixed > 30, "{mixed}");
    assert!(answers_of_seed(1).iter().any(|(byte, _, version)| *byte == 1 && *version == Some(versions[2])));
    assert_eq!(ask(&store), (3, Some(3), Some(versions[2])), "the store itself is honest");
}
