//! The versions of the format as they are for ever: disks kept as files, which must open and read as they did when they
//! were made, and take writes.
//!
//! The file holds the blocks of the medium that are not zero, each behind its offset (8 bytes, little-endian).

mod fixture;

use fixture::{create, fill, flush_hidden, open, params_of};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_deniable::{Geometry, Levels, Params, Version};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::levels::{has_contents, kept_medium};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Written blocks of each level and their stamps; all others read as zeros.
const CONTENTS: [&[(u64, u64)]; 3] = [&[(0, 3), (5, 1), (9, 2)], &[(1, 4), (30, 5)], &[(2, 6), (7, 8)]];

/// A kept disk.
struct Golden {
    file: &'static str,
    params: Params,
    levels: usize,
}

impl Golden {
    /// Two levels that share their slots, once round.
    fn version_1() -> Golden {
        let planned = params_of(Geometry::PAPER, 64);
        let params = Params { version: Version::Shared { hidden_blocks: planned.most_blocks(1) }, ..planned };
        Golden { file: "deniable-v1.sparse", params, levels: 2 }
    }

    /// Three levels, each with slots of its own.
    fn version_2() -> Golden {
        Golden {
            file: "deniable-v2.sparse",
            params: params_of(Geometry { public: 1, hidden: 5 }, 64),
            levels: 3,
        }
    }

    fn path(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(self.file)
    }

    fn bytes(&self) -> Vec<u8> {
        kept_medium(&self.path(), self.params.medium_len())
    }
}

/// The medium of a disk with [`CONTENTS`]: overwritten, discarded, the log once round.
fn make(golden: &Golden) -> Vec<u8> {
    let Golden { params, levels: count, .. } = golden;
    let memory = Arc::new(MemoryMedium::new(params.medium_len()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, params, *count, 1).unwrap();
    let disk = open(&medium, params, *count, 2).unwrap();
    let levels = disk.levels();
    let write = |level: usize, block: u64, stamp: u64| {
        let mut data = vec![0; BLOCK_SIZE];
        fill(block, stamp, &mut data);
        levels[level].write(BlockAddr(block), &data).unwrap();
    };
    for (level, contents) in CONTENTS.iter().enumerate().take(*count) {
        contents.iter().for_each(|(block, stamp)| write(level, *block, *stamp));
    }
    write(0, 6, 9);
    write(1, 2, 9);
    for round in 0..70 {
        write(0, 5, 100 + round);
    }
    write(0, 5, 1);
    levels[0].discard(BlockAddr(6), 1).unwrap();
    levels[1..].iter().for_each(|level| flush_hidden(&disk, level).unwrap());
    levels[1].discard(BlockAddr(2), 1).unwrap();
    flush_hidden(&disk, &levels[1]).unwrap();
    disk.close().unwrap();
    memory.snapshot()
}

#[test]
fn golden_disks_open() {
    for golden in [Golden::version_1(), Golden::version_2()] {
        for levels in 1..=golden.levels {
            let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(golden.bytes()));
            let disk = open(&medium, &golden.params, levels, 3).unwrap();
            disk.levels().iter().zip(CONTENTS).for_each(|(level, contents)| has_contents(level, contents));
        }
    }
}

#[test]
fn golden_disks_take_writes_for_laps() {
    for golden in [Golden::version_1(), Golden::version_2()] {
        let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(golden.bytes()));
        let mut stamp = 1 << 30;
        for session in 0..3 {
            let disk = open(&medium, &golden.params, golden.levels, 10 + session).unwrap();
            let levels = disk.levels();
            for round in 0..120 {
                for level in &levels {
                    stamp += 1;
                    let mut data = vec![0; BLOCK_SIZE];
                    let block = [11, 12, 13][round % 3];
                    fill(block, stamp, &mut data);
                    level.write(BlockAddr(block), &data).unwrap();
                }
                disk.refresh().unwrap();
            }
            for level in &levels {
                level.discard(BlockAddr(11), 3).unwrap();
            }
            levels[1..].iter().for_each(|level| flush_hidden(&disk, level).unwrap());
            disk.close().unwrap();
            drop((levels, disk));
            let again = open(&medium, &golden.params, golden.levels, 20 + session).unwrap();
            again.levels().iter().zip(CONTENTS).for_each(|(level, contents)| has_contents(level, contents));
        }
    }
}

#[test]
#[ignore = "makes the golden disk of version 2, which is never made again"]
fn write_the_golden_disk() {
    let golden = Golden::version_2();
    let bytes = make(&golden);
    let mut kept = Vec::new();
    for (at, block) in bytes.chunks(BLOCK_SIZE).enumerate().filter(|(_, b)| b.iter().any(|&byte| byte != 0)) {
        kept.extend(((at * BLOCK_SIZE) as u64).to_le_bytes());
        kept.extend(block);
    }
    assert!(!golden.path().exists(), "it is there already");
    std::fs::write(golden.path(), kept).unwrap();
}
