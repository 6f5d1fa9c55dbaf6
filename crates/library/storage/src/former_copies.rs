//! Copies of a header that lie where the medium of its disk once ended.
//!
//! The last copy lies at the end of the medium. When a disk grows, the header gets another end, and
//! the copy at the former one stays in the midst of the disk. It opens with the passphrases of its
//! day, so it has to go when a passphrase or the disk ends.

use lacuna_contracts::Result;
use lacuna_header::layout::MAGIC;
use lacuna_header::{HEADER_AREA, HEADER_LEN, HeaderBackup, PublicHeader, TAIL_AREA, Uuid, copy_c};
use lacuna_medium::Medium;
use std::ops::Range;

/// How far behind the end of a disk its medium may have ended: it holds whole segments, the longest
/// of which take less.
const NEAR: u64 = 64 << 20;

/// What a search found.
#[derive(Default)]
pub(crate) struct Found {
    /// Where copies begin.
    pub places: Vec<u64>,
    /// Whether all of it could be read.
    pub complete: bool,
}

/// The places in `range` where a whole header of the disk `uuid` lies, but `last`, where the last
/// copy belongs. Last copies lie at multiples of 64 KiB, so that is where it looks.
pub(crate) fn find(medium: &dyn Medium, uuid: Uuid, range: Range<u64>, last: Option<u64>) -> Found {
    let mut found = Found { places: Vec::new(), complete: true };
    let end = range.end.min(medium.len().saturating_sub(HEADER_LEN as u64));
    let mut at = range.start.max(HEADER_AREA).next_multiple_of(TAIL_AREA);
    while at < end {
        match is_copy(medium, uuid, at) {
            Ok(true) if Some(at) != last => found.places.push(at),
            Ok(_) => {}
            Err(_) => found.complete = false,
        }
        at += TAIL_AREA;
    }
    found
}

/// Overwrites copies, durably.
pub(crate) fn forget(medium: &dyn Medium, places: &[u64]) -> Result<()> {
    places.iter().try_for_each(|at| medium.write_at(*at, &[0; HEADER_LEN]))?;
    if places.is_empty() { Ok(()) } else { medium.sync() }
}

/// Overwrites the copy close behind the end of the disk, of a medium that became longer and has its
/// last copy at the new end: it would open with passphrases that were removed. What cannot be read
/// is left. Whether all of it could be.
pub(crate) fn forget_at_end(medium: &dyn Medium, header: &PublicHeader) -> Result<bool> {
    let near = header.end..header.end.saturating_add(NEAR);
    let found = find(medium, header.uuid, near, copy_c(medium.len()));
    forget(medium, &found.places)?;
    Ok(found.complete)
}

fn is_copy(medium: &dyn Medium, uuid: Uuid, at: u64) -> Result<bool> {
    let mut magic = [0; MAGIC.len()];
    medium.read_at(at, &mut magic)?;
    if magic != MAGIC {
        return Ok(false);
    }
    let mut bytes = vec![0; HEADER_LEN];
    medium.read_at(at, &mut bytes)?;
    Ok(HeaderBackup::parse(&bytes).is_ok_and(|header| header.public().uuid == uuid))
}
