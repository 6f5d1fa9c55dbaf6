//! Changes that an adversary with access to the pool makes to the objects of a `gcm` disk, on every
//! layout: only the affected blocks fail, and a check names the objects. If only some queries
//! return the change, no false data is read.

mod fixture;

use fixture::*;
use lacuna_contracts::{BlockAddr, Disk, Kind};
use lacuna_crypto::Cipher;
use lacuna_medium::{ObjectStep, ObjectStore, ObjectTransaction};
use lacuna_sealed_objects::ObjectLayout;
use lacuna_sim::{MemoryObject, Rng};
use std::collections::BTreeSet;

/// Three whole segments and a part of one.
const BLOCKS: u64 = 3 * 1024 + 200;
/// The blocks written before every attack; object 2 is never touched.
const WRITTEN: [u64; 7] = [0, 70, 1023, 1024, 1500, 3072, BLOCKS - 1];

/// A disk with object 1 written in two sessions, and that object after the first.
fn test_disk(layout: ObjectLayout) -> (TestDisk, Option<MemoryObject>) {
    let test_disk = TestDisk::new(Cipher::Gcm, layout, BLOCKS);
    test_disk.session(|disk| WRITTEN.iter().for_each(|block| write(disk, *block, 1, 1)));
    let old = test_disk.data.object(1);
    test_disk.write(1024, 1, 2);
    (test_disk, old)
}

/// Asserts the refused blocks, in reads and in a check, which names their objects. All other blocks
/// read as written.
fn assert_bad(test_disk: &TestDisk, bad: &BTreeSet<u64>, words: &str) {
    let disk = test_disk.open();
    for block in WRITTEN {
        match read(&disk, block) {
            Ok(data) => {
                assert!(!bad.contains(&block), "block {block} reads");
                assert!(data == content(block, if block == 1024 { 2 } else { 1 }), "block {block}");
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt);
                assert!(bad.contains(&block), "block {block}: {error}");
            }
        }
    }
    let mut found = BTreeSet::new();
    let mut done = 0;
    let progress = |blocks| {
        assert!(blocks > done);
        done = blocks;
        Ok(())
    };
    let report = test_disk.open().check(progress, |b| {
        assert!(found.insert(b.block.0));
        let text = b.error.to_string();
        let object = format!("object {:016x}", b.block.0 / 1024);
        assert!(text.contains(&object) && text.contains(words), "{text}");
    });
    let report = report.unwrap();
    assert_eq!(&found, bad);
    assert_eq!(done, BLOCKS);
    assert_eq!(report.bad, bad.len() as u64);
    assert_eq!(report.good, WRITTEN.iter().filter(|block| !bad.contains(block)).count() as u64);
    assert_eq!(report.good + report.unwritten + report.bad, BLOCKS);
}

fn object(number: u64) -> BTreeSet<u64> {
    (number * 1024..(number * 1024 + 1024).min(BLOCKS)).collect()
}

/// The blocks with metadata in the same page as that of a block.
fn page_of(block: u64) -> BTreeSet<u64> {
    (block / 128 * 128..block / 128 * 128 + 128).collect()
}

fn blocks(blocks: &[u64]) -> BTreeSet<u64> {
    blocks.iter().copied().collect()
}

/// Changes a copy of the disk and asserts the refused blocks; also reads from a store that answers
/// some queries from the unchanged disk.
fn assert_bad_after(test_disk: &TestDisk, bad: &BTreeSet<u64>, words: &str, change: impl FnOnce(&TestDisk)) {
    let left = test_disk.copied();
    change(&left);
    assert_bad(&left, bad, words);
    for book_lies in [false, true] {
        let Ok(disk) = left.open_over_lies(test_disk, book_lies) else { continue };
        for block in WRITTEN {
            let Ok(data) = read(&disk, block) else { continue };
            let latest = if block == 1024 { 2 } else { 1 };
            // If the seal does not bind the entries, a block may be any of its earlier versions.
            let oldest = if left.params.binds_entries() && !book_lies { latest } else { 0 };
            let known = (oldest..=latest).any(|stamp| data == content(block, stamp));
            assert!(known, "block {block}, the book lies: {book_lies}");
        }
    }
}

#[test]
fn an_unaltered_disk_has_no_bad_blocks() {
    for layout in ObjectLayout::ALL {
        assert_bad(&test_disk(layout).0, &blocks(&[]), "");
    }
}

#[test]
fn deleted_replaced_and_swapped_objects_are_refused() {
    for layout in ObjectLayout::ALL {
        let (test_disk, old) = test_disk(layout);
        for n in [0, 1, 3] {
            assert_bad_after(&test_disk, &object(n), "is missing", |left| left.data.replace(n, None));
        }
        assert_bad_after(&test_disk, &object(1), "is an older version", |left| {
            left.data.replace(1, old.clone());
        });
        let both = object(0).union(&object(1)).copied().collect();
        assert_bad_after(&test_disk, &both, "its seal does not verify", |left| {
            let (zero, one) = (left.data.object(0), left.data.object(1));
            left.data.replace(0, one);
            left.data.replace(1, zero);
        });
        // A copy of another object, where none existed, does not verify either.
        assert_bad_after(&test_disk, &object(2), "its seal does not verify", |left| {
            left.data.replace(2, left.data.object(0));
        });
    }
}

#[test]
fn truncated_objects_are_refused() {
    for layout in ObjectLayout::ALL {
        let (test_disk, _) = test_disk(layout);
        for len in [0, 1, 4096, 500 * 4096 + 100] {
            let cut = |left: &TestDisk| left.change(1, vec![ObjectStep::Truncate(len)]);
            if layout.needs_keys() {
                let lost = |block: &u64| *block / 1024 == 1 && block % 1024 * 4096 + 4096 > len;
                assert_bad_after(
                    &test_disk,
                    &WRITTEN.into_iter().filter(lost).collect(),
                    "does not verify",
                    cut,
                );
            } else {
                assert_bad_after(&test_disk, &object(1), "is missing", cut);
            }
        }
        if layout.needs_keys() {
            let all = || ObjectStep::RemoveKeyRange(vec![], vec![0xff]);
            assert_bad_after(&test_disk, &object(1), "is missing", |left| left.change(1, vec![all()]));
        }
    }
}

#[test]
fn flipped_bits_in_data_metadata_and_seals_are_refused() {
    for layout in ObjectLayout::ALL {
        let (test_disk, _) = test_disk(layout);
        for block in [0, 1023, 1500] {
            let at = test_disk.data_at(block);
            for byte in [0, 2000, 4095] {
                assert_bad_after(&test_disk, &blocks(&[block]), "does not verify", |left| {
                    left.flip(block / 1024, at + byte);
                });
            }
        }
        let x = 1500 - 1024;
        // If the seal binds entries, all entries that depend on an altered one are lost.
        let (with_it, words) = if test_disk.params.binds_entries() {
            (page_of(1500), "is lost")
        } else {
            (blocks(&[1500]), "does not verify")
        };
        for byte in [0, 13, 31] {
            assert_bad_after(&test_disk, &with_it, words, |left| match layout {
                ObjectLayout::Interleaved => left.flip(1, x * 4128 + 4096 + byte),
                ObjectLayout::SegmentEnd => left.flip(1, (4 << 20) + x * 32 + byte),
                ObjectLayout::Kv => left.flip_key(1, &(x as u16).to_be_bytes(), byte as usize),
                ObjectLayout::Adaptive => {
                    let (key, at) = adaptive_place(&left.data.object(1).unwrap(), &left.params, x as usize);
                    left.flip_key(1, &key, at + byte as usize);
                }
            });
        }
        for byte in 0..if test_disk.params.binds_entries() { 168 } else { 32 } {
            assert_bad_after(&test_disk, &object(1), "its seal does not verify", |left| {
                if layout.needs_keys() {
                    left.flip_key(1, b"s", byte);
                } else {
                    left.flip(1, 1024 * 4128 + byte as u64);
                }
            });
        }
    }
}

/// Some or all keys of an object, replayed or removed under the present seal.
#[test]
fn replayed_and_removed_keys_are_detected_under_the_present_seal() {
    let test_disk = TestDisk::new(Cipher::Gcm, ObjectLayout::Adaptive, BLOCKS);
    // A page with deltas, deltas without a page, and a page alone.
    test_disk.write(1024, 128, 1);
    test_disk.write(1030, 1, 1);
    test_disk.write(1200, 1, 1);
    test_disk.write(1024 + 256, 128, 1);
    let old = test_disk.data.object(1).unwrap();
    for block in [1024, 1030, 1200, 1201, 1280] {
        test_disk.write(block, 1, 2);
    }
    let now = test_disk.data.object(1).unwrap();
    let changed: BTreeSet<u64> = [1024, 1030, 1200, 1201, 1280].into();
    let keys: BTreeSet<&Vec<u8>> =
        now.keys().keys().chain(old.keys().keys()).filter(|key| key[0] == b'p').collect();
    assert!(keys.len() > 6, "{keys:?}");
    let count_refused = |left: &TestDisk, what: &str| {
        let disk = left.open();
        let mut refused = 0;
        for block in 1024..2048 {
            match read(&disk, block) {
                Ok(data) => {
                    let written =
                        block < 1024 + 128 || (1280..1408).contains(&block) || [1200, 1201].contains(&block);
                    let stamp = if changed.contains(&block) { 2 } else { u64::from(written) };
                    assert!(data == content(block, stamp), "{what}: block {block}");
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Corrupt);
                    refused += 1;
                }
            }
        }
        refused
    };
    assert_eq!(count_refused(&test_disk, "as it is"), 0);
    for key in &keys {
        let thinned = test_disk.copied();
        thinned.change(1, vec![ObjectStep::RemoveKeys(vec![(*key).clone()])]);
        assert_eq!(count_refused(&thinned, "thinned") > 0, now.keys().contains_key(*key), "{key:?}");
        let reverted = test_disk.copied();
        // With the ciphertext of that time, which belongs to that metadata.
        let bytes = old.bytes();
        let steps = vec![match old.keys().get(*key) {
            Some(value) => ObjectStep::SetKeys(vec![((*key).clone(), value.clone())]),
            None => ObjectStep::RemoveKeys(vec![(*key).clone()]),
        }];
        reverted.change(1, [vec![ObjectStep::Write { offset: 0, data: &bytes }], steps].concat());
        count_refused(&reverted, "reverted");
    }
    // The whole old object, except for the seal.
    let whole = test_disk.copied();
    whole.data.replace(1, Some(old));
    whole.change(1, vec![ObjectStep::SetKeys(vec![(b"s".to_vec(), now.keys()[b"s".as_slice()].clone())])]);
    count_refused(&whole, "put back whole");
    assert!(changed.iter().all(|block| read(&whole.open(), *block).is_err()));
}

/// Several such changes at a time, with ciphertext of any time: only present content is ever read.
#[test]
fn no_old_content_is_read_from_an_object_altered_under_its_seal() {
    let test_disk = TestDisk::new(Cipher::Gcm, ObjectLayout::Adaptive, 1024);
    let mut rng = Rng::new(1);
    let (mut stamps, mut moments) = (vec![0; 1024], vec![]);
    for stamp in 1..60 {
        let count = if rng.chance(1, 6) { 1 + rng.below(300) } else { 1 + rng.below(5) };
        let first = rng.below(1024 - count);
        let new = if rng.chance(1, 5) { 0 } else { stamp };
        stamps[first as usize..(first + count) as usize].fill(new);
        test_disk.session(|disk| match new {
            0 => disk.discard(BlockAddr(first), count).unwrap(),
            _ => write(disk, first, count, new),
        });
        moments.push(test_disk.data.object(0).unwrap());
    }
    let now = moments.last().unwrap();
    let mut refused = 0;
    for _ in 0..200 {
        let left = test_disk.copied();
        for _ in 0..=rng.below(3) {
            let then = &moments[rng.below(moments.len() as u64) as usize];
            let pick = |rng: &mut Rng, object: &MemoryObject| {
                let keys: Vec<_> = object.keys().keys().filter(|key| key[0] == b'p').cloned().collect();
                keys[rng.below(keys.len() as u64) as usize].clone()
            };
            let of = if rng.chance(1, 2) { now } else { then };
            let (key, other) = (pick(&mut rng, of), pick(&mut rng, then));
            let set = |value: Option<&Vec<u8>>| match value {
                Some(value) => ObjectStep::SetKeys(vec![(key.clone(), value.clone())]),
                None => ObjectStep::RemoveKeys(vec![key.clone()]),
            };
            let bytes = then.bytes();
            let step = match rng.below(4) {
                0 => set(None),
                1 => set(then.keys().get(&key)),
                2 => set(then.keys().get(&other)),
                _ => ObjectStep::Write { offset: 0, data: &bytes },
            };
            left.change(0, vec![step]);
        }
        let disk = left.open();
        for (block, stamp) in (0..).zip(&stamps) {
            match read(&disk, block) {
                Ok(data) => assert!(data == content(block, *stamp), "block {block}"),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Corrupt);
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 10_000, "{refused}");
}

#[test]
fn a_restored_key_is_valid_again_in_the_same_session() {
    let test_disk = TestDisk::new(Cipher::Gcm, ObjectLayout::Adaptive, BLOCKS);
    test_disk.write(0, 128, 1);
    test_disk.write(5, 1, 2);
    for key in [&b"p\0"[..], b"p\0d\0"] {
        let left = test_disk.copied();
        let value = left.data.object(0).unwrap().keys()[key].clone();
        let disk = left.open();
        left.change(0, vec![ObjectStep::RemoveKeys(vec![key.to_vec()])]);
        assert_eq!(read(&disk, 9).unwrap_err().kind(), Kind::Corrupt);
        left.change(0, vec![ObjectStep::SetKeys(vec![(key.to_vec(), value)])]);
        assert_reads(&disk, 9, 1);
        write(&disk, 20, 1, 3);
        disk.close().unwrap();
        let disk = left.open();
        for block in 0..128 {
            assert_reads(
                &disk,
                block,
                if block == 5 {
                    2
                } else if block == 20 {
                    3
                } else {
                    1
                },
            );
        }
    }
}

#[test]
fn foreign_keys_yield_no_false_data() {
    for layout in [ObjectLayout::Kv, ObjectLayout::Adaptive] {
        let (test_disk, _) = test_disk(layout);
        let seal = |len| ObjectStep::SetKeys(vec![(b"s".to_vec(), vec![7; len])]);
        for len in [0, 31, 33, 5000] {
            assert_bad_after(&test_disk, &object(1), "its seal does not verify", |left| {
                left.change(1, vec![seal(len)]);
            });
        }
        let strange: &[&[u8]] = match layout {
            ObjectLayout::Kv => &[&[1, 220], &[1, 220, 0]],
            _ => &[b"p\x03", b"p\x03a", b"p\x03d\x5c", b"p\x03d\x50", b"p\x03x"],
        };
        for key in strange {
            let left = test_disk.copied();
            left.change(1, vec![ObjectStep::SetKeys(vec![(key.to_vec(), vec![1; 3])])]);
            let disk = left.open();
            // Whatever happens to blocks with metadata near these keys, no false data is returned.
            for block in WRITTEN {
                match read(&disk, block) {
                    Ok(data) => assert!(data == content(block, if block == 1024 { 2 } else { 1 })),
                    Err(error) => assert_eq!(error.kind(), Kind::Corrupt),
                }
            }
        }
    }
}

/// Changes a byte of an object of the book.
fn poke_book(test_disk: &TestDisk, object: u64, offset: u64) {
    let byte = [test_disk.book.object(object).unwrap().bytes()[offset as usize] ^ 1];
    let steps = vec![ObjectStep::Write { offset, data: &byte }];
    test_disk.book.reopened().apply_one(ObjectTransaction { object, steps }).unwrap();
}

#[test]
fn an_altered_book_is_refused() {
    for layout in ObjectLayout::ALL {
        let (test_disk, _) = test_disk(layout);
        let all = (0..BLOCKS).collect();
        assert_bad_after(&test_disk, &all, "page 1 of object 1 of the book does not verify", |left| {
            poke_book(left, 1, 4096 + 70);
        });
        let refused = |change: &dyn Fn(&TestDisk), words: &str| {
            let left = test_disk.copied();
            change(&left);
            let error = left.open_with(left.stores(), |_| ()).err().unwrap();
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains(words), "{error}");
        };
        refused(&|left| poke_book(left, 1, 70), "page 0 of object 1 of the book");
        refused(&|left| left.book.replace(1, None), "object 1 of the book does not exist");
        refused(&|left| poke_book(left, 0, 20), "the table of snapshots");
        refused(&|left| left.book.replace(0, None), "the table of snapshots");
    }
}

#[test]
fn an_older_book_is_refused_with_newer_objects() {
    for layout in ObjectLayout::ALL {
        let (test_disk, _) = test_disk(layout);
        let book = test_disk.book.object(1);
        test_disk.write(70, 1, 1);
        // The absence of an object that never existed is not accepted either.
        let bad = object(0).union(&object(2)).copied().collect();
        assert_bad_after(&test_disk, &bad, "is an older version", |left| left.book.replace(1, book));
    }
}

#[test]
fn a_write_beside_tampered_blocks_does_not_validate_them() {
    for layout in ObjectLayout::ALL {
        let (test_disk, old) = test_disk(layout);
        test_disk.data.replace(1, old);
        test_disk.write(1025, 1, 9);
        let left = object(1).difference(&blocks(&[1025])).copied().collect();
        let disk = test_disk.open();
        assert!(read(&disk, 1025).unwrap() == content(1025, 9));
        let mut found = BTreeSet::new();
        disk.check(|_| Ok(()), |b| assert!(found.insert(b.block.0))).unwrap();
        assert_eq!(found, left);
        // A discard of the whole object gives up all its blocks.
        test_disk.session(|disk| disk.discard(BlockAddr(1024), 1024).unwrap());
        let report = test_disk.open().check(|_| Ok(()), |b| panic!("{}", b.error)).unwrap();
        assert_eq!(report.bad, 0);
        assert_reads(&test_disk.open(), 1025, 0);
        assert_reads(&test_disk.open(), 70, 1);
    }
}

#[test]
fn a_discarded_segment_cannot_be_replayed() {
    for layout in ObjectLayout::ALL {
        let (test_disk, old) = test_disk(layout);
        test_disk.session(|disk| disk.discard(BlockAddr(1024), 1024).unwrap());
        assert_reads(&test_disk.open(), 1500, 0);
        test_disk.data.replace(1, old);
        assert_eq!(read(&test_disk.open(), 1500).unwrap_err().kind(), Kind::Corrupt);
        test_disk.data.replace(1, None);
        assert_eq!(read(&test_disk.open(), 1500).unwrap_err().kind(), Kind::Corrupt);
    }
}

#[test]
fn after_a_crash_tampering_is_detected_and_nothing_else_is_reported() {
    for layout in ObjectLayout::ALL {
        let (test_disk, _) = test_disk(layout);
        let disk = test_disk.open();
        write(&disk, 70, 1, 1);
        disk.flush().unwrap();
        // A snapshot writes the version table, as a checkpoint would.
        disk.create_snapshot("now").unwrap();
        let before = test_disk.data.object(0);
        write(&disk, 70, 1, 1);
        write(&disk, 3072, 1, 1);
        disk.flush().unwrap();
        let cut = test_disk.copied();
        drop(disk);
        assert_bad(&cut, &blocks(&[]), "");
        assert_bad_after(&cut, &object(0), "is missing", |left| left.data.replace(0, None));
        // Only writes after the last checkpoint and before the cut can be taken back undetected.
        assert_bad_after(&cut, &blocks(&[]), "", |left| left.data.replace(0, before.clone()));
        cut.write(0, 1, 1);
        cut.write(3072, 1, 1);
        assert_bad_after(&cut, &object(0), "is an older version", |left| left.data.replace(0, before));
    }
}

#[test]
fn the_replay_that_the_page_calls_undetected_is_undetected() {
    for layout in ObjectLayout::ALL {
        let (test_disk, old) = test_disk(layout);
        // The version table's object of the same time.
        let fresh = TestDisk::new(Cipher::Gcm, layout, BLOCKS);
        fresh.session(|disk| WRITTEN.iter().for_each(|block| write(disk, *block, 1, 1)));
        let book = fresh.book.object(1);
        test_disk.data.replace(1, old);
        test_disk.book.replace(1, book);
        assert_reads(&test_disk.open(), 1024, 1);
    }
}

#[test]
fn an_object_removed_after_its_first_read_is_reported() {
    for layout in ObjectLayout::ALL {
        let (test_disk, _) = test_disk(layout);
        let left = test_disk.copied();
        let disk = left.open();
        assert!(read(&disk, 1500).unwrap() == content(1500, 1));
        left.data.replace(1, None);
        let error = read(&disk, 1500).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains("is missing"), "{error}");
    }
}
