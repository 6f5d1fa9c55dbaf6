//! A whole device whose last partition is a disk: its end looks like the end of that disk, and its
//! beginning is a partition table, in the place where the header of a disk has its first copy.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::Diagnosis;
use lacuna_medium::Medium;

/// The end of the first sector of a table of the MBR kind, which one of the GPT kind has as well,
/// and the beginning of the second sector of one of the GPT kind.
const MBR: (usize, [u8; 2]) = (510, [0x55, 0xaa]);
const GPT: (usize, [u8; 8]) = (512, *b"EFI PART");

/// Whether a partition table lies in the place of the first copy of a header, and only the last
/// copy is there. Errors: what keeps that place from being read.
pub(crate) fn is_there(medium: &dyn Medium) -> Result<bool> {
    if !Diagnosis::of(medium.len(), &|offset, buf| medium.read_at(offset, buf)).has_last_copy_alone() {
        return Ok(false);
    }
    let mut start = [0; 520];
    medium.read_at(0, &mut start)?;
    Ok(start[MBR.0..].starts_with(&MBR.1) || start[GPT.0..].starts_with(&GPT.1))
}

/// Errors: [`Kind::Usage`] where there is one, which what writes copies of the header would
/// overwrite.
pub(crate) fn refuse(medium: &dyn Medium) -> Result<()> {
    if !is_there(medium)? {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "cannot write to this disk")
        .found("a partition table in the place of the first copy of its header, and the last copy alone")
        .expected("a disk of lacuna, and not one whose last partition is such a disk")
        .remedy(
            "name the partition; if a partition table was written over the disk by mistake, take a backup of its header and restore \
             that, which overwrites the table",
        ))
}
