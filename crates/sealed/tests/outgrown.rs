//! A header from before the disk grew: the disk is not opened with it as soon as it would lose anything, and everything is there
//! once the disk has its size again.

mod fixture;

use fixture::*;
use lacuna_core::{Disk, Kind, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sealed::{Layout, Params};
use std::sync::Arc;

const SMALL: u64 = 3 * SEGMENT_BLOCKS;
const LARGE: u64 = 9 * SEGMENT_BLOCKS;

/// A disk that has grown, before anything was written to what it got.
fn grown(layout: Layout) -> (Params, Params, Arc<MemoryMedium>) {
    let planned = params(Cipher::Gcm, layout, LARGE);
    let small = Params { blocks: SMALL, ..params(Cipher::Gcm, layout, SMALL) };
    let small = Params { map_capacity: planned.map_capacity, ..small };
    let large = Params { blocks: LARGE, ..small };
    let medium = MemoryMedium::new(large.geometry().medium_len());
    create(&medium, &small);
    let medium = Arc::new(medium);
    let disk = open(&medium, &small, 1);
    write(&disk, 5, 3, 100).unwrap();
    disk.close().unwrap();
    (small, large, medium)
}

/// Opening with the old parameters is refused and changes nothing; with the new ones `written` reads as it was written.
fn assert_refused(
    small: &Params,
    large: &Params,
    medium: &Arc<MemoryMedium>,
    least: u64,
    written: &[(u64, u64)],
) {
    for read_only in [false, true] {
        let before = medium.snapshot();
        let options = lacuna_sealed::OpenOptions { read_only, ..options(3) };
        let error = open_with(medium.clone(), small, options).map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::RolledBack, "{error}");
        assert!(
            error.to_string().contains(&format!("at least {} bytes", least * SEGMENT_BLOCKS * 4096)),
            "{error}"
        );
        assert!(medium.snapshot() == before, "read-only: {read_only}");
    }
    let disk = open(medium, large, 4);
    for (block, stamp) in written {
        assert!(read(&disk, *block).unwrap() == content(*block, *stamp), "block {block}");
    }
    disk.close().unwrap();
}

#[test]
fn data_in_what_the_disk_grew_by() {
    for layout in Layout::ALL {
        let (small, large, medium) = grown(layout);
        let disk = open(&medium, &large, 2);
        write(&disk, 6 * SEGMENT_BLOCKS + 9, 2, 200).unwrap();
        disk.close().unwrap();
        assert_refused(
            &small,
            &large,
            &medium,
            7,
            &[(5, 100), (6 * SEGMENT_BLOCKS + 9, 200), (5 * SEGMENT_BLOCKS, 0)],
        );
    }
}

#[test]
fn data_that_only_the_journal_has() {
    let (small, large, medium) = grown(Layout::SegmentEnd);
    let disk = open(&medium, &large, 2);
    write(&disk, 4 * SEGMENT_BLOCKS - 1, 1, 200).unwrap();
    disk.flush().unwrap();
    drop(disk);
    assert_refused(&small, &large, &medium, 4, &[(5, 100), (4 * SEGMENT_BLOCKS - 1, 200)]);
    let (small, large, medium) = grown(Layout::SegmentEnd);
    let disk = open(&medium, &large, 2);
    disk.discard(lacuna_core::BlockAddr(SMALL + 1), 2).unwrap();
    write(&disk, 1, 1, 300).unwrap();
    disk.flush().unwrap();
    drop(disk);
    // What was never written and is discarded leaves nothing behind: the disk opens as it was.
    drop(open(&medium, &small, 3));
    assert!(read(&open(&medium, &large, 4), 1).unwrap() == content(1, 300));
}

#[test]
fn a_segment_that_moved_to_a_slot_of_what_the_disk_grew_by() {
    let (small, large, medium) = grown(Layout::SegmentEnd);
    let disk = open(&medium, &large, 2);
    // Each round takes the lowest free slot for the streams and frees the one before; filling all but the first segments
    // leaves them high ones.
    for segment in (1..9).chain([0]) {
        write(&disk, segment * SEGMENT_BLOCKS, SEGMENT_BLOCKS, 500 + segment).unwrap();
        disk.flush().unwrap();
    }
    disk.discard(lacuna_core::BlockAddr(SMALL), LARGE - SMALL).unwrap();
    disk.close().unwrap();
    let high = (0..3).any(|segment| {
        let g = small.geometry();
        let mut value = [0; 8];
        medium.read_at(g.map + segment * 16, &mut value).unwrap();
        u64::from_le_bytes(value) > u64::from(g.slots)
    });
    assert!(high, "no segment lies in a slot that the small disk has not");
    let error = open_with(medium.clone(), &small, options(3)).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::RolledBack, "{error}");
    let disk = open(&medium, &large, 4);
    for segment in 0..3 {
        let block = segment * SEGMENT_BLOCKS + 7;
        assert!(read(&disk, block).unwrap() == content(block, 500 + segment), "block {block}");
    }
}

#[test]
fn a_disk_that_was_written_with_the_old_header_is_read_and_not_lost() {
    let (small, large, medium) = grown(Layout::SegmentEnd);
    let disk = open(&medium, &large, 2);
    write(&disk, 6 * SEGMENT_BLOCKS, 1, 200).unwrap();
    disk.close().unwrap();
    let entry = |segment: u64| small.geometry().map + segment * 16;
    let (mut beyond, empty) = ([0; 16], [0; 16]);
    medium.read_at(entry(6), &mut beyond).unwrap();
    // An earlier version, which did not look beyond the end, gave the slot to another segment.
    medium.write_at(entry(6), &empty).unwrap();
    let disk = open(&medium, &small, 3);
    write(&disk, SEGMENT_BLOCKS, 1, 300).unwrap();
    disk.close().unwrap();
    medium.write_at(entry(6), &beyond).unwrap();
    let error = open_with(medium.clone(), &small, options(4)).map(drop).unwrap_err();
    assert!(error.kind() == Kind::RolledBack && error.to_string().contains("do not resize"), "{error}");
    let read_only = lacuna_sealed::OpenOptions { read_only: true, ..options(5) };
    let disk = open_with(medium.clone(), &small, read_only).unwrap();
    assert!(read(&disk, SEGMENT_BLOCKS).unwrap() == content(SEGMENT_BLOCKS, 300));
    assert!(read(&disk, 5).unwrap() == content(5, 100));
}

#[test]
fn a_disk_that_grew_and_holds_nothing_there_opens_as_it_was() {
    for layout in Layout::ALL {
        let (small, large, medium) = grown(layout);
        let disk = open(&medium, &large, 2);
        write(&disk, 7, 1, 101).unwrap();
        disk.close().unwrap();
        let disk = open(&medium, &small, 3);
        assert!(read(&disk, 7).unwrap() == content(7, 101));
        write(&disk, SEGMENT_BLOCKS, 1, 102).unwrap();
        disk.close().unwrap();
        let disk = open(&medium, &large, 4);
        assert!(read(&disk, SEGMENT_BLOCKS).unwrap() == content(SEGMENT_BLOCKS, 102));
    }
}
