//! Every version of the format as it is for ever: a disk, kept as a file, that must open and read as it did when it was made.
//!
//! The file holds those blocks of the medium that are read when the disk is opened and every block of all levels is, each
//! behind its offset (8 bytes, little-endian). The others are random or garbage; they are zeros here.

mod fixture;

use fixture::{create, fill, flush_hidden, open, open_with, options};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Levels, OpenOptions, Params};
use lacuna_sim::levels::{has_contents, kept_medium};
use lacuna_sim::{OpKind, Recorder};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The parameters of the disk of version 1, as they stand in its header.
const FIRST: &str =
    "0100020306020000e803000008000000200000000800000070040000000000000b010000000000000b01000000000000";

/// Written blocks of each level and their stamps; all others read as zeros. The disk of version 1 has the first two levels.
const CONTENTS: [&[(u64, u64)]; 3] = [&[(0, 3), (5, 1), (9, 2)], &[(1, 4), (30, 5)], &[(0, 6), (3, 7)]];

fn path(version: u8) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/oblivious-v{version}.sparse"))
}

/// The parameters and the levels of the disk of a version.
fn disk_of(version: u8) -> (Params, usize) {
    if version == 2 {
        return (fixture::params(), 3);
    }
    let byte =
        |at: usize| FIRST.get(2 * at..2 * at + 2).map_or(0, |hex| u8::from_str_radix(hex, 16).unwrap());
    let encoded: Vec<u8> = (0..64).map(byte).collect();
    (Params::parse(&encoded).unwrap(), 2)
}

/// The medium of a disk with [`CONTENTS`]: overwritten, discarded, the ring once round, the maps written out; closed.
fn make() -> Vec<u8> {
    let (params, count) = disk_of(2);
    let memory = Arc::new(MemoryMedium::new(params.medium_len()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, &params, count, 1).unwrap();
    let disk = open(&medium, &params, count, 2).unwrap();
    let levels = disk.levels();
    let write = |level: usize, block: u64, stamp: u64| {
        let mut data = vec![0; BLOCK_SIZE];
        fill(block, stamp, &mut data);
        levels[level].write(BlockAddr(block), &data).unwrap();
    };
    for (level, contents) in CONTENTS.iter().enumerate() {
        contents.iter().for_each(|(block, stamp)| write(level, *block, *stamp));
    }
    write(0, 6, 9);
    write(1, 2, 9);
    (0..30).for_each(|round| write(0, 5, 100 + round));
    write(0, 5, 1);
    levels[0].discard(BlockAddr(6), 1).unwrap();
    levels[1..].iter().for_each(|level| flush_hidden(&disk, level).unwrap());
    levels[1].discard(BlockAddr(2), 1).unwrap();
    levels[1..].iter().for_each(|level| flush_hidden(&disk, level).unwrap());
    disk.close().unwrap();
    memory.snapshot()
}

fn kept(version: u8) -> Arc<dyn Medium> {
    Arc::new(MemoryMedium::from_bytes(kept_medium(&path(version), disk_of(version).0.medium_len())))
}

/// Opens a medium without writing to it, and compares every block with [`CONTENTS`].
fn check(medium: &Arc<dyn Medium>, version: u8) {
    let (params, most) = disk_of(version);
    for levels in 1..=most {
        let options = OpenOptions { read_only: true, ..options(3, 4) };
        let disk = open_with(medium, &params, levels, options).unwrap();
        disk.levels().iter().zip(CONTENTS).for_each(|(level, contents)| has_contents(level, contents));
    }
}

#[test]
fn the_golden_disk_of_version_2_opens_and_goes_on() {
    let medium = kept(2);
    check(&medium, 2);
    let (params, levels) = disk_of(2);
    // Many cells are rewritten where they lie.
    let disk = open(&medium, &params, levels, 9).unwrap();
    (0..100).for_each(|_| disk.refresh().unwrap());
    disk.close().unwrap();
    check(&medium, 2);
}

/// It reads; what would change it is refused, and nothing is written to it.
#[test]
fn the_golden_disk_of_version_1_reads() {
    let medium = kept(1);
    check(&medium, 1);
    let (params, levels) = disk_of(1);
    assert!(!params.is_writable());
    let recorder = Arc::new(Recorder::new(medium));
    let medium: Arc<dyn Medium> = recorder.clone();
    let disk = open(&medium, &params, levels, 9).unwrap();
    for level in disk.levels() {
        assert!(level.read_only());
        let refused = level.write(BlockAddr(0), &[0; BLOCK_SIZE]).unwrap_err();
        assert_eq!(refused.kind(), Kind::Permission, "{refused}");
        assert!(refused.to_string().contains("version 1"), "{refused}");
        assert_eq!(level.discard(BlockAddr(0), 1).unwrap_err().kind(), Kind::Permission);
        level.flush().unwrap();
        level.close().unwrap();
    }
    assert!(recorder.take().iter().all(|record| record.kind == OpKind::Read));
    check(&medium, 1);
}

/// What the golden file is made of must not depend on the moment: made again, it is the same.
#[test]
#[ignore = "makes the golden disk, which is never made again"]
fn write_the_golden_disk() {
    let bytes = make();
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::from_bytes(bytes.clone()))));
    let medium: Arc<dyn Medium> = recorder.clone();
    check(&medium, 2);
    let block = BLOCK_SIZE as u64;
    let reads = recorder.take().into_iter().filter(|record| record.kind == OpKind::Read);
    let read: BTreeSet<u64> =
        reads.flat_map(|read| read.offset / block..(read.offset + read.len).div_ceil(block)).collect();
    let mut kept = Vec::new();
    for (at, data) in (0..).zip(bytes.chunks(BLOCK_SIZE)) {
        if read.contains(&at) && data.iter().any(|&byte| byte != 0) {
            kept.extend((at * block).to_le_bytes());
            kept.extend(data);
            kept.resize(kept.len() + BLOCK_SIZE - data.len(), 0);
        }
    }
    std::fs::create_dir_all(path(2).parent().unwrap()).unwrap();
    assert!(!path(2).exists(), "it is there already");
    std::fs::write(path(2), kept).unwrap();
}
