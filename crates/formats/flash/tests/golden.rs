//! Every version of the format is fixed: a chip with a disk, kept as a file, opens and reads as it
//! did when it was made.
//!
//! The file holds the nonzero blocks of the chip's file, each behind its offset (8 bytes,
//! little-endian). The parameters lie beside it, encoded as in a header.

mod fixture;
mod second_reader;

use fixture::{master, options, random};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_flash::{FlashDisk, OpenOptions, Params};
use lacuna_medium::MemoryMedium;
use lacuna_nand::{ChipGeometry, Flash, Mapping, SimulatedChip, WearModel};
use lacuna_testkit::{golden_medium, write_golden_medium};
use second_reader::SecondReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const GEOMETRY: ChipGeometry = ChipGeometry { page: 2048, pages: 16, blocks: 64 };

/// Written blocks and their versions; all other blocks read as zeros.
const CONTENTS: [(u64, u64); 7] = [(0, 1), (1, 1), (2, 3), (3, 3), (7, 2), (8, 4), (40, 1)];
/// The number of versions that were deleted after the last purge: at least their keys are
/// recoverable.
const DELETED: u64 = 3;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn content(block: u64, version: u64) -> Vec<u8> {
    (version << 20 | block).to_le_bytes().into_iter().cycle().take(BLOCK_SIZE).collect()
}

fn open(medium: &Arc<MemoryMedium>, params: &Params, read_only: bool) -> FlashDisk {
    let chip = Arc::new(SimulatedChip::open(medium.clone(), 1).unwrap());
    let flash: Arc<dyn Flash> = Arc::new(Mapping::open(chip).unwrap());
    let options = OpenOptions { read_only, ..options(1 << 18, random(2)) };
    FlashDisk::open(flash, params, &master(), &options).unwrap()
}

/// A disk with [`CONTENTS`] that was overwritten and purged, then had blocks deleted without a
/// purge, and was not closed.
fn make() -> (Vec<u8>, Params) {
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    SimulatedChip::create(&*medium, GEOMETRY, WearModel::default(), 1).unwrap();
    let chip = Arc::new(SimulatedChip::open(medium.clone(), 1).unwrap());
    Mapping::create(&*chip, 0x601d).unwrap();
    let flash: Arc<dyn Flash> = Arc::new(Mapping::open(chip).unwrap());
    let params = Params::fitting(flash.geometry(), 16, 200).unwrap();
    FlashDisk::create(&flash, &params, &master(), &random(1)).unwrap();
    drop(flash);
    let disk = open(&medium, &params, false);
    let write = |block: u64, version: u64| {
        disk.write(BlockAddr(block), &content(block, version)).unwrap();
        disk.flush().unwrap();
    };
    [0, 1, 2, 3, 40, 41].into_iter().for_each(|block| write(block, 1));
    [2, 3, 7].into_iter().for_each(|block| write(block, 2));
    disk.purge().unwrap();
    write(9, 3);
    write(2, 3);
    write(8, 4);
    // With version 2 of block 2, three versions are recoverable.
    disk.discard(BlockAddr(9), 1).unwrap();
    disk.discard(BlockAddr(41), 1).unwrap();
    write(3, 3);
    drop(disk);
    (medium.snapshot(), params)
}

fn golden_files() -> (Vec<u8>, Vec<u8>) {
    let bytes = golden_medium(&path("flash-v1.sparse"), SimulatedChip::medium_len(GEOMETRY));
    (bytes, std::fs::read(path("flash-v1.params")).unwrap())
}

fn check(disk: &FlashDisk) {
    for block in 0..disk.blocks() {
        let version = CONTENTS.iter().find(|(at, _)| *at == block).map_or(0, |(_, version)| *version);
        let expected = if version == 0 { vec![0; BLOCK_SIZE] } else { content(block, version) };
        let mut found = vec![0; BLOCK_SIZE];
        disk.read(BlockAddr(block), &mut found).unwrap();
        assert!(found == expected, "block {block}");
    }
    assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new());
}

#[test]
fn the_golden_disk_opens_and_takes_writes() {
    let (bytes, params) = golden_files();
    let (medium, params) =
        (Arc::new(MemoryMedium::from_bytes(bytes.clone())), Params::parse(&params).unwrap());
    let disk = open(&medium, &params, true);
    check(&disk);
    assert!(disk.recoverable() >= DELETED);
    drop(disk);
    assert!(medium.snapshot() == bytes, "it is read alone");
    let disk = open(&medium, &params, false);
    check(&disk);
    assert!(disk.recoverable() >= DELETED);
    disk.purge().unwrap();
    assert_eq!(disk.recoverable(), 0);
    disk.write(BlockAddr(20), &content(20, 5)).unwrap();
    disk.discard(BlockAddr(20), 1).unwrap();
    disk.close().unwrap();
    let disk = open(&medium, &params, false);
    check(&disk);
    assert_eq!(disk.recoverable(), 0);
}

#[test]
fn the_golden_disk_matches_the_page() {
    let (bytes, params) = golden_files();
    let reader = SecondReader::read(&bytes, &params, &master());
    for block in 0..reader.params.blocks {
        let version =
            CONTENTS.iter().find(|(at, _)| *at == block).map(|(_, version)| content(block, *version));
        assert!(reader.block(block) == version, "block {block}");
    }
    assert_eq!((reader.epoch, reader.purging), (1, false));
    assert!(reader.deleted.len() as u64 >= DELETED);
}

#[test]
#[ignore = "makes the golden disk, which is never made again"]
fn write_the_golden_disk() {
    let (bytes, params) = make();
    let medium = Arc::new(MemoryMedium::from_bytes(bytes.clone()));
    check(&open(&medium, &params, true));
    write_golden_medium(&path("flash-v1.sparse"), &bytes);
    std::fs::write(path("flash-v1.params"), params.encode()).unwrap();
}
