//! The death of the process that uses a chip: programmed pages stay, and the operation in progress
//! has not begun, is complete, or is torn.

use lacuna_medium::MemoryMedium;
use lacuna_nand::{Chip, ChipFault, ChipGeometry, Peb, PowerCut, SimulatedChip, WearModel};
use std::sync::Arc;

const GEOMETRY: ChipGeometry = ChipGeometry { page: 512, pages: 8, blocks: 8 };
const PAGE: usize = 512;

fn new_chip() -> Arc<MemoryMedium> {
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    SimulatedChip::create(&*medium, GEOMETRY, WearModel::default(), 1).unwrap();
    medium
}

fn open(medium: &Arc<MemoryMedium>) -> SimulatedChip {
    SimulatedChip::open(medium.clone(), 1).unwrap()
}

fn pages(chip: &SimulatedChip) -> Vec<u8> {
    let mut bytes = vec![0; GEOMETRY.block_len() as usize];
    chip.read(Peb(3), 0, &mut bytes).unwrap();
    bytes
}

/// Lets the process die in the second of two operations.
fn die(chip: &SimulatedChip, seed: u64, last: impl FnOnce(&SimulatedChip) -> Result<(), ChipFault>) {
    chip.end_process(PowerCut { after: 1, seed });
    chip.program(Peb(3), 0, &[1_u8; 2 * PAGE]).unwrap();
    assert!(!chip.is_off() && last(chip).is_err() && chip.is_off());
    assert!(chip.read(Peb(3), 0, &mut [0; PAGE]).is_err());
}

#[test]
fn a_program_in_progress_is_missing_torn_or_complete() {
    let (mut missing, mut torn, mut complete) = (0, 0, 0);
    for seed in 0..60 {
        let medium = new_chip();
        die(&open(&medium), seed, |chip| chip.program(Peb(3), 2, &[2_u8; 4 * PAGE]));
        let chip = open(&medium);
        let found = pages(&chip);
        assert_eq!(found[..2 * PAGE], [1_u8; 2 * PAGE], "seed {seed}");
        assert_eq!(found[6 * PAGE..], [0xff_u8; 2 * PAGE], "seed {seed}");
        let programmed = found[2 * PAGE..6 * PAGE].chunks(PAGE);
        match programmed.take_while(|page| page.iter().all(|byte| *byte == 2)).count() {
            4 => complete += 1,
            0 if found[2 * PAGE..].iter().all(|byte| *byte == 0xff) => missing += 1,
            _ => torn += 1,
        }
        // The pages behind can be programmed, and those before cannot.
        chip.program(Peb(3), 6, &[3_u8; PAGE]).unwrap();
        assert!(chip.program(Peb(3), 1, &[3_u8; PAGE]).is_err());
    }
    assert!(missing > 0 && torn > 0 && complete > 0, "{missing}, {torn}, {complete}");
}

#[test]
fn an_erasure_in_progress_is_missing_torn_or_complete() {
    let (mut usable, mut unusable) = (0, 0);
    for seed in 0..60 {
        let medium = new_chip();
        die(&open(&medium), seed, |chip| chip.erase(Peb(3)));
        let chip = open(&medium);
        // The first pages may be erased, never the second alone.
        let found = pages(&chip);
        assert!(found[..PAGE] == [0xff_u8; PAGE] || found[PAGE..2 * PAGE] == [1_u8; PAGE], "seed {seed}");
        match chip.program(Peb(3), 0, &[3_u8; PAGE]) {
            Ok(()) => {
                assert_eq!(found[..2 * PAGE], [0xff_u8; 2 * PAGE], "seed {seed}");
                usable += 1;
            }
            Err(_) => unusable += 1,
        }
        chip.erase(Peb(3)).unwrap();
        chip.program(Peb(3), 0, &[3_u8; PAGE]).unwrap();
    }
    assert!(usable > 0 && unusable > 0, "{usable}, {unusable}");
}

#[test]
fn a_chip_that_is_switched_off_fails_and_keeps_its_pages() {
    let medium = new_chip();
    let chip = open(&medium);
    chip.program(Peb(3), 0, &[1_u8; PAGE]).unwrap();
    chip.switch_off();
    assert!(chip.program(Peb(3), 1, &[1_u8; PAGE]).is_err() && chip.erase(Peb(3)).is_err());
    assert_eq!(pages(&open(&medium))[..2 * PAGE], [[1_u8; PAGE], [0xff_u8; PAGE]].concat());
}
