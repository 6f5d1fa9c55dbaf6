//! Chips with headers, states and contents forged by an adversary, as in `docs/format/nand.md`.
//! They may answer some reads with earlier contents of erase blocks, or with those of other blocks.

use crate::lying::sim_lies_of_seed;
use lacuna_contracts::{LeWriter, Result};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_nand::{ChipGeometry, Flash, Leb, Mapping, SimulatedChip, WearModel};
use lacuna_sim::{CrashMedium, HonestReads, Lies};
use std::sync::Arc;

const GEOMETRY: ChipGeometry = ChipGeometry { page: 512, pages: 6, blocks: 16 };
const PAGE: usize = GEOMETRY.page as usize;
/// Bytes of input per erase block.
const PIECE: usize = 40;
/// Offsets of the states of erase blocks, and of the blocks.
const STATES: u64 = 4096;
const BLOCKS: u64 = 8192;
/// Pages of an erase block before the content of its LEB.
const HEADER_PAGES: usize = 2;
/// The byte that is written to a chip.
const NEW_BYTE: u8 = 7;
/// Maximum erase count in an erase header.
const MOST_ERASURES: u64 = (1 << 48) - 1;

/// Opens the input as the file of a chip. Then makes a chip with an erase block for every 40 bytes
/// of the input, attaches it, reads every LEB, and writes, changes, unmaps and drains LEBs. If a
/// byte of the first piece asks for lies, a lying chip is used as well.
///
/// # Panics
///
/// On a chip that does not lie: if an unchanged LEB reads differently, or a changed one does not
/// have its new content.
pub fn use_forged(input: &[u8]) {
    let mut file = input.to_vec();
    file.resize(SimulatedChip::medium_len(GEOMETRY) as usize, 0);
    use_chip(Arc::new(MemoryMedium::from_bytes(file)));
    if let Some(lies) = lies(input)
        && let Ok(medium) = chip_with_history(input)
    {
        use_lying_chip(&medium, lies);
    }
    if let Ok(medium) = forge(input) {
        use_chip(medium);
    }
}

/// The lies that the input asks for, in bytes without another meaning: the lowest ones of erase
/// counts and sequence numbers.
fn lies(input: &[u8]) -> Option<Lies> {
    let byte = |at: usize| input.get(at).copied().unwrap_or(0);
    (byte(8) >= 0x80)
        .then(|| sim_lies_of_seed(u32::from_le_bytes([byte(16), byte(PIECE + 8), byte(PIECE + 16) & 1, 0])))
}

/// A chip on which each erase block previously had the content of the next one.
fn chip_with_history(input: &[u8]) -> Result<Arc<CrashMedium>> {
    let medium = Arc::new(CrashMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    medium.keep_history();
    SimulatedChip::create(&*medium, GEOMETRY, WearModel::default(), 1)?;
    put_blocks(&*medium, input.get(PIECE..).unwrap_or_default())?;
    put_blocks(&*medium, input)?;
    Ok(medium)
}

/// Does the same as [`use_chip`] while reads lie, without checking contents.
fn use_lying_chip(medium: &Arc<CrashMedium>, lies: Lies) {
    let Ok(chip) = SimulatedChip::open(medium.clone(), 1) else { return };
    // Reads of the simulation's own state are truthful.
    medium.set_lies_except(
        Some(lies),
        HonestReads { ranges: std::iter::once(0..BLOCKS).collect(), ..HonestReads::default() },
    );
    if let Ok(flash) = Mapping::open(Arc::new(chip)) {
        read_and_change(&flash);
    }
    medium.set_lies(None);
    if let Ok(chip) = SimulatedChip::open(medium.clone(), 2)
        && let Ok(flash) = Mapping::open(Arc::new(chip))
    {
        read_and_change(&flash);
    }
}

/// The content of every LEB, `None` if it is unreadable; and whether LEB 0 was changed afterwards.
fn read_and_change(flash: &Mapping) -> (Vec<Option<Vec<u8>>>, bool) {
    let geometry = flash.geometry();
    let before = (0..geometry.lebs).map(|leb| content(flash, Leb(leb))).collect();
    let page = vec![NEW_BYTE; geometry.page as usize];
    let changed = flash.change(Leb(0), &page).is_ok();
    let last = Leb(geometry.lebs - 1);
    let _refused = flash.unmap(last).and_then(|()| flash.program(last, geometry.page, &page));
    let _worn = flash.drain();
    (before, changed)
}

fn content(flash: &Mapping, leb: Leb) -> Option<Vec<u8>> {
    let mut content = vec![0; flash.geometry().leb_len as usize];
    flash.read(leb, 0, &mut content).is_ok().then_some(content)
}

fn use_chip(medium: Arc<MemoryMedium>) {
    let Ok(chip) = SimulatedChip::open(medium.clone(), 1) else { return };
    // The length of the file bounds the geometry of the chip, and thus the cost of a scan.
    let Ok(flash) = Mapping::open(Arc::new(chip)) else { return };
    let geometry = flash.geometry();
    let (before, changed) = read_and_change(&flash);
    let last = Leb(geometry.lebs - 1);
    drop(flash);
    // A reopened chip has the changed content and all unchanged ones.
    let Ok(chip) = SimulatedChip::open(medium, 2) else {
        panic!("a chip that was written does not open again")
    };
    let Ok(flash) = Mapping::open(Arc::new(chip)) else {
        panic!("flash that was written does not open again")
    };
    for (leb, before) in (1..last.0).zip(&before[1..]) {
        assert!(content(&flash, Leb(leb)) == *before, "LEB {leb} changed by itself");
    }
    if changed && last != Leb(0) {
        let page = vec![NEW_BYTE; geometry.page as usize];
        assert!(
            content(&flash, Leb(0)).is_some_and(|found| found.starts_with(&page)),
            "LEB 0 lost its content"
        );
    }
}

/// A chip with erase blocks that the input describes, 40 bytes each:
///
/// ```text
///   0  flags     bit 0: no erase header; 1: a damaged one; 2: no volume header; 3: a damaged
///                one; 4: it replaces another; 5: with a wrong checksum; 6: a forged state;
///                7: another image
///   1  leb
///   2  pages of content
///   3  filler
///   4  lebs, if its highest byte is not zero
///   8  erasures
///  16  sequence
///  24  state
/// ```
fn forge(input: &[u8]) -> Result<Arc<MemoryMedium>> {
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    SimulatedChip::create(&*medium, GEOMETRY, WearModel::default(), 1)?;
    put_blocks(&*medium, input)?;
    Ok(medium)
}

/// Writes an erase block for every 40 bytes to a chip, with its state.
fn put_blocks(medium: &dyn Medium, input: &[u8]) -> Result<()> {
    for (peb, piece) in (0..u64::from(GEOMETRY.blocks)).zip(input.chunks(PIECE)) {
        let mut said = [0; PIECE];
        said[..piece.len()].copy_from_slice(piece);
        let (block, next) = forge_block(&said);
        let inverted: Vec<u8> = block.iter().map(|byte| !byte).collect();
        medium.write_at(BLOCKS + peb * GEOMETRY.block_len(), &inverted)?;
        let mut state = [0; 16];
        state[8..12].copy_from_slice(&next.to_le_bytes());
        if said[0] >> 6 & 1 == 1 {
            state.copy_from_slice(&said[24..40]);
            // Mask the state, because few states are valid.
            let masks = [0, 0, 7, 0, 0, 0, 1, 0, 0, 0];
            state[6..].iter_mut().zip(masks).for_each(|(byte, mask)| *byte &= mask);
        }
        medium.write_at(STATES + peb * 16, &state)?;
    }
    Ok(())
}

/// The content of an erase block, and its first page that may be programmed.
fn forge_block(said: &[u8; PIECE]) -> (Vec<u8>, u32) {
    let flag = |bit: u8| said[0] >> bit & 1 == 1;
    let word = |at: usize| u64::from_le_bytes(said[at..at + 8].try_into().expect("8 bytes"));
    let lebs = u32::from_le_bytes(said[4..8].try_into().expect("4 bytes"));
    let mut block = vec![0xff; GEOMETRY.block_len() as usize];
    let held = usize::from(said[2] % 5).min(GEOMETRY.pages as usize - HEADER_PAGES) * PAGE;
    let mut next = 0;
    if !flag(0) {
        let lebs = if lebs >> 24 == 0 { 12 } else { lebs };
        put_header(&mut block[..PAGE], 32, |header| {
            let erasures = (word(8) >> 12).min(MOST_ERASURES);
            header.put(0, b"LEC1").u32(4, lebs).u64(8, erasures).u64(16, flag(7).into());
        });
        block[usize::from(said[1]) % 32] ^= u8::from(flag(1));
        next = 1;
    }
    if !flag(2) {
        let content = HEADER_PAGES * PAGE..HEADER_PAGES * PAGE + held;
        block[content.clone()].fill(said[3]);
        let checksum = crc32fast::hash(&block[content]) ^ u32::from(flag(5));
        put_header(&mut block[PAGE..2 * PAGE], 40, |header| {
            header.put(0, b"LVI1").u32(4, said[1].into()).u64(8, word(16) >> 14);
            if flag(4) {
                header.u32(16, 1).u32(20, held as u32).u32(24, checksum);
            }
        });
        block[PAGE + usize::from(said[3]) % 40] ^= u8::from(flag(3));
        next = (HEADER_PAGES + held / PAGE) as u32;
    }
    (block, next)
}

/// Writes a header of `len` bytes, which ends with its checksum, to the start of a page. The rest
/// of the page stays erased.
fn put_header(page: &mut [u8], len: usize, fill: impl FnOnce(&mut LeWriter<'_>)) {
    let header = &mut page[..len];
    header.fill(0);
    fill(&mut LeWriter(header));
    let checksum = crc32fast::hash(&header[..len - 4]);
    LeWriter(header).u32(len - 4, checksum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_chip_is_refused_or_read() {
        use_forged(&[]);
        for byte in [0, 1, 4, 16, 48, 64, 0xff] {
            use_forged(&[byte; 1000]);
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
            use_forged(&input);
            input[8] = 0x80;
            use_forged(&input);
        }
    }

    /// Invalid states are refused: an erase count that cannot be incremented, an unknown page, an
    /// unknown flag.
    #[test]
    fn invalid_states_are_refused() {
        for (at, bytes) in [(0, vec![0xff; 8]), (8, vec![7, 0, 0, 0]), (12, vec![2])] {
            let medium = forge(&[4; PIECE]).unwrap();
            medium.write_at(STATES + 16 * 3 + at, &bytes).unwrap();
            let refused = SimulatedChip::open(medium, 1).err().unwrap();
            assert_eq!(refused.kind(), lacuna_contracts::Kind::Corrupt, "{refused}");
        }
    }

    /// Erase counts and sequence numbers at their limits are accepted, and the chip opens again
    /// afterwards.
    #[test]
    fn counters_at_their_limits_are_accepted() {
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
            use_forged(&input);
        }
    }

    /// A sensible forged chip opens and is read.
    #[test]
    fn a_consistent_forgery_opens() {
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
