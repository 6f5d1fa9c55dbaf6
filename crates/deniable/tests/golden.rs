//! Version 1 of the format as it is for ever: a disk of two levels, kept as a file, that must open and read as it did when
//! it was made.
//!
//! The file holds the blocks of the medium that are not zero, each behind its offset (8 bytes, little-endian).

mod fixture;

use fixture::{create, fill, flush_hidden, open, params_of, stamp_of};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_deniable::{Geometry, Params};
use lacuna_medium::{Medium, MemoryMedium};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Written blocks of each level and their stamps; all others read as zeros.
const CONTENTS: [&[(u64, u64)]; 2] = [&[(0, 3), (5, 1), (9, 2)], &[(1, 4), (30, 5)]];

fn golden_params() -> Params {
    params_of(Geometry::PAPER, 64)
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/deniable-v1.sparse")
}

/// The medium of a disk with [`CONTENTS`]: overwritten, discarded, the log once round.
fn make() -> Vec<u8> {
    let params = golden_params();
    let memory = Arc::new(MemoryMedium::new(params.medium_len()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, &params, 2, 1).unwrap();
    let disk = open(&medium, &params, 2, 2).unwrap();
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
    for round in 0..70 {
        write(0, 5, 100 + round);
    }
    write(0, 5, 1);
    levels[0].discard(BlockAddr(6), 1).unwrap();
    flush_hidden(&disk, &levels[1]).unwrap();
    levels[1].discard(BlockAddr(2), 1).unwrap();
    flush_hidden(&disk, &levels[1]).unwrap();
    disk.close().unwrap();
    memory.snapshot()
}

#[test]
fn the_golden_disk_opens() {
    let params = golden_params();
    let kept = std::fs::read(path()).unwrap();
    let mut bytes = vec![0; params.medium_len() as usize];
    for piece in kept.chunks_exact(8 + BLOCK_SIZE) {
        let at = u64::from_le_bytes(piece[..8].try_into().unwrap()) as usize;
        bytes[at..at + BLOCK_SIZE].copy_from_slice(&piece[8..]);
    }
    for levels in 1..=2 {
        let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(bytes.clone()));
        let disk = open(&medium, &params, levels, 3).unwrap();
        for level in disk.levels() {
            let contents = CONTENTS[usize::from(level.level())];
            for block in 0..level.blocks() {
                let mut data = vec![0; BLOCK_SIZE];
                level.read(BlockAddr(block), &mut data).unwrap();
                let expected = contents.iter().find(|(at, _)| *at == block).map_or(0, |(_, stamp)| *stamp);
                assert_eq!(stamp_of(block, &data), Some(expected), "level {}, block {block}", level.level());
            }
        }
    }
}

#[test]
#[ignore = "makes the golden disk, which is never made again"]
fn write_the_golden_disk() {
    let bytes = make();
    let mut kept = Vec::new();
    for (at, block) in bytes.chunks(BLOCK_SIZE).enumerate().filter(|(_, b)| b.iter().any(|&byte| byte != 0)) {
        kept.extend(((at * BLOCK_SIZE) as u64).to_le_bytes());
        kept.extend(block);
    }
    std::fs::create_dir_all(path().parent().unwrap()).unwrap();
    assert!(!path().exists(), "it is there already");
    std::fs::write(path(), kept).unwrap();
}
