//! Power cuts while a disk is opened after a power cut: what the log held is found again, whichever operation of the opening is cut,
//! and however often.

use lacuna_core::{BLOCK_SIZE, BlockAddr, Budget, Disk, ManualClock, Result, Secret};
use lacuna_crypto::{RandomSource, SeededRandom};
use lacuna_flash::{FlashDisk, OpenOptions, Params};
use lacuna_medium::MemoryMedium;
use lacuna_nand::{ChipGeometry, Flash, Mapping, PowerCut, SimulatedChip, Wearing};
use std::sync::Arc;

const GEOMETRY: ChipGeometry = ChipGeometry { page: 2048, pages: 16, blocks: 80 };

fn open(
    medium: &Arc<MemoryMedium>,
    params: &Params,
    cut: Option<u64>,
) -> (Arc<SimulatedChip>, Result<FlashDisk>) {
    let chip = Arc::new(SimulatedChip::open(medium.clone(), 1).unwrap());
    let flash = Arc::new(Mapping::open(chip.clone()).unwrap());
    if let Some(after) = cut {
        chip.cut_power(PowerCut { after, seed: after });
    }
    let options = OpenOptions {
        budget: Budget::bytes(1 << 18),
        read_only: false,
        policy: None,
        clock: Arc::new(ManualClock::default()),
        random: Arc::new(SeededRandom::new(cut.unwrap_or(1000))),
    };
    (chip, FlashDisk::open(flash, params, &Secret::copy_from(&[7; 32]), &options))
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

/// Erase blocks of the log in which nothing is live any more are part of the log all the same, until the next checkpoint.
#[test]
fn every_operation_of_an_opening_may_be_cut() {
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    SimulatedChip::create(&*medium, GEOMETRY, Wearing::default(), 1).unwrap();
    let chip = Arc::new(SimulatedChip::open(medium.clone(), 1).unwrap());
    Mapping::create(&*chip, 1).unwrap();
    let flash: Arc<dyn Flash> = Arc::new(Mapping::open(chip).unwrap());
    let params = Params::fitting(flash.geometry(), 32, 300).unwrap();
    let random: Arc<dyn RandomSource> = Arc::new(SeededRandom::new(1));
    FlashDisk::create(&flash, &params, &Secret::copy_from(&[7; 32]), &random).unwrap();
    drop(flash);
    // The first erase blocks hold nothing but versions that later ones replace.
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
    let crashed = medium.snapshot();
    let mut cuts = 0;
    for first in 0.. {
        let medium = Arc::new(MemoryMedium::from_bytes(crashed.clone()));
        let (chip, opened) = open(&medium, &params, Some(first));
        if !chip.is_off() {
            check(&opened.unwrap(), &versions, "uncut");
            break;
        }
        // It may have opened before the cut, if that hit what follows the checkpoint.
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
