//! Taking up a chip that somebody made up: for fuzzing.

use crate::chip::{ChipGeometry, Peb};
use crate::erase_block::{EraseHeader, HEADER_PAGES, VolumeHeader};
use crate::flash::{Flash, Leb};
use crate::mapping::Mapping;
use crate::simulated::{SimulatedChip, Wearing};
use lacuna_core::Result;
use lacuna_medium::{Medium, MemoryMedium};
use std::sync::Arc;

const GEOMETRY: ChipGeometry = ChipGeometry { page: 512, pages: 6, blocks: 16 };
/// Bytes of input for one erase block.
const PIECE: usize = 40;
/// Where the states of erase blocks lie, and the blocks themselves.
const STATES: u64 = 4096;
const BLOCKS: u64 = 8192;

/// Opens the input as the file of a chip; then makes a chip whose erase blocks have headers as each 40 bytes of the input say,
/// attaches it, reads every LEB, and writes, changes, unmaps and drains what opens.
pub fn fuzz_scan(input: &[u8]) {
    let mut file = input.to_vec();
    file.resize(SimulatedChip::medium_len(GEOMETRY) as usize, 0);
    use_chip(Arc::new(MemoryMedium::from_bytes(file)));
    if let Ok(medium) = forge(input) {
        use_chip(medium);
    }
}

fn use_chip(medium: Arc<MemoryMedium>) {
    let Ok(chip) = SimulatedChip::open(medium.clone(), 1) else { return };
    // The file says how long a chip is; what a scan takes is as long as its blocks.
    let Ok(flash) = Mapping::open(Arc::new(chip)) else { return };
    let geometry = flash.geometry();
    let content = |flash: &Mapping, leb: Leb| {
        let mut content = vec![0; geometry.leb_len as usize];
        flash.read(leb, 0, &mut content).map(|()| content)
    };
    let before: Vec<_> = (0..geometry.lebs).map(|leb| content(&flash, Leb(leb)).ok()).collect();
    let page = vec![7; geometry.page as usize];
    let changed = flash.change(Leb(0), &page).is_ok();
    let last = Leb(geometry.lebs - 1);
    let _refused = flash.unmap(last).and_then(|()| flash.program(last, geometry.page, &page));
    let _worn = flash.drain();
    drop(flash);
    // The next opening finds what was changed, and all that was not.
    let Ok(chip) = SimulatedChip::open(medium, 2) else { panic!("a chip that was written to opens no more") };
    let Ok(flash) = Mapping::open(Arc::new(chip)) else { panic!("LEBs that were written to open no more") };
    for (leb, before) in (1..last.0).zip(&before[1..]) {
        assert!(content(&flash, Leb(leb)).ok() == *before, "LEB {leb} changed by itself");
    }
    if changed && last != Leb(0) {
        assert!(
            content(&flash, Leb(0)).is_ok_and(|found| found[..page.len()] == page),
            "LEB 0 lost its content"
        );
    }
}

/// A chip whose erase blocks are as the input says, 40 bytes each:
///
/// ```text
///   0  flags     bit 0: no erase header; 1: a damaged one; 2: no volume header; 3: a damaged one; 4: it replaces another;
///                5: with a wrong checksum; 6: its state is made up; 7: another image
///   1  leb
///   2  pages of content
///   3  filler
///   4  lebs, if 8 bits of it are not zero
///   8  erasures
///  16  sequence
///  24  state
/// ```
fn forge(input: &[u8]) -> Result<Arc<MemoryMedium>> {
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    SimulatedChip::create(&*medium, GEOMETRY, Wearing::default(), 1)?;
    let page = GEOMETRY.page as usize;
    for (peb, piece) in (0..GEOMETRY.blocks).map(Peb).zip(input.chunks(PIECE)) {
        let mut said = [0; PIECE];
        said[..piece.len()].copy_from_slice(piece);
        let flag = |bit: u8| said[0] >> bit & 1 == 1;
        let word = |at: usize| u64::from_le_bytes(said[at..at + 8].try_into().expect("8 bytes"));
        let lebs = u32::from_le_bytes(said[4..8].try_into().expect("4 bytes"));
        let mut block = vec![0xff; GEOMETRY.block_len() as usize];
        let held = usize::from(said[2] % 5).min(GEOMETRY.pages as usize - HEADER_PAGES as usize) * page;
        let mut next = 0;
        if !flag(0) {
            let lebs = if lebs >> 24 == 0 { 12 } else { lebs };
            let header = EraseHeader { erasures: word(8) >> 12, lebs, image: u64::from(flag(7)) };
            block[..page].copy_from_slice(&header.page(page));
            block[usize::from(said[1]) % 32] ^= u8::from(flag(1));
            next = 1;
        }
        if !flag(2) {
            let content = HEADER_PAGES as usize * page..HEADER_PAGES as usize * page + held;
            block[content.clone()].fill(said[3]);
            let copied = crc32fast::hash(&block[content]) ^ u32::from(flag(5));
            let header = VolumeHeader {
                leb: u32::from(said[1]),
                sequence: word(16) >> 14,
                copied: flag(4).then_some((held as u32, copied)),
            };
            block[page..2 * page].copy_from_slice(&header.page(page));
            block[page + usize::from(said[3]) % 40] ^= u8::from(flag(3));
            next = HEADER_PAGES + (held / page) as u32;
        }
        let inverted: Vec<u8> = block.iter().map(|byte| !byte).collect();
        medium.write_at(BLOCKS + u64::from(peb.0) * GEOMETRY.block_len(), &inverted)?;
        let mut state = [0; 16];
        state[8..12].copy_from_slice(&next.to_le_bytes());
        if flag(6) {
            state.copy_from_slice(&said[24..40]);
            // Few states are possible.
            state[6..]
                .iter_mut()
                .enumerate()
                .for_each(|(at, byte)| *byte &= [0, 0, 7, 0, 0, 0, 1, 0, 0, 0][at]);
        }
        medium.write_at(STATES + u64::from(peb.0) * 16, &state)?;
    }
    Ok(medium)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_up_is_refused_or_read() {
        fuzz_scan(&[]);
        for byte in [0, 1, 4, 16, 48, 64, 0xff] {
            fuzz_scan(&[byte; 1000]);
        }
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..300 {
            let mut input = vec![];
            for _ in 0..GEOMETRY.blocks {
                let mut piece = [0; PIECE];
                piece[0] = if next(3) == 0 { 1 << next(8) } else { (next(2) << 4) as u8 };
                piece[1..4].fill_with(|| next(14) as u8);
                piece[16..24].copy_from_slice(&(next(40) << 14).to_le_bytes());
                piece[24..].fill_with(|| next(256) as u8);
                input.extend(piece);
            }
            fuzz_scan(&input);
        }
    }

    /// One that was erased 2⁶⁴ - 1 times cannot be counted on.
    #[test]
    fn states_that_make_no_sense_are_refused() {
        for (at, bytes) in [(0, vec![0xff; 8]), (8, vec![7, 0, 0, 0]), (12, vec![2])] {
            let medium = forge(&[4; PIECE]).unwrap();
            medium.write_at(STATES + 16 * 3 + at, &bytes).unwrap();
            let refused = SimulatedChip::open(medium, 1).err().unwrap();
            assert_eq!(refused.kind(), lacuna_core::Kind::Corrupt, "{refused}");
        }
    }

    /// Numbers that cannot be counted on from stay where they are, and nothing is written that the next opening refuses.
    #[test]
    fn the_last_numbers_are_borne() {
        let last: u64 = (1 << 48) - 1;
        for number in [last - 1, last] {
            let mut input = vec![];
            for peb in 0..GEOMETRY.blocks as u8 {
                let mut piece = [0; PIECE];
                piece[..4].copy_from_slice(&[if peb < 8 { 16 } else { 4 } | 64, peb, 2, peb + 1]);
                piece[8..16].copy_from_slice(&(number << 12).to_le_bytes());
                piece[16..24].copy_from_slice(&(number << 14).to_le_bytes());
                piece[24..32].copy_from_slice(&number.to_le_bytes());
                piece[32] = if peb < 8 { 4 } else { 1 };
                input.extend(piece);
            }
            fuzz_scan(&input);
        }
    }

    /// The forger is no fool: what it makes up opens if it makes sense.
    #[test]
    fn what_makes_sense_opens() {
        let pieces = (0..GEOMETRY.blocks as u8).flat_map(|peb| {
            let mut piece = [0; PIECE];
            piece[..4].copy_from_slice(&[if peb < 8 { 16 } else { 4 }, peb, 2, peb + 1]);
            piece
        });
        let medium = forge(&pieces.collect::<Vec<u8>>()).unwrap();
        let flash = Mapping::open(Arc::new(SimulatedChip::open(medium, 1).unwrap())).unwrap();
        let mut byte = [0];
        for leb in 0..8 {
            flash.read(Leb(leb), 1023, &mut byte).unwrap();
            assert_eq!(byte, [leb as u8 + 1]);
        }
        assert!(!flash.is_mapped(Leb(8)).unwrap());
    }
}
