//! The frozen format: a disk kept as a file must open, read as it did when it was made, and take
//! writes.
//!
//! The file holds the blocks of the medium that are not zero, each after its offset (8 bytes,
//! little-endian).

mod fixture;

use fixture::{create, fill, flush_hidden, open, params_of};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_deniable::{Levels, Params, StripeGeometry};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_testkit::levels::assert_contents;
use lacuna_testkit::{golden_medium, write_golden_medium};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Written blocks of each level and their stamps; all other blocks read as zeros.
const CONTENTS: [&[(u64, u64)]; 3] = [&[(0, 3), (5, 1), (9, 2)], &[(1, 4), (30, 5)], &[(2, 6), (7, 8)]];

const LEVELS: usize = CONTENTS.len();

/// Level 1 has three hidden slots, level 2 has one, one belongs to no level.
fn params() -> Params {
    params_of(StripeGeometry { public: 1, hidden: 5 }, 64)
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/deniable-v1.sparse")
}

fn opened_medium() -> Arc<dyn Medium> {
    Arc::new(MemoryMedium::from_bytes(golden_medium(&path(), params().end())))
}

/// The medium of a disk with [`CONTENTS`], after overwrites, discards and a lap of the log.
fn make() -> Vec<u8> {
    let params = params();
    let memory = Arc::new(MemoryMedium::new(params.end()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, &params, LEVELS, 1).unwrap();
    let disk = open(&medium, &params, LEVELS, 2).unwrap();
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
    levels[1..].iter().for_each(|level| flush_hidden(&disk, level).unwrap());
    levels[1].discard(BlockAddr(2), 1).unwrap();
    flush_hidden(&disk, &levels[1]).unwrap();
    disk.close().unwrap();
    memory.snapshot()
}

#[test]
fn the_golden_disk_opens() {
    for levels in 1..=LEVELS {
        let disk = open(&opened_medium(), &params(), levels, 3).unwrap();
        disk.levels().iter().zip(CONTENTS).for_each(|(level, contents)| assert_contents(level, contents));
    }
}

#[test]
fn the_golden_disk_takes_writes_for_laps() {
    let (medium, params) = (opened_medium(), params());
    let mut stamp = 1 << 30;
    for session in 0..3 {
        let disk = open(&medium, &params, LEVELS, 10 + session).unwrap();
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
        let again = open(&medium, &params, LEVELS, 20 + session).unwrap();
        again.levels().iter().zip(CONTENTS).for_each(|(level, contents)| assert_contents(level, contents));
    }
}

#[test]
#[ignore = "makes the golden disk, which is never made again"]
fn write_the_golden_disk() {
    write_golden_medium(&path(), &make());
}
