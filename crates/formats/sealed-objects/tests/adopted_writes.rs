//! Successors adopt the writes that many threads had acknowledged. They adopt nothing of a disk
//! with write-through and nothing while they only read, and leave all records that they cannot
//! write.

mod scripted_stores;

use lacuna_contracts::{BlockAddr, Disk, Kind, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_kept_memory::KeptMemory;
use lacuna_sealed_objects::{ObjectAccess, ObjectDisk, ObjectLayout, ObjectOptions};
use lacuna_sim::Rng;
use scripted_stores::*;
use std::sync::atomic::Ordering;

/// Two segments and a part of one.
const BLOCKS: u64 = 2 * SEGMENT_BLOCKS + 300;
/// The identity of the disk for its kept memory.
const OWNER: [u8; 32] = [3; 32];

/// Threads of a client write blocks of their own each until the store dies. The successor of the
/// client finds all acknowledged writes in memory that both share.
fn play_threads(kind: CipherAndLayout, seed: u64) {
    const THREADS: u64 = 4;
    const EACH: u64 = BLOCKS / THREADS;
    println!("{kind:?}, seed {seed}");
    let params = plan(kind, BLOCKS);
    let scripted = ScriptedStores::new();
    scripted.create(&params);
    let layout = ObjectDisk::kept_layout(&params, options(0).budget, false);
    let memory = KeptMemory::shared(&OWNER, &layout).unwrap();
    let left = memory.file().unwrap().try_clone().unwrap();
    let with = ObjectOptions { background: true, kept: Some(memory), ..options(seed) };
    let disk = scripted.open_with(&params, with).unwrap();
    scripted.script.seed(seed);
    scripted.script.max_delay_micros.store(100, Ordering::SeqCst);
    let now = scripted.script.transactions.load(Ordering::SeqCst);
    scripted.script.dies_at.store(now + 20 + seed * 11, Ordering::SeqCst);
    let write_until_death = |thread: u64| {
        let mut rng = Rng::new(seed * THREADS + thread);
        let mut stamps = vec![(0, 0); EACH as usize];
        for stamp in 1.. {
            let most = if rng.chance(1, 9) { 300 } else { 5 };
            let count = 1 + rng.below(most);
            let first = rng.below(EACH - count + 1);
            let touched = first as usize..(first + count) as usize;
            stamps[touched.clone()].iter_mut().for_each(|(_, sent)| *sent = stamp);
            if write(&disk, thread * EACH + first, count, stamp).is_err() {
                break;
            }
            stamps[touched].iter_mut().for_each(|(acknowledged, _)| *acknowledged = stamp);
        }
        stamps
    };
    let written: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let write_until_death = &write_until_death;
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || write_until_death(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    // A disk that cannot be closed leaves its memory.
    assert!(disk.close().is_err());
    drop(disk);
    let kept = Some(KeptMemory::adopt(left, &OWNER, &layout).unwrap());
    let successor =
        scripted.again().open_with(&params, ObjectOptions { kept, ..options(seed + 100) }).unwrap();
    let found = stamps(&successor, 0, THREADS * EACH).unwrap();
    for (block, (found, (acknowledged, sent))) in (0..).zip(found.into_iter().zip(written)) {
        assert!((acknowledged..=sent).contains(&found), "block {block}: {found}, {acknowledged} to {sent}");
    }
    successor.close().unwrap();
}

#[test]
fn a_successor_finds_the_acknowledged_writes_of_many_threads() {
    for kind in [(Cipher::Gcm, ObjectLayout::Adaptive), (Cipher::XtsRandom, ObjectLayout::SegmentEnd)] {
        (0..6).for_each(|seed| play_threads(kind, seed));
    }
}

#[test]
fn a_disk_with_write_through_keeps_nothing() {
    let params = plan((Cipher::Gcm, ObjectLayout::Adaptive), BLOCKS);
    let scripted = ScriptedStores::new();
    scripted.create(&params);
    let layout = ObjectDisk::kept_layout(&params, options(0).budget, true);
    assert!(layout.is_empty());
    let kept = Some(KeptMemory::shared(&OWNER, &layout).unwrap());
    let disk =
        scripted.open_with(&params, ObjectOptions { kept, write_through: true, ..options(1) }).unwrap();
    write(&disk, 0, 2, 1).unwrap();
    disk.discard(BlockAddr(1), 1).unwrap();
    std::mem::forget(disk);
    assert_eq!(stamps(&scripted.again().open(&params, 2), 0, 3).unwrap(), [1, 0, 0]);
}

#[test]
fn a_reader_leaves_the_writes_to_a_writer() {
    let params = plan((Cipher::XtsRandom, ObjectLayout::Kv), BLOCKS);
    let scripted = ScriptedStores::new();
    scripted.create(&params);
    let layout = ObjectDisk::kept_layout(&params, options(0).budget, false);
    let memory = KeptMemory::simulated(&layout).unwrap();
    let disk =
        scripted.open_with(&params, ObjectOptions { kept: Some(memory.clone()), ..options(1) }).unwrap();
    write(&disk, 5, 1, 1).unwrap();
    disk.flush().unwrap();
    write(&disk, 5, 1, 2).unwrap();
    let left = memory.as_if_died().unwrap();
    for (access, stamp) in [
        (ObjectAccess::Read, 1),
        (ObjectAccess::Rescue, 1),
        (ObjectAccess::Write, 2),
        (ObjectAccess::Read, 2),
    ] {
        let kept = Some(left.clone());
        let disk = scripted.again().open_with(&params, ObjectOptions { access, kept, ..options(2) }).unwrap();
        assert_eq!(stamps(&disk, 5, 1).unwrap(), [stamp], "{access:?}");
    }
}

/// A store fails while a successor writes the adopted blocks: the next successor finds them again.
#[test]
fn a_successor_that_cannot_write_leaves_the_writes() {
    let params = plan((Cipher::Gcm, ObjectLayout::Adaptive), BLOCKS);
    let scripted = ScriptedStores::new();
    scripted.create(&params);
    let layout = ObjectDisk::kept_layout(&params, options(0).budget, false);
    let memory = KeptMemory::shared(&OWNER, &layout).unwrap();
    let left = || KeptMemory::adopt(memory.file().unwrap().try_clone().unwrap(), &OWNER, &layout).unwrap();
    let with = |kept: KeptMemory, seed| ObjectOptions { kept: Some(kept), ..options(seed) };
    let disk = scripted.open_with(&params, with(memory.clone(), 1)).unwrap();
    write(&disk, 5, 3, 1).unwrap();
    disk.discard(BlockAddr(SEGMENT_BLOCKS), SEGMENT_BLOCKS).unwrap();
    std::mem::forget(disk);
    let open = |dies_at| {
        let successor = scripted.again();
        successor.script.seed(dies_at);
        successor.script.dies_at.store(dies_at, Ordering::SeqCst);
        successor.open_with(&params, with(left(), 2))
    };
    assert_eq!(open(1).err().expect("no change happens").kind(), Kind::Io);
    let opened = (2..).find_map(|dies_at| open(dies_at).ok()).expect("at last the store works");
    assert_eq!(stamps(&opened, 4, 5).unwrap(), [0, 1, 1, 1, 0]);
}
