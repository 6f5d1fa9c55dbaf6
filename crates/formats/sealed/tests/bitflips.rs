//! `gcm`: every flipped bit of a block or of its metadata is noticed, for that block alone.

mod fixture;

use fixture::*;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, DiskCheckReport, Kind, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sealed::{Params, SealedDisk};
use lacuna_sim::Rng;
use std::sync::Arc;

const BLOCKS: u64 = 3 * SEGMENT_BLOCKS + 10;

fn stamp(block: u64) -> u64 {
    block + 77
}

/// Blocks in the journal, in a stream, at both ends of segments and in the short last segment; one
/// segment is never written.
fn written() -> Vec<u64> {
    let runs = [0..3, 62..66, 1020..1024, 1024..1048, 2 * 1024 - 2..2 * 1024, 3 * 1024..BLOCKS];
    runs.into_iter().flatten().collect()
}

fn written_disk() -> (Params, Arc<MemoryMedium>) {
    let params = params(Cipher::Gcm, BLOCKS);
    let medium = new_disk(&params);
    let disk = open(&medium, &params, 1);
    disk.write(BlockAddr(1024), &(1024..1048).flat_map(|b| content(b, stamp(b))).collect::<Vec<u8>>())
        .unwrap();
    assert_eq!(status(&disk, "copy_on_write_segments"), 1);
    for block in written() {
        if !(1024..1048).contains(&block) {
            write(&disk, block, 1, stamp(block)).unwrap();
        }
    }
    disk.close().unwrap();
    (params, medium)
}

/// The blocks that a check reports, and its sums.
fn check(disk: &SealedDisk) -> (Vec<u64>, DiskCheckReport) {
    let mut bad = vec![];
    let report = lacuna_contracts::check_disk(
        disk,
        |_| Ok(()),
        |b| {
            assert_eq!(b.error.kind(), Kind::Corrupt);
            assert!(b.error.to_string().contains(&format!("block {} ", b.block.0)), "{}", b.error);
            bad.push(b.block.0);
        },
    )
    .unwrap();
    (bad, report)
}

/// Asserts that the present disk fails for `block` and for no other block.
fn assert_only_bad(medium: &Arc<MemoryMedium>, params: &Params, block: u64, what: &str) {
    let disk = open(medium, params, 7);
    let mut out = vec![0x5a; BLOCK_SIZE];
    assert_eq!(
        disk.read(BlockAddr(block), &mut out).unwrap_err().kind(),
        Kind::Corrupt,
        "block {block}, {what}"
    );
    for near in [block.wrapping_sub(1), block + 1] {
        if near < BLOCKS {
            let expected = if written().contains(&near) { stamp(near) } else { 0 };
            assert!(read(&disk, near).unwrap() == content(near, expected), "block {near} beside {block}");
        }
    }
    let good = written().len() as u64 - 1;
    let (bad, report) = check(&disk);
    assert_eq!(bad, [block], "{what}");
    assert_eq!(report, DiskCheckReport { good, unwritten: BLOCKS - good - 1, bad: 1 });
}

/// Flips the bit, asserts, and flips it back.
fn flip_and_assert(medium: &Arc<MemoryMedium>, params: &Params, block: u64, byte: usize, bit: usize) {
    flip(medium, byte, bit);
    assert_only_bad(medium, params, block, &format!("bit {bit} of byte {byte} of the medium"));
    flip(medium, byte, bit);
}

#[test]
fn flips_in_data_fail_only_that_block() {
    let (params, medium) = written_disk();
    let mut rng = Rng::new(3);
    for block in written() {
        let data = data_at(&*medium, &params, block);
        let sampled = data.start + rng.below(BLOCK_SIZE as u64) as usize;
        for byte in [data.start, sampled, data.end - 1] {
            flip_and_assert(&medium, &params, block, byte, rng.below(8) as usize);
        }
    }
    let (bad, report) = check(&open(&medium, &params, 8));
    assert!(bad.is_empty());
    assert_eq!(report.good, written().len() as u64);
}

#[test]
fn flips_in_metadata_fail_only_that_block() {
    let (params, medium) = written_disk();
    let mut rng = Rng::new(4);
    for block in written() {
        let meta = meta_at(&*medium, &params, block);
        let every_bit = [1023, 1024, BLOCKS - 1].contains(&block);
        for bit in (0..256).filter(|_| every_bit || rng.chance(1, 64)) {
            flip_and_assert(&medium, &params, block, meta.start + bit / 8, bit % 8);
        }
    }
}

/// Flips in the metadata of unwritten blocks raise an alarm; they never produce data.
#[test]
fn metadata_of_unwritten_blocks_cannot_be_made_up() {
    let (params, medium) = written_disk();
    let meta = meta_at(&*medium, &params, 500);
    for bit in [0, 100, 255] {
        flip(&medium, meta.start + bit / 8, bit % 8);
        let disk = open(&medium, &params, 7);
        assert_eq!(read(&disk, 500).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(check(&disk).0, [500]);
        flip(&medium, meta.start + bit / 8, bit % 8);
    }
}

#[test]
fn a_flip_in_a_map_entry_fails_only_its_segment() {
    for cipher in Cipher::ALL {
        let params = params(cipher, 2 * SEGMENT_BLOCKS);
        let medium = new_disk(&params);
        let disk = open(&medium, &params, 1);
        write(&disk, 5, 1, 5).unwrap();
        write(&disk, 1030, 1, 6).unwrap();
        disk.close().unwrap();
        let map = params.geometry().map as usize;
        for bit in 0..128 {
            flip(&medium, map + bit / 8, bit % 8);
            let disk = open(&medium, &params, 2);
            assert_eq!(read(&disk, 5).unwrap_err().kind(), Kind::Corrupt, "bit {bit}");
            assert_eq!(read(&disk, 6).unwrap_err().kind(), Kind::Corrupt);
            assert!(read(&disk, 1030).unwrap() == content(1030, 6));
            flip(&medium, map + bit / 8, bit % 8);
        }
    }
}

/// A damaged map entry costs only its segment, even if a client writes there.
#[test]
fn writing_to_a_segment_with_a_damaged_map_entry_leaves_the_rest_usable() {
    let params = params(Cipher::Gcm, 2 * SEGMENT_BLOCKS);
    let medium = new_disk(&params);
    let disk = open(&medium, &params, 1);
    write(&disk, 5, 1, 5).unwrap();
    write(&disk, 1030, 1, 6).unwrap();
    disk.close().unwrap();
    flip(&medium, params.geometry().map as usize + 9, 3);
    let disk = open(&medium, &params, 2);
    assert_eq!(write(&disk, 7, 1, 7).unwrap_err().kind(), Kind::Corrupt);
    write(&disk, 1031, 1, 8).unwrap();
    disk.close().unwrap();
    let disk = open(&medium, &params, 3);
    assert!(read(&disk, 1030).unwrap() == content(1030, 6));
    assert!(read(&disk, 1031).unwrap() == content(1031, 8));
}

/// Recovery refuses a damaged journal as a whole and applies no part of it.
#[test]
fn a_flip_in_a_batch_that_others_follow_is_refused() {
    let params = params(Cipher::XtsRandom, SEGMENT_BLOCKS);
    let medium = new_disk(&params);
    let disk = open(&medium, &params, 1);
    for n in 0..3 {
        write(&disk, n, 1, n + 1).unwrap();
        disk.flush().unwrap();
    }
    drop(disk);
    let first = params.geometry().journal as usize + 2 * BLOCK_SIZE;
    let before = medium.snapshot();
    for byte in [0, 8, 20, 50, 64, 80, 4095, 4096, 8191] {
        flip(&medium, first + byte, 2);
        let error = open_with(medium.clone(), &params, options(2)).err().unwrap();
        assert_eq!(error.kind(), Kind::Corrupt);
        flip(&medium, first + byte, 2);
    }
    assert!(medium.snapshot() == before, "a refused opening writes nothing");
    let mut bytes = [0; 16];
    medium.read_at(first as u64, &mut bytes).unwrap();
    assert_eq!(&bytes[..8], b"LACRING1");
}
