//! Truncated and punched blocks stay deleted, even if untrusted storage was altered when they were
//! deleted.

mod fixture;

use fixture::{FileHarness, FileStep};
use lacuna_contracts::{Budget, Kind};
use lacuna_integrity::{Choice, Part, Scheme};

const BLOCK: usize = 128;
/// Five pages of level 1.
const BLOCKS: u64 = 81_920;

/// A file of five pages of level 1, followed by a hole if `blocks` is larger. The cache holds the
/// first page of leaves, but not the pages above it.
fn file_with_a_cached_leaf_page(blocks: u64) -> FileHarness {
    let mut harness = FileHarness::new(Choice::Fixed(Scheme::Mt), BLOCK, Budget::bytes(0));
    for first in (0..BLOCKS).step_by(1024) {
        harness.step(&FileStep::Update(first, vec![b'x'; 1024 * BLOCK])).unwrap();
    }
    if blocks > BLOCKS {
        harness.step(&FileStep::Update(blocks - 1, vec![b'x'; BLOCK])).unwrap();
    }
    harness.commit().unwrap();
    for round in 0..3 {
        for page in 0..128 {
            harness.check(7, 1).1.unwrap();
            harness.check((3 * 128 + page) * 128 + round, 1).1.unwrap();
        }
    }
    // Proof of the cache: reading block 7 needs none of the pages above from US.
    let parents: Vec<_> = [1, 2].map(|level| (Part::Tree(level), 0)).into();
    let kept: Vec<_> =
        parents.iter().map(|page| harness.us.stored.lock().pages.remove(page).unwrap()).collect();
    harness.check(7, 1).1.unwrap();
    assert!(harness.check(16_000, 1).1.is_err(), "the pages above were in the cache");
    harness.us.stored.lock().pages.extend(parents.into_iter().zip(kept));
    harness
}

fn damage(harness: &FileHarness, level: u8) {
    harness.us.stored.lock().pages.get_mut(&(Part::Tree(level), 0)).unwrap()[3] ^= 1;
}

/// Restores an old block, and checks that it does not pass as the latest.
fn check_gone(harness: &FileHarness, block: u64, old: &[u8]) {
    harness.us.stored.lock().blocks.insert(block, old.to_vec());
    let (plain, result) = harness.check(block, 1);
    match result {
        Ok(()) => assert!(plain == [0; BLOCK], "the old content is back"),
        Err(failed) => {
            assert_eq!(failed.error.kind(), Kind::Corrupt);
            assert!(plain == [0; BLOCK], "something unverified is shown");
        }
    }
}

#[test]
fn a_file_cut_to_nothing_under_a_damaged_page_does_not_come_back() {
    for level in [1, 2] {
        let mut harness = file_with_a_cached_leaf_page(BLOCKS);
        let old = harness.us.stored.lock().blocks[&7].clone();
        damage(&harness, level);
        harness.step(&FileStep::Resize(0)).unwrap();
        harness.step(&FileStep::Update(BLOCKS, vec![b'y'; BLOCK])).unwrap();
        check_gone(&harness, 7, &old);
        harness.step(&FileStep::Reopen(true)).unwrap();
        check_gone(&harness, 7, &old);
        assert!(harness.check(BLOCKS, 1).0 == [b'y'; BLOCK]);
    }
}

#[test]
fn blocks_punched_under_a_damaged_page_do_not_come_back() {
    // A tree of four levels; the whole first page of level 2 is punched.
    let mut harness = file_with_a_cached_leaf_page((1 << 21) + 1);
    let old = harness.us.stored.lock().blocks[&7].clone();
    damage(&harness, 2);
    harness.step(&FileStep::Punch(0, 1 << 21)).unwrap();
    check_gone(&harness, 7, &old);
    harness.step(&FileStep::Update(20_000, vec![b'y'; BLOCK])).unwrap();
    check_gone(&harness, 7, &old);
    harness.step(&FileStep::Reopen(true)).unwrap();
    check_gone(&harness, 7, &old);
    assert!(harness.check(20_000, 1).0 == [b'y'; BLOCK]);
}

#[test]
fn a_hole_has_no_counter_that_a_block_ever_had() {
    let mut harness = FileHarness::new(Choice::Fixed(Scheme::Mt), BLOCK, Budget::bytes(0));
    harness.step(&FileStep::Update(0, vec![b'x'; 20 * BLOCK])).unwrap();
    harness.step(&FileStep::Resize(5)).unwrap();
    harness.step(&FileStep::Resize(30)).unwrap();
    harness.step(&FileStep::Update(30, vec![b'y'; BLOCK])).unwrap();
    // Blocks 0 to 4, holes, block 30.
    assert_eq!(harness.file.usage(&harness.us).unwrap().intervals, 3);
}
