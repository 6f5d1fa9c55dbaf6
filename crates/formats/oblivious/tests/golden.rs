//! The frozen format: a disk kept as a file must open and read as it did when it was made.
//!
//! The file holds the blocks of the medium that are read when the disk is opened and when every
//! block of all levels is read, each after its offset (8 bytes, little-endian). All other blocks
//! are random or garbage; they are zeros here.

mod fixture;

use fixture::{create, fill, flush_hidden, open, open_with, options, params};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Levels, OpenOptions};
use lacuna_sim::{OpKind, Recorder};
use lacuna_testkit::golden_medium;
use lacuna_testkit::levels::assert_contents;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Written blocks of each level and their stamps; all other blocks read as zeros.
const CONTENTS: [&[(u64, u64)]; 3] = [&[(0, 3), (5, 1), (9, 2)], &[(1, 4), (30, 5)], &[(0, 6), (3, 7)]];

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/oblivious-v1.sparse")
}

/// The medium of a closed disk with [`CONTENTS`], after overwrites, discards and a lap of the ring,
/// with the maps written out.
fn make() -> Vec<u8> {
    let (params, count) = (params(), CONTENTS.len());
    let memory = Arc::new(MemoryMedium::new(params.end()));
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

fn opened_medium() -> Arc<dyn Medium> {
    Arc::new(MemoryMedium::from_bytes(golden_medium(&path(), params().end())))
}

/// Opens a medium without writing to it, and compares every block with [`CONTENTS`].
fn check(medium: &Arc<dyn Medium>) {
    for levels in 1..=CONTENTS.len() {
        let options = OpenOptions { read_only: true, ..options(3, 4) };
        let disk = open_with(medium, &params(), levels, options).unwrap();
        disk.levels().iter().zip(CONTENTS).for_each(|(level, contents)| assert_contents(level, contents));
    }
}

#[test]
fn the_golden_disk_opens_and_takes_writes() {
    let medium = opened_medium();
    check(&medium);
    // This rewrites many cells in place.
    let disk = open(&medium, &params(), CONTENTS.len(), 9).unwrap();
    (0..100).for_each(|_| disk.refresh().unwrap());
    disk.close().unwrap();
    check(&medium);
}

/// The golden file must not depend on the time of making: made again, it is the same.
#[test]
#[ignore = "makes the golden disk, which is never made again"]
fn write_the_golden_disk() {
    let bytes = make();
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::from_bytes(bytes.clone()))));
    let medium: Arc<dyn Medium> = recorder.clone();
    check(&medium);
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
    std::fs::create_dir_all(path().parent().unwrap()).unwrap();
    assert!(!path().exists(), "it is there already");
    std::fs::write(path(), kept).unwrap();
}
