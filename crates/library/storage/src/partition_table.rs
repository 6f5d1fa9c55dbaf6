//! Detects a whole device with a disk as its last partition: the end of the device looks like the
//! end of that disk, and at its beginning a partition table occupies the place of the header's
//! first copy.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::Diagnosis;
use lacuna_medium::Medium;

/// Signatures: the end of the first sector of an MBR (a GPT has it as well), and the beginning of
/// the second sector of a GPT.
const MBR: (usize, [u8; 2]) = (510, [0x55, 0xaa]);
const GPT: (usize, [u8; 8]) = (512, *b"EFI PART");

/// Whether a partition table lies in the place of the first copy of a header, and only the last
/// copy exists. Errors: if that place cannot be read.
pub(crate) fn is_there(medium: &dyn Medium) -> Result<bool> {
    if !Diagnosis::of(medium.len(), &|offset, buf| medium.read_at(offset, buf)).has_last_copy_alone() {
        return Ok(false);
    }
    let mut start = [0; 520];
    medium.read_at(0, &mut start)?;
    Ok(start[MBR.0..].starts_with(&MBR.1) || start[GPT.0..].starts_with(&GPT.1))
}

/// Errors: [`Kind::Usage`] if there is a partition table, since writing copies of the header would
/// overwrite it.
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
