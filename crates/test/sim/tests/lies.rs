//! Tests that lying media, folders and stores return earlier, foreign or forged data, and true data
//! where they are told to.

use lacuna_medium::{Folder, Keys, Medium, MemoryObjects, ObjectStore, Query, ReadExtent, Step, Transaction};
use lacuna_sim::{CrashFolder, CrashMedium, Image, Lies, LyingObjects, Rng, Truths};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const PAGE: u64 = 4096;

#[allow(clippy::unnecessary_wraps, reason = "every caller wants an option")]
fn always(seed: u64) -> Option<Lies> {
    Some(Lies { of_a_thousand: 1000, rng: Rng::new(seed), forges: false })
}

/// A medium with its first three pages filled with 1, 2 and 3 in turn, and its fourth page with 9.
fn lived() -> CrashMedium {
    let medium = CrashMedium::new(8 * PAGE);
    medium.keep_past();
    for version in 1..=3 {
        medium.write_at(0, &[version; 3 * PAGE as usize]).unwrap();
    }
    medium.write_at(3 * PAGE, &[9; PAGE as usize]).unwrap();
    medium
}

/// The bytes that reads of one page return.
fn answers(medium: &CrashMedium, page: u64, reads: usize) -> Vec<u8> {
    let mut buf = [0; PAGE as usize];
    let mut read = || {
        medium.read_at(page * PAGE, &mut buf).unwrap();
        assert!(buf.iter().all(|byte| *byte == buf[0]), "a page is of one version");
        buf[0]
    };
    (0..reads).map(|_| read()).collect()
}

#[test]
fn every_version_is_told_and_that_of_another_place() {
    let medium = lived();
    assert_eq!(answers(&medium, 0, 3), [3, 3, 3]);
    medium.lie(always(1));
    let told: BTreeSet<u8> = answers(&medium, 0, 200).into_iter().collect();
    assert_eq!(told, BTreeSet::from([0, 1, 2, 3, 9]));
    medium.lie(None);
    assert_eq!(answers(&medium, 0, 2), [3, 3]);
}

#[test]
fn the_same_seed_tells_the_same_lies_on_every_fork() {
    let medium = lived();
    let told = |seed| {
        let fork = medium.fork();
        fork.lie(always(seed));
        answers(&fork, 1, 50)
    };
    assert_eq!(told(5), told(5));
    assert_ne!(told(5), told(6));
    assert_eq!(answers(&medium, 1, 1), [3], "the medium itself is honest");
}

#[test]
fn first_reads_are_true_where_they_are_to_be() {
    let medium = lived();
    medium.lie_but(always(1), Truths { first: true, ..Truths::default() });
    let mut start = [0; 64];
    medium.read_at(PAGE, &mut start).unwrap();
    assert_eq!(start, [3; 64]);
    let mut rest = [0; PAGE as usize - 64];
    medium.read_at(PAGE + 64, &mut rest).unwrap();
    assert!(rest.iter().all(|byte| *byte == 3), "what was not read yet");
    let again: BTreeSet<u8> = answers(&medium, 1, 100).into_iter().collect();
    assert!(again.len() > 2, "{again:?}");
    assert_eq!(answers(&medium, 0, 1), [3]);
}

#[test]
fn some_places_are_always_told_as_they_are() {
    let medium = lived();
    medium.lie_but(always(1), Truths { at: std::iter::once(PAGE..2 * PAGE).collect(), ..Truths::default() });
    assert_eq!(answers(&medium, 1, 50), [3; 50]);
    assert!(answers(&medium, 0, 50).iter().any(|byte| *byte != 3));
}

#[test]
fn what_is_forged_never_was() {
    let medium = lived();
    medium.lie(Some(Lies { forges: true, ..always(1).unwrap() }));
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
fn names_are_told_as_they_were_or_as_others() {
    let folder = CrashFolder::new();
    folder.keep_past();
    let write = |name: &str, byte: u8| folder.create(name).unwrap().write_at(0, &[byte]).unwrap();
    write("a", 1);
    write("a", 2);
    write("b", 3);
    write("gone", 4);
    folder.remove("gone").unwrap();
    let told = |name: &str| {
        let mut byte = [0];
        let file = folder.open(name).ok()?;
        file.read_at(0, &mut byte).unwrap();
        Some(byte[0])
    };
    assert_eq!((told("a"), told("b"), told("gone")), (Some(2), Some(3), None));
    assert_eq!(folder.list("").unwrap(), ["a", "b"]);
    folder.lie_about_names(always(1));
    let all = |name| (0..200).map(|_| told(name)).collect::<BTreeSet<_>>();
    assert_eq!(all("a"), BTreeSet::from([None, Some(1), Some(2), Some(3)]));
    assert_eq!(all("gone"), BTreeSet::from([None, Some(2), Some(3), Some(4)]));
    let listed: BTreeSet<String> = (0..200).flat_map(|_| folder.list("").unwrap()).collect();
    assert_eq!(listed, ["a", "b", "gone"].map(str::to_owned).into());
    assert!((0..200).any(|_| folder.list("").unwrap().is_empty()));
    folder.lie_about_names(None);
    assert_eq!((told("a"), told("gone")), (Some(2), None));
    assert_eq!(folder.list("").unwrap(), ["a", "b"]);
}

/// A file that an adversary restores keeps its earlier versions like other files.
#[test]
fn what_was_put_back_is_told_too() {
    let folder = CrashFolder::new();
    folder.keep_past();
    for version in [1u8, 2] {
        folder.put("a", Some(&Image::from(vec![version; 10])));
    }
    folder.lie(always(1).as_ref(), |_| true);
    let file = folder.open("a").unwrap();
    let told = (0..100).map(|_| {
        let mut byte = [0];
        file.read_at(0, &mut byte).unwrap();
        byte[0]
    });
    assert_eq!(told.collect::<BTreeSet<u8>>(), BTreeSet::from([1, 2]));
}

/// Sets eight bytes and the value of a key of an object to `byte`.
fn set(store: &LyingObjects, object: u64, byte: u8) -> u64 {
    let (data, keys) = ([byte; 8], Step::SetKeys(vec![(b"k".to_vec(), vec![byte])]));
    let steps = vec![Step::Write { offset: 0, data: &data }, keys];
    store.apply_one(Transaction { object, steps }).unwrap()
}

/// The first byte of object 7.
fn byte(store: &dyn ObjectStore) -> u8 {
    let mut buf = [0xff];
    let extents = vec![ReadExtent { offset: 0, buf: &mut buf }];
    store.query_one(Query { object: 7, extents, keys: Keys::None }).unwrap();
    buf[0]
}

#[test]
fn lists_and_snapshots_are_told_as_others() {
    let store = LyingObjects::over(Arc::new(MemoryObjects::new(true)));
    let mut ids = vec![];
    for version in 1..=2 {
        set(&store, 7, version);
        ids.push(store.create_snapshot().unwrap());
        store.set_snapshots(&ids).unwrap();
    }
    set(&store, 7, 3);
    set(&store, 8, 9);
    assert_eq!(byte(&*store.at_snapshot(ids[0]).unwrap()), 1);
    let fork = store.fork();
    fork.lie(always(1));
    let views: Vec<_> = (0..300).map(|_| fork.at_snapshot(ids[0])).collect();
    assert!(views.iter().any(Result::is_err), "it is said not to be there");
    let told: BTreeSet<u8> = views.iter().flatten().map(|view| byte(&**view)).collect();
    assert_eq!(told, BTreeSet::from([0, 1, 2, 3, 9]));
    let lists: BTreeSet<Vec<u64>> = (0..200).map(|_| fork.list().unwrap()).collect();
    assert!(lists.contains(&vec![]) && lists.contains(&vec![7]) && lists.contains(&vec![7, 8]), "{lists:?}");
    let rolled_back = |seed| {
        let fork = store.fork();
        fork.lie(always(seed));
        fork.roll_back(7, ids[0]).unwrap();
        fork.lie(None);
        byte(&fork)
    };
    let told: BTreeSet<u8> = (0..100).map(rolled_back).collect();
    assert!(told.is_superset(&BTreeSet::from([0, 1, 2, 3])), "{told:?}");
    assert_eq!((byte(&store), store.list().unwrap()), (3, vec![7, 8]), "the store itself is honest");
    store.roll_back(7, ids[0]).unwrap();
    assert_eq!(byte(&store), 1);
}

#[test]
fn objects_are_told_as_they_were_or_as_others_or_mixed() {
    let store = LyingObjects::over(Arc::new(MemoryObjects::new(true)));
    let versions: Vec<u64> = (1..=3).map(|byte| set(&store, 7, byte)).collect();
    set(&store, 8, 9);
    let ask = |store: &LyingObjects| {
        let mut buf = [0xff; 8];
        let extents = vec![ReadExtent { offset: 0, buf: &mut buf }];
        let keys = Keys::These(vec![b"k".to_vec()]);
        let found = store.query_one(Query { object: 7, extents, keys }).unwrap();
        (buf[0], found.pairs.first().map(|(_, value)| value[0]), found.version)
    };
    assert_eq!(ask(&store), (3, Some(3), Some(versions[2])));
    let told = |seed| -> Vec<_> {
        let fork = store.fork();
        fork.lie(always(seed));
        (0..300).map(|_| ask(&fork)).collect()
    };
    assert_eq!(told(1), told(1));
    let (bytes, keys): (BTreeSet<u8>, BTreeSet<Option<u8>>) =
        told(1).into_iter().map(|(byte, key, _)| (byte, key)).unzip();
    assert_eq!(bytes, BTreeSet::from([0, 1, 2, 3, 9]));
    assert_eq!(keys, BTreeSet::from([None, Some(1), Some(2), Some(3), Some(9)]));
    let mixed = told(1).iter().filter(|(byte, key, _)| key.unwrap_or(0) != *byte).count();
    assert!(mixed > 30, "{mixed}");
    assert!(told(1).iter().any(|(byte, _, version)| *byte == 1 && *version == Some(versions[2])));
    assert_eq!(ask(&store), (3, Some(3), Some(versions[2])), "the store itself is honest");
}
