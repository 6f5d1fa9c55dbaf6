//! The header of a disk on flash: the first logical erase blocks, as the [`Medium`] that the header
//! crate writes to.
//!
//! Each copy of the header has erase blocks of its own, which are replaced as a whole. A sync
//! drains the flash: an overwritten key slot is then gone, with the passphrase that opened it.
//!
//! The medium is longer than the erase blocks: bytes between the copies read as zeros and are never
//! written.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_flash::{HEADER_COPY_LEN, header_lebs};
use lacuna_header::{COPY_A, COPY_B, HEADER_AREA, HEADER_LEN, TAIL_AREA};
use lacuna_medium::{Medium, ReadExtent, WriteExtent, check_range};
use lacuna_nand::{Flash, FlashGeometry, Leb, Unerased};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// The offsets of the copies on the medium; the last copy is at its end.
const COPIES: [u64; 3] = [COPY_A, COPY_B, HEADER_AREA];
/// Length of the medium.
const MEDIUM_LEN: u64 = HEADER_AREA + TAIL_AREA;
const _: () =
    assert!(HEADER_COPY_LEN as usize == HEADER_LEN, "flash leaves the erase blocks of a header alone");

fn lebs_of_copy(flash: FlashGeometry) -> u32 {
    header_lebs(flash) / COPIES.len() as u32
}

/// The used bytes of an erase block.
fn used_leb_bytes(flash: FlashGeometry) -> u32 {
    flash.leb_len / flash.page * flash.page
}

/// The header on flash, as a [`Medium`].
pub struct HeaderMedium {
    flash: Arc<dyn Flash>,
    /// Held while a block is read, changed and replaced: the old contents of blocks replaced since
    /// the last sync.
    superseded: Mutex<Vec<Vec<u8>>>,
}

/// A part of a copy, in one erase block.
struct CopyPiece {
    leb: Leb,
    /// Bytes of the medium.
    bytes: Range<u64>,
}

impl HeaderMedium {
    /// The header on this flash.
    pub fn new(flash: Arc<dyn Flash>) -> HeaderMedium {
        HeaderMedium { flash, superseded: Mutex::default() }
    }

    /// All pieces of all copies.
    fn pieces(&self) -> impl Iterator<Item = CopyPiece> {
        let geometry = self.flash.geometry();
        let (each, len) = (lebs_of_copy(geometry), u64::from(used_leb_bytes(geometry)));
        (0..).zip(COPIES).flat_map(move |(copy, start)| {
            (0..each).map(move |part| {
                let from = start + u64::from(part) * len;
                let bytes = from..(from + len).min(start + HEADER_LEN as u64);
                CopyPiece { leb: Leb(copy * each + part), bytes }
            })
        })
    }

    fn read_piece(&self, piece: &CopyPiece) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (piece.bytes.end - piece.bytes.start) as usize];
        if self.flash.is_mapped(piece.leb)? {
            self.flash.read(piece.leb, 0, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Writes the part of `data` that belongs to this piece; `data` begins at byte `offset` of the
    /// medium.
    fn write_piece(&self, piece: &CopyPiece, offset: u64, data: &[u8]) -> Result<()> {
        let Some(part) = overlap(&piece.bytes, offset, data.len()) else { return Ok(()) };
        let mut superseded = self.superseded.lock();
        let mut bytes = self.read_piece(piece)?;
        if bytes.iter().any(|byte| *byte != 0) {
            superseded.push(bytes.clone());
        }
        let from = (part.start - piece.bytes.start) as usize;
        let new = &data[(part.start - offset) as usize..(part.end - offset) as usize];
        bytes[from..from + new.len()].copy_from_slice(new);
        if bytes.iter().any(|byte| *byte != 0) {
            bytes.resize(bytes.len().next_multiple_of(self.flash.geometry().page as usize), 0xff);
            return self.flash.change(piece.leb, &bytes);
        }
        if self.flash.is_mapped(piece.leb)? { self.flash.unmap(piece.leb) } else { Ok(()) }
    }
}

/// Whether the two contain the same 512-byte part at the same place, with more than one byte value.
fn shares_sector(old: &[u8], found: &[u8]) -> bool {
    let mut parts = old.chunks(512).zip(found.chunks(512));
    parts.any(|(old, found)| old == found && old.iter().any(|byte| *byte != old[0]))
}

/// The common bytes of a range and of `len` bytes starting at `offset`.
fn overlap(range: &Range<u64>, offset: u64, len: usize) -> Option<Range<u64>> {
    let common = range.start.max(offset)..range.end.min(offset + len as u64);
    (!common.is_empty()).then_some(common)
}

impl Medium for HeaderMedium {
    fn len(&self) -> u64 {
        MEDIUM_LEN
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        for extent in batch {
            check_range(extent.offset, extent.buf.len() as u64, MEDIUM_LEN)?;
            extent.buf.fill(0);
            for piece in self.pieces() {
                let Some(part) = overlap(&piece.bytes, extent.offset, extent.buf.len()) else { continue };
                let bytes = self.read_piece(&piece)?;
                let (to, from) = (part.start - extent.offset, part.start - piece.bytes.start);
                let len = (part.end - part.start) as usize;
                extent.buf[to as usize..][..len].copy_from_slice(&bytes[from as usize..][..len]);
            }
        }
        Ok(())
    }

    /// No level lies on this medium.
    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        for extent in batch {
            check_range(extent.offset, extent.data.len() as u64, MEDIUM_LEN)?;
            for piece in self.pieces() {
                self.write_piece(&piece, extent.offset, extent.data)?;
            }
        }
        Ok(())
    }

    /// Errors: [`Kind::PurgeIncomplete`] if an older header remains readable because its erase
    /// block went bad.
    fn sync(&self) -> Result<()> {
        let headers = header_lebs(self.flash.geometry());
        let mut superseded = self.superseded.lock();
        // An erase of a failing block may destroy the block's number and leave the rest.
        let of_header = |copy: &Unerased| match copy.leb {
            Some(leb) => leb.0 < headers,
            None => superseded.iter().any(|old| shares_sector(old, &copy.content)),
        };
        let unerased = self.flash.drain_of(&of_header)?;
        self.flash.sync()?;
        superseded.clear();
        if unerased.is_empty() {
            return Ok(());
        }
        Err(Error::new(Kind::PurgeIncomplete, "an older header of the disk cannot be erased")
            .found("an erase block that went bad with a header in it")
            .expected("flash that can be erased")
            .hint(
                "the new header is written; removed passphrases still open the old one: if that matters, \
                 copy the disk to another one, and destroy this flash",
            ))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(offset, len, MEDIUM_LEN)?;
        self.write_at(offset, &vec![0; len as usize])
    }

    fn set_len(&self, len: u64) -> Result<()> {
        if len <= MEDIUM_LEN {
            return Ok(());
        }
        Err(Error::new(Kind::NoSpace, "the header of a disk on flash has a fixed length")
            .found(format!("{len} bytes"))
            .expected(format!("at most {MEDIUM_LEN} bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::MemoryMedium;
    use lacuna_nand::{ChipGeometry, Mapping, SimulatedChip, WearModel};

    fn flash(page: u32, pages: u32) -> (Arc<SimulatedChip>, Arc<dyn Flash>) {
        let geometry = ChipGeometry { page, pages, blocks: 24 };
        let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(geometry)));
        SimulatedChip::create(&*medium, geometry, WearModel::default(), 1).unwrap();
        let chip = Arc::new(SimulatedChip::open(medium, 1).unwrap());
        Mapping::create(&*chip, 7).unwrap();
        (chip.clone(), Arc::new(Mapping::open(chip).unwrap()))
    }

    #[test]
    fn header_copies_are_kept_and_all_other_bytes_are_zero() {
        // Erase blocks longer and shorter than a copy, and a length that does not divide a copy.
        for (page, pages, lebs) in [(4096, 16, 3), (512, 24, 6), (2048, 6, 6)] {
            let (_, flash) = flash(page, pages);
            assert_eq!(header_lebs(flash.geometry()), lebs);
            let medium = HeaderMedium::new(flash.clone());
            medium.write_at(0, &vec![0; HEADER_AREA as usize]).unwrap();
            let copy = |seed: u8| (0..HEADER_LEN).map(|at| (at % 251) as u8 ^ seed).collect::<Vec<u8>>();
            for (seed, at) in (1..).zip(COPIES) {
                medium.write_at(at, &copy(seed)).unwrap();
            }
            medium.write_at(COPY_B + 100, b"changed").unwrap();
            medium.sync().unwrap();
            let medium = HeaderMedium::new(flash);
            for (seed, at) in (1..).zip(COPIES) {
                let mut expected = copy(seed);
                if at == COPY_B {
                    expected[100..107].copy_from_slice(b"changed");
                }
                expected.extend([0; 4096]);
                let mut found = vec![1; expected.len()];
                medium.read_at(at, &mut found).unwrap();
                assert_eq!(found, expected);
            }
            assert_eq!(medium.read_at(MEDIUM_LEN - 1, &mut [0; 2]).unwrap_err().kind(), Kind::Io);
        }
    }

    #[test]
    fn a_sync_erases_superseded_headers_from_the_chip() {
        let (chip, flash) = flash(2048, 32);
        let medium = HeaderMedium::new(flash);
        let there = |text: &[u8]| chip.image().unwrap().windows(text.len()).any(|at| at == text);
        medium.write_at(0, b"the old key slot").unwrap();
        medium.write_at(0, b"the new key slot").unwrap();
        assert!(there(b"the old key slot"));
        medium.sync().unwrap();
        assert!(!there(b"the old key slot") && there(b"the new key slot"));
    }
}
