//! Stale copies of a header, at former ends of the disk's medium.
//!
//! The last copy lies at the end of the medium. When a disk grows, the header gets a copy at the
//! new end, and the copy at the former end remains inside the disk. It opens with its old
//! passphrases, so it must be removed when a passphrase or the disk is removed.

use lacuna_contracts::Result;
use lacuna_header::layout::MAGIC;
use lacuna_header::{HEADER_AREA, HEADER_LEN, HeaderBackup, PublicHeader, TAIL_AREA, Uuid, copy_c};
use lacuna_medium::Medium;
use std::ops::Range;

/// How far behind the end of a disk its medium may have ended: the disk has whole segments, and the
/// longest takes less than this.
const MAX_DISTANCE: u64 = 64 << 20;

/// The result of a search.
#[derive(Default)]
pub(crate) struct StaleHeaders {
    /// The offsets of copies.
    pub offsets: Vec<u64>,
    /// Whether the whole range was readable.
    pub is_complete: bool,
}

/// The offsets in `range` of intact headers of the disk `uuid`, except `last`, the proper place of
/// the last copy. Last copies lie at multiples of 64 KiB, so only those are searched.
pub(crate) fn find(medium: &dyn Medium, uuid: Uuid, range: Range<u64>, last: Option<u64>) -> StaleHeaders {
    let mut found = StaleHeaders { offsets: Vec::new(), is_complete: true };
    let end = range.end.min(medium.len().saturating_sub(HEADER_LEN as u64));
    if range.start >= end {
        return found;
    }
    let mut at = range.start.max(HEADER_AREA).next_multiple_of(TAIL_AREA);
    while at < end {
        match is_header_of(medium, uuid, at) {
            Ok(true) if Some(at) != last => found.offsets.push(at),
            Ok(_) => {}
            Err(_) => found.is_complete = false,
        }
        at += TAIL_AREA;
    }
    found
}

/// Overwrites copies, durably.
pub(crate) fn wipe(medium: &dyn Medium, places: &[u64]) -> Result<()> {
    places.iter().try_for_each(|at| medium.write_at(*at, &[0; HEADER_LEN]))?;
    if places.is_empty() { Ok(()) } else { medium.sync() }
}

/// Overwrites the copy closely behind the end of a disk with an extended medium, where the last
/// copy is at the new end: the former one would open with removed passphrases. Unreadable places
/// are skipped. Returns whether all places were readable.
pub(crate) fn wipe_behind_end(medium: &dyn Medium, header: &PublicHeader) -> Result<bool> {
    let found = find_at_end(medium, header);
    wipe(medium, &found.offsets)?;
    Ok(found.is_complete)
}

/// The copies closely behind the end of a disk, except the last copy in its proper place. The end
/// may be any number: it need not be authenticated.
pub(crate) fn find_at_end(medium: &dyn Medium, header: &PublicHeader) -> StaleHeaders {
    let near = header.end..header.end.saturating_add(MAX_DISTANCE);
    find(medium, header.uuid, near, copy_c(medium.len()))
}

fn is_header_of(medium: &dyn Medium, uuid: Uuid, at: u64) -> Result<bool> {
    let mut magic = [0; MAGIC.len()];
    medium.read_at(at, &mut magic)?;
    if magic != MAGIC {
        return Ok(false);
    }
    let mut bytes = vec![0; HEADER_LEN];
    medium.read_at(at, &mut bytes)?;
    Ok(HeaderBackup::parse(&bytes).is_ok_and(|header| header.public().uuid == uuid))
}
