//! Tests of the memory with its pools and records.

use super::*;
use crate::KeptRecord;

const OWNER: [u8; 32] = [3; 32];
const LAYOUT: [PoolLayout; 2] =
    [PoolLayout { records: 4, words: 2, bytes: 4096 }, PoolLayout { records: 300, words: 1, bytes: 0 }];

fn put(record: &mut KeptRecord, tag: u8) {
    record.bytes_mut().fill(tag);
    record.words()[0].store(tag.into(), Ordering::Relaxed);
    record.publish();
}

fn adopt(memory: &KeptMemory) -> KeptMemory {
    KeptMemory::adopt(memory.file().unwrap().try_clone().unwrap(), &OWNER, &LAYOUT).unwrap()
}

fn found(memory: &KeptMemory) -> Vec<u64> {
    let mut found: Vec<u64> = memory.pool(0).take_adopted().iter().map(tag_of).collect();
    found.sort_unstable();
    found
}

fn tag_of(record: &KeptRecord) -> u64 {
    let tag = record.words()[0].load(Ordering::Relaxed);
    assert!(record.bytes().iter().all(|byte| u64::from(*byte) == tag), "a record that is not whole");
    tag
}

#[test]
fn a_successor_finds_published_records_only() {
    let memory = KeptMemory::shared(&OWNER, &LAYOUT).unwrap();
    let mut records: Vec<KeptRecord> = std::iter::from_fn(|| memory.pool(0).take()).collect();
    assert_eq!(records.len(), 4);
    records.iter_mut().zip(1..).for_each(|(record, tag)| put(record, tag));
    records[1].withdraw();
    drop(records.remove(2));
    let mut half = memory.pool(0).take().unwrap();
    half.bytes_mut()[..9].fill(9);
    // As if the process died here.
    memory.leave_to_successor();
    drop((records, half));
    let successor = adopt(&memory);
    let taken: Vec<KeptRecord> = (0..2).map(|_| successor.pool(0).take().unwrap()).collect();
    assert!(taken.iter().all(|record| record.bytes().iter().all(|byte| *byte == 0)));
    assert!(successor.pool(0).take().is_none());
    assert_eq!(found(&successor), [1, 4]);
    // They were dropped: a further successor finds nothing.
    assert!(found(&adopt(&successor)).is_empty());
    assert!(successor.pool(1).take_adopted().is_empty());
}

#[test]
fn records_of_memory_that_was_left_stay_when_they_are_dropped() {
    let memory = KeptMemory::shared(&OWNER, &LAYOUT).unwrap();
    let mut records: Vec<KeptRecord> = std::iter::from_fn(|| memory.pool(0).take()).collect();
    records.iter_mut().zip(1..).for_each(|(record, tag)| put(record, tag));
    records[1].withdraw();
    memory.leave_to_successor();
    records[2].withdraw();
    records[1].publish();
    drop(records);
    // A disk that went on would have its writes refused, since no successor would find them.
    assert!(memory.pool(0).take().is_none() && memory.pool(1).take().is_none());
    assert_eq!(found(&adopt(&memory)), [1, 3, 4]);
}

#[test]
fn memory_without_a_successor_is_wiped_although_it_is_left() {
    let memory = KeptMemory::anonymous(&LAYOUT).unwrap();
    let mut record = memory.pool(0).take().unwrap();
    put(&mut record, 7);
    memory.leave_to_successor();
    drop(record);
    let record = memory.pool(0).take().unwrap();
    assert!(record.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn dropped_records_are_wiped_and_taken_again() {
    let memory = KeptMemory::anonymous(&LAYOUT).unwrap();
    for _ in 0..10 {
        let mut record = memory.pool(0).take().unwrap();
        assert!(record.bytes().iter().all(|byte| *byte == 0));
        put(&mut record, 7);
    }
    let all: Vec<KeptRecord> = std::iter::from_fn(|| memory.pool(1).take()).collect();
    assert_eq!(all.len(), 300);
}

#[test]
fn another_memory_is_refused() {
    let memory = KeptMemory::shared(&OWNER, &LAYOUT).unwrap();
    let file = || memory.file().unwrap().try_clone().unwrap();
    let refused = |owner: &[u8; 32], layout: &[PoolLayout]| {
        KeptMemory::adopt(file(), owner, layout).err().expect("refused").kind()
    };
    assert_eq!(refused(&[4; 32], &LAYOUT), Kind::Changed);
    assert_eq!(refused(&OWNER, &LAYOUT[..1]), Kind::Changed);
    let mut other = LAYOUT;
    other[1].words = 3;
    other[1].records = 150;
    assert_eq!(refused(&OWNER, &other), Kind::Changed);
    assert!(memory.file().unwrap().set_len(0).is_err());
    assert!(KeptMemory::adopt(tempfile(), &OWNER, &LAYOUT).is_err());
}

/// A file that is no memory of ours, and could become shorter.
fn tempfile() -> File {
    File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap())
}

#[cfg(feature = "simulation")]
#[test]
fn a_simulated_death_leaves_what_a_real_one_leaves() {
    let memory = KeptMemory::anonymous(&LAYOUT).unwrap();
    let mut record = memory.pool(0).take().unwrap();
    put(&mut record, 5);
    let _unpublished = memory.pool(0).take().unwrap();
    assert_eq!(found(&memory.as_if_died().unwrap()), [5]);
    drop(record);
    assert!(found(&memory.as_if_died().unwrap()).is_empty());
}
