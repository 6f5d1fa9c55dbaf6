//! Tells data of an unknown program in the places of the first two copies of a header from the
//! traces of damage.
//!
//! A header that was wiped or damaged leaves zeros or another filler, random bytes, or a part of
//! the header. Any other bytes are data. If only the last copy is left, the medium may be a whole
//! device with a disk as its last part, and the data that of another part.

use super::content::Foreign;
use lacuna_contracts::Result;
use lacuna_header::{COPY_B, CopyState, Diagnosis, HEADER_LEN};
use lacuna_medium::Medium;

/// The unit of a write that a power cut tears, and of the smallest writes of most programs.
const SECTOR: usize = 512;
/// The most different bytes in a sector of filler: programs that wipe a medium write patterns of up
/// to three bytes.
const FILLER: usize = 4;
/// The least different bytes in a sector of random bytes: 221 on average, and fewer than this in
/// one of 10^11 sectors.
const RANDOM: usize = 190;

const DATA: Foreign = Foreign::new("data of an unknown program").over_first_copies();

/// The data that lies in the places of the first two copies on a medium with the last copy alone.
pub(super) fn over_first_copies(medium: &dyn Medium, found: &Diagnosis) -> Result<Option<Foreign>> {
    let Some(last) = found.copies.last().and_then(|copy| copy.offset).filter(|last| *last > COPY_B) else {
        return Ok(None);
    };
    let read = |at: u64| -> Result<Vec<u8>> {
        let mut bytes = vec![0; HEADER_LEN];
        medium.read_at(at, &mut bytes)?;
        Ok(bytes)
    };
    let header = read(last)?;
    let mut has_data = false;
    for place in &found.copies[..found.copies.len() - 1] {
        let Some(at) = place.offset.filter(|_| place.state == CopyState::Missing) else { continue };
        let bytes = read(at)?;
        if is_part_of(&bytes, &header) {
            return Ok(None);
        }
        has_data |= bytes.chunks(SECTOR).any(|sector| !is_trace_of_damage(sector));
    }
    Ok(has_data.then_some(DATA))
}

/// Whether a part of the header is left in the place of a copy.
fn is_part_of(bytes: &[u8], header: &[u8]) -> bool {
    let mut sectors = bytes.chunks(SECTOR).zip(header.chunks(SECTOR));
    sectors.any(|(here, there)| here == there && distinct(here) > FILLER)
}

fn is_trace_of_damage(sector: &[u8]) -> bool {
    !(FILLER + 1..RANDOM).contains(&distinct(sector))
}

/// The number of different bytes.
fn distinct(sector: &[u8]) -> usize {
    let mut seen = [false; 256];
    sector.iter().for_each(|byte| seen[usize::from(*byte)] = true);
    seen.iter().filter(|seen| **seen).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_crypto::{RandomSource, SeededRandom};
    use lacuna_header::copy_c;
    use lacuna_header::layout::MAGIC;
    use lacuna_medium::MemoryMedium;

    const LEN: u64 = 4 << 20;

    /// A header in the last place alone, with random key slots, and the medium around it.
    fn with_last_copy() -> (MemoryMedium, Vec<u8>) {
        let mut header = vec![0; HEADER_LEN];
        SeededRandom::new(1).fill(&mut header[2048..10_240]);
        header[..MAGIC.len()].copy_from_slice(&MAGIC);
        let medium = MemoryMedium::new(LEN);
        medium.write_at(copy_c(LEN).unwrap(), &header).unwrap();
        (medium, header)
    }

    fn found(medium: &MemoryMedium) -> Option<Foreign> {
        let mut copies = Diagnosis::of(LEN, &|offset, buf| medium.read_at(offset, buf));
        // Its digest is of no interest here.
        copies.copies[2].state = CopyState::Whole;
        assert!(copies.has_only_last_copy());
        over_first_copies(medium, &copies).unwrap()
    }

    #[test]
    fn traces_of_damage_are_no_data() {
        let mut random = vec![0; 1 << 20];
        SeededRandom::new(2).fill(&mut random);
        let pattern: Vec<u8> = [0x92, 0x49, 0x24].into_iter().cycle().take(1 << 20).collect();
        for bytes in [vec![0; 1 << 20], vec![0xa5; 1 << 20], random, pattern] {
            let (medium, _) = with_last_copy();
            medium.write_at(0, &bytes).unwrap();
            assert_eq!(found(&medium), None, "{}", bytes[0]);
        }
        // Another program wrote over the magic numbers only.
        let (medium, header) = with_last_copy();
        for place in [0, COPY_B] {
            medium.write_at(place, &header).unwrap();
            medium.write_at(place, b"some other data at the beginning").unwrap();
        }
        assert_eq!(found(&medium), None);
    }

    #[test]
    fn other_bytes_are_data() {
        let text = b"Dear Alice, these are the figures of the last quarter. ".repeat(400);
        for place in [0, 8192, COPY_B, COPY_B + 1000] {
            let (medium, _) = with_last_copy();
            medium.write_at(place, &text[..4000]).unwrap();
            assert_eq!(found(&medium), Some(DATA), "{place}");
        }
        // Between the copies.
        let (medium, _) = with_last_copy();
        medium.write_at(HEADER_LEN as u64, &text).unwrap();
        assert_eq!(found(&medium), None);
    }
}
