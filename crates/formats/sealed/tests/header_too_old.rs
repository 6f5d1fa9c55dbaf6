//! A header from before the disk grew: opening the disk with it is refused if data would be lost,
//! and the data is intact once the disk has its size again.

mod fixture;

use fixture::*;
use lacuna_contracts::{Disk, Kind, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sealed::Params;
use lacuna_sim::{Fault, FaultMedium, OpKind};
use std::sync::Arc;

const SMALL: u64 = 3 * SEGMENT_BLOCKS;
const LARGE: u64 = 9 * SEGMENT_BLOCKS;

/// A disk that has grown, with nothing written to its new part.
fn grown() -> (Params, Params, Arc<MemoryMedium>) {
    grown_from(SMALL)
}

fn grown_from(blocks: u64) -> (Params, Params, Arc<MemoryMedium>) {
    let planned = params(Cipher::Gcm, LARGE);
    let small = params(Cipher::Gcm, blocks);
    let small = Params { map_capacity: planned.map_capacity, ..small };
    let large = Params { blocks: LARGE, ..small };
    let medium = MemoryMedium::new(large.geometry().end());
    create(&medium, &small);
    let medium = Arc::new(medium);
    let disk = open(&medium, &small, 1);
    write(&disk, 5, 3, 100).unwrap();
    disk.close().unwrap();
    (small, large, medium)
}

/// Asserts that opening with the old parameters is refused and changes nothing, and that with the
/// new ones the blocks in `written` are intact.
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
            error
                .to_string()
                .contains(&format!("a disk of more than {} bytes", (least - 1) * SEGMENT_BLOCKS * 4096)),
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
fn an_old_header_with_data_in_the_grown_part_is_refused() {
    let (small, large, medium) = grown();
    let disk = open(&medium, &large, 2);
    write(&disk, 6 * SEGMENT_BLOCKS + 9, 2, 200).unwrap();
    disk.close().unwrap();
    let written = [(5, 100), (6 * SEGMENT_BLOCKS + 9, 200), (5 * SEGMENT_BLOCKS, 0)];
    assert_refused(&small, &large, &medium, 7, &written);
}

#[test]
fn an_old_header_on_a_shortened_medium_is_refused() {
    let (small, large, medium) = grown();
    let disk = open(&medium, &large, 2);
    write(&disk, 8 * SEGMENT_BLOCKS, 1, 200).unwrap();
    disk.close().unwrap();
    // The data lies before the cut, and its map entry is that of a segment which the medium has no
    // room for now.
    medium.set_len(small.geometry().end()).unwrap();
    let error = open_with(medium.clone(), &small, options(3)).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::RolledBack, "{error}");
    medium.set_len(large.geometry().end()).unwrap();
    assert!(read(&open(&medium, &large, 4), 8 * SEGMENT_BLOCKS).unwrap() == content(8 * SEGMENT_BLOCKS, 200));
}

#[test]
fn an_old_header_with_journaled_data_in_the_last_segment_is_refused() {
    let size = SMALL - 100;
    let (small, large, medium) = grown_from(size);
    let disk = open(&medium, &large, 2);
    write(&disk, size + 1, 1, 200).unwrap();
    disk.flush().unwrap();
    drop(disk);
    let error = open_with(medium.clone(), &small, options(3)).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::RolledBack, "{error}");
    let words = format!("of more than {} bytes, and a header that says {}", size * 4096, size * 4096);
    assert!(error.to_string().contains(&words), "{error}");
    assert!(read(&open(&medium, &large, 4), size + 1).unwrap() == content(size + 1, 200));
}

#[test]
fn invalid_entries_beyond_the_disk_are_ignored() {
    let (small, large, medium) = grown();
    let disk = open(&medium, &large, 2);
    write(&disk, 6 * SEGMENT_BLOCKS, 1, 200).unwrap();
    disk.close().unwrap();
    let entry = |segment: u64| small.geometry().map + segment * 16;
    let mut moved = [0; 16];
    medium.read_at(entry(6), &mut moved).unwrap();
    medium.write_at(entry(6), &[0; 16]).unwrap();
    // The entry of one segment in another's place, impossible slot numbers, and noise.
    let last = u64::from(small.map_capacity) - 1;
    for (segment, bytes) in [(5, moved), (6, [0xff; 16]), (7, [0x5a; 16]), (last, moved)] {
        medium.write_at(entry(segment), &bytes).unwrap();
    }
    let disk = open(&medium, &small, 3);
    assert!(read(&disk, 5).unwrap() == content(5, 100));
}

#[test]
fn unreadable_entries_beyond_the_disk_stop_only_writing() {
    let (small, _, medium) = grown();
    let faulty = Arc::new(FaultMedium::new(medium));
    let g = small.geometry();
    let range = g.map + u64::from(g.segments) * 16..g.map_end;
    faulty.add(Fault::FailRange { op: OpKind::Read, range, error: Kind::Io });
    let error = open_with(faulty.clone(), &small, options(3)).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Io, "{error}");
    let read_only = lacuna_sealed::OpenOptions { read_only: true, ..options(4) };
    let disk = open_with(faulty, &small, read_only).unwrap();
    assert!(read(&disk, 5).unwrap() == content(5, 100));
}

#[test]
fn an_old_header_with_journaled_data_is_refused() {
    let (small, large, medium) = grown();
    let disk = open(&medium, &large, 2);
    write(&disk, 4 * SEGMENT_BLOCKS - 1, 1, 200).unwrap();
    disk.flush().unwrap();
    drop(disk);
    assert_refused(&small, &large, &medium, 4, &[(5, 100), (4 * SEGMENT_BLOCKS - 1, 200)]);
    let (small, large, medium) = grown();
    let disk = open(&medium, &large, 2);
    disk.discard(lacuna_contracts::BlockAddr(SMALL + 1), 2).unwrap();
    write(&disk, 1, 1, 300).unwrap();
    disk.flush().unwrap();
    drop(disk);
    // A discard of unwritten blocks leaves nothing behind: the disk opens as before.
    drop(open(&medium, &small, 3));
    assert!(read(&open(&medium, &large, 4), 1).unwrap() == content(1, 300));
}

#[test]
fn an_old_header_with_a_segment_in_a_grown_slot_is_refused() {
    let (small, large, medium) = grown();
    let disk = open(&medium, &large, 2);
    // Each round takes the lowest free slot for the stream and frees the one before. Filling all
    // other segments first leaves high slots for the first ones.
    for segment in (1..9).chain([0]) {
        write(&disk, segment * SEGMENT_BLOCKS, SEGMENT_BLOCKS, 500 + segment).unwrap();
        disk.flush().unwrap();
    }
    disk.discard(lacuna_contracts::BlockAddr(SMALL), LARGE - SMALL).unwrap();
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
fn an_old_header_without_data_in_the_grown_part_opens() {
    let (small, large, medium) = grown();
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
