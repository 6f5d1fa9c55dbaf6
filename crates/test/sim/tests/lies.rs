//! Media and stores that lie tell what was there at some time, and the truth where they are told to.

use lacuna_medium::{Keys, Medium, MemoryObjects, ObjectStore, Query, ReadExtent, Step, Transaction};
use lacuna_sim::{CrashMedium, Lies, LyingObjects, Rng, Truths};
use std::collections::BTreeSet;
use std::sync::Arc;

const PAGE: u64 = 4096;

#[allow(clippy::unnecessary_wraps, reason = "every caller wants an option")]
fn always(seed: u64) -> Option<Lies> {
    Some(Lies { of_a_thousand: 1000, rng: Rng::new(seed) })
}

/// A medium whose first three pages were filled with 1, 2 and 3 in turn, and whose fourth is 9.
fn lived() -> CrashMedium {
    let medium = CrashMedium::new(8 * PAGE);
    medium.keep_past();
    for version in 1..=3 {
        medium.write_at(0, &[version; 3 * PAGE as usize]).unwrap();
    }
    medium.write_at(3 * PAGE, &[9; PAGE as usize]).unwrap();
    medium
}

/// The bytes with which reads of one page are answered.
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
fn objects_are_told_as_they_were_or_as_others_or_mixed() {
    let store = LyingObjects::over(Arc::new(MemoryObjects::new(true)));
    let set = |object, byte: u8| {
        let (data, keys) = ([byte; 8], Step::SetKeys(vec![(b"k".to_vec(), vec![byte])]));
        let steps = vec![Step::Write { offset: 0, data: &data }, keys];
        store.apply_one(Transaction { object, steps }).unwrap()
    };
    let versions: Vec<u64> = (1..=3).map(|byte| set(7, byte)).collect();
    set(8, 9);
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
