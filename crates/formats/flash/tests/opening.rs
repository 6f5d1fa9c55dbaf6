//! Power cuts while a disk is opened after a power cut: the content of the log is found again,
//! whichever operations of the openings are cut, and however often.

#[allow(dead_code)]
#[path = "fixture/adversary.rs"]
mod adversary;
mod fixture;

use adversary::{Adversary, ChipLayout};
use fixture::{CreatedDisk, master, options, random};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Result};
use lacuna_flash::{FlashDisk, Params, header_lebs};
use lacuna_medium::MemoryMedium;
use lacuna_nand::{ChipGeometry, Mapping, PowerCut, SimulatedChip};
use std::sync::Arc;

const GEOMETRY: ChipGeometry = ChipGeometry { page: 2048, pages: 16, blocks: 80 };

fn open(
    medium: &Arc<MemoryMedium>,
    params: &Params,
    cut: Option<u64>,
) -> (Arc<SimulatedChip>, Result<FlashDisk>) {
    open_with(medium, params, cut, cut.unwrap_or(1000))
}

/// [`open`] with another random seed.
fn open_with(
    medium: &Arc<MemoryMedium>,
    params: &Params,
    cut: Option<u64>,
    seed: u64,
) -> (Arc<SimulatedChip>, Result<FlashDisk>) {
    let chip = Arc::new(SimulatedChip::open(medium.clone(), 1).unwrap());
    let flash = Arc::new(Mapping::open(chip.clone()).unwrap());
    if let Some(after) = cut {
        chip.cut_power(PowerCut { after, seed: after });
    }
    (chip, FlashDisk::open(flash, params, &master(), &options(1 << 18, random(seed))))
}

fn content(block: u64, version: u64) -> Vec<u8> {
    (version << 20 | block).to_le_bytes().into_iter().cycle().take(BLOCK_SIZE).collect()
}

fn check(disk: &FlashDisk, versions: &[u64], what: &str) {
    for (block, version) in (0..).zip(versions) {
        let mut found = vec![0; BLOCK_SIZE];
        disk.read(BlockAddr(block), &mut found).unwrap();
        assert!(found == content(block, *version), "{what}: block {block} is not as it was flushed");
    }
    assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new(), "{what}");
}

/// A disk that was dropped after writes without a checkpoint, and the versions of its blocks.
fn crashed() -> (Arc<MemoryMedium>, Params, Vec<u64>) {
    let CreatedDisk { memory: medium, params, .. } = CreatedDisk::on(GEOMETRY, 32, 300);
    // The first erase blocks hold only versions that later ones replace.
    let disk = open(&medium, &params, None).1.unwrap();
    let mut versions = vec![0; 12];
    for version in 1..5 {
        for (block, held) in (0..).zip(versions.iter_mut()) {
            disk.write(BlockAddr(block), &content(block, version)).unwrap();
            *held = version;
        }
        disk.flush().unwrap();
    }
    drop(disk);
    (medium, params, versions)
}

/// Erase blocks of the log without live nodes stay part of the log until the next checkpoint.
#[test]
fn an_opening_cut_at_any_operation_loses_nothing() {
    let (medium, params, versions) = crashed();
    let crashed = medium.snapshot();
    let mut cuts = 0;
    for first in 0.. {
        let medium = Arc::new(MemoryMedium::from_bytes(crashed.clone()));
        let (chip, opened) = open(&medium, &params, Some(first));
        if !chip.is_off() {
            check(&opened.unwrap(), &versions, "uncut");
            break;
        }
        // It may have opened before the cut, if the cut hit an operation after the checkpoint.
        drop(opened);
        let (chip, opened) = open(&medium, &params, Some(first / 2));
        if let Ok(disk) = opened
            && !chip.is_off()
        {
            check(&disk, &versions, &format!("cut {first}, then none"));
        }
        let opened = open(&medium, &params, None).1.unwrap_or_else(|e| panic!("cut {first}: {e}"));
        check(&opened, &versions, &format!("cut {first}"));
        cuts += 1;
    }
    assert!(cuts > 2, "{cuts}");
}

/// Pages of the index are all encrypted under one key, so their nonces must never repeat. Here the
/// sequence number alone keeps them distinct, whatever random bits are drawn: the adversary reads
/// the chip after each opening, and most openings are cut.
#[test]
fn no_sequence_number_is_used_twice_by_openings_that_are_cut() {
    let (medium, params, versions) = crashed();
    let mut adversary = Adversary::new(
        &master(),
        ChipLayout {
            page: GEOMETRY.page as usize,
            block: GEOMETRY.block_len() as usize,
            key_len: 32,
            header_lebs: header_lebs(params.flash),
            key_lebs: params.key_blocks(),
        },
    );
    let mut cuts = 0;
    for seed in 0..90 {
        // Most openings are cut, before they write or in the middle.
        let cut = (seed % 15 != 14).then_some(seed * 7 % 13);
        let (chip, opened) = open_with(&medium, &params, cut, seed);
        if cut.is_none() {
            let disk = opened.as_ref().unwrap();
            check(disk, &versions, &format!("opening {seed}"));
            // Change the page of the index once more.
            let block = disk.blocks() - 1 - seed % 4;
            disk.write(BlockAddr(block), &content(block, seed)).unwrap();
            disk.flush().unwrap();
        }
        cuts += u64::from(opened.is_err());
        drop(opened);
        adversary.look(&chip.image().unwrap());
    }
    let mut pages = 0;
    for (sequence, nodes) in adversary.by_sequence() {
        assert_eq!(nodes.len(), 1, "sequence number {sequence:x} was given to {} nodes", nodes.len());
        pages += 1;
    }
    assert!(cuts > 40 && pages > 20, "{cuts} cuts, {pages} nodes");
}
