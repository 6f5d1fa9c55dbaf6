//! Erases a disk: overwrites all copies of its header, and with them all keys that a passphrase
//! unlocks.
//!
//! The data is not overwritten. Without the header it is noise, even to a holder of all
//! passphrases. A copy of the header elsewhere still opens.

use crate::backing::{DiskRef, PoolAccess, refuse_snapshot};
use crate::create::remove_objects;
use crate::foreign;
use crate::formats::table::refuse_disk_header_in_directory;
use crate::header::stale_headers::{self, StaleHeaders};
use crate::observer::{Observer, run_step};
use crate::opening::claim::DiskClaim;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_crypto::{RandomSource, SystemRandom};
use lacuna_header::{
    COPY_A, COPY_B, CopyState, Diagnosis, HEADER_AREA, HEADER_LEN, Location, PublicHeader, TAIL_AREA, copy_c,
};
use lacuna_medium::Medium;
use std::iter::once;
use std::ops::Range;
use std::path::Path;

/// The longest medium that is searched completely for copies: of a longer one, only the first and
/// the last part of this length.
const MAX_SEARCHED: u64 = 64 << 30;
/// Bytes per write.
const WRITE_LEN: usize = 1 << 16;

/// The disk that is about to be erased.
#[derive(Debug)]
pub struct ErasePlan<'a> {
    /// The header, if a copy of it is intact.
    pub header: Option<&'a PublicHeader>,
    /// Whether only the last copy exists, and the first MiB contains something else. That is the
    /// case if the disk is the last partition of the location, or if something else was written
    /// over a disk. The first MiB is then left unchanged.
    pub last_copy_alone: bool,
}

/// The result of erasing a disk.
#[derive(Debug)]
pub struct Erased {
    /// The header, if a copy of it was intact.
    pub header: Option<PublicHeader>,
    /// Copies at former ends of the medium.
    pub stale_headers: usize,
    /// Whether all of the medium was searched for such copies. That needs a header, and a readable
    /// medium.
    pub searched_all: bool,
    /// Whether the medium was told to discard the overwritten places, and did not refuse.
    pub discarded: bool,
}

/// Overwrites all copies of the header of a disk or vault, and tells the medium to discard them.
/// For a disk in RADOS, removes all its objects. `agree` gets a description of the disk; an error
/// of `agree` stops the command before anything is written.
///
/// Errors: [`Kind::NotFound`] if there is no header, not even a damaged one; [`Kind::Io`] if that
/// is unknown because a place cannot be read; [`Kind::Busy`] while the disk is open;
/// [`Kind::PurgeIncomplete`] on flash that keeps an older header; all errors of the medium.
pub fn erase(
    location: &Location,
    pool_access: &PoolAccess,
    observer: &dyn Observer,
    agree: impl FnOnce(&ErasePlan<'_>) -> Result<()>,
) -> Result<Erased> {
    let what = format!("cannot erase {location}");
    refuse_snapshot(location, "erase")?;
    let disk = DiskRef { location, pool_access };
    let (medium, connection) = disk.hold_header(observer).map_err(|e| e.context(&what))?;
    let diagnosis = Diagnosis::of(medium.len(), &|offset, buf| medium.read_at(offset, buf));
    let unreadable = diagnosis.copies.iter().find(|copy| matches!(copy.state, CopyState::Unreadable(_)));
    if let (false, Some(copy)) = (diagnosis.has_header(), unreadable) {
        return Err(Error::new(Kind::Io, what)
            .found(format!("an unreadable place of a header copy, at byte {}", copy.offset.unwrap_or(0)))
            .expected("a disk or a vault of lacuna")
            .hint("if it is one, overwrite all of it, or destroy the medium"));
    }
    if !diagnosis.has_header() {
        let is_vault = location.path().is_some_and(Path::is_dir);
        let noun = if is_vault { "vault" } else { "disk" };
        let missing = Error::new(Kind::NotFound, what)
            .found("no header, not even a damaged one")
            .expected("a disk or a vault of lacuna")
            .hint(format!(
                "make sure that it is the right location: a {noun} without a header is erased already"
            ));
        // Advice to restore the header is no help where a vault is to be erased.
        return Err(if is_vault { missing } else { foreign::named_in(missing, &*medium, location) });
    }
    diagnosis.header.as_ref().map_or(Ok(()), |header| refuse_disk_header_in_directory(header, location))?;
    let flat = matches!(location, Location::Path(_));
    if let (Some(connection), Some(header)) = (&connection, &diagnosis.header) {
        connection.refuse_copied_header(header.uuid, &what)?;
    }
    let last_copy_alone = flat && diagnosis.has_only_last_copy();
    let header = diagnosis.header;
    let claim = |header: &PublicHeader| DiskClaim::take(header.uuid, header.format, &what, observer);
    let _claim = header.as_ref().map(claim).transpose()?;
    agree(&ErasePlan { header: header.as_ref(), last_copy_alone })?;
    if let (Some(connection), Some(header)) = (&connection, &header) {
        // Before the header, which names the objects: an interrupted removal can then be repeated.
        remove_objects(connection, header.uuid, observer).map_err(|e| e.context(&what))?;
    }
    let mut ranges = copy_ranges(medium.len(), flat);
    if last_copy_alone {
        ranges.retain(|range| range.start >= HEADER_AREA);
    }
    let former = run_step(observer, &format!("searching for stale headers in {location}"), || {
        header
            .as_ref()
            .filter(|_| flat && !last_copy_alone)
            .map(|header| find_stale_headers(&*medium, header))
    });
    // Without a header there is nothing to search for. Copies inside another medium may belong to a
    // partition.
    let former = former.unwrap_or_else(|| StaleHeaders { offsets: Vec::new(), is_complete: !flat });
    ranges.extend(former.offsets.iter().map(|at| *at..at + HEADER_LEN as u64));
    let discarded = overwrite_all(&*medium, &ranges, flat).map_err(|e| e.context(&what))?;
    if let Some(connection) = connection {
        connection.remove_header().and_then(|()| connection.remove_lock()).map_err(|e| e.context(&what))?;
    }
    Ok(Erased { header, stale_headers: former.offsets.len(), searched_all: former.is_complete, discarded })
}

/// The copies of the header at former ends of the medium.
fn find_stale_headers(medium: &dyn Medium, header: &PublicHeader) -> StaleHeaders {
    let len = medium.len();
    let last = (len > MAX_SEARCHED).then(|| len - MAX_SEARCHED..len);
    let mut all = StaleHeaders { offsets: Vec::new(), is_complete: len <= MAX_SEARCHED };
    for part in once(0..len.min(MAX_SEARCHED)).chain(last) {
        let found = stale_headers::find(medium, header.uuid, part, copy_c(len));
        all.is_complete &= found.is_complete;
        all.offsets.extend(found.offsets);
    }
    all
}

/// Overwrites all `ranges`, and returns whether the medium was then told to discard them. `flat`:
/// the medium is a file or block device, not a medium that holds only headers.
fn overwrite_all(medium: &dyn Medium, ranges: &[Range<u64>], flat: bool) -> Result<bool> {
    // In reverse order: the first copies are at well-known places. A place that cannot be written
    // does not prevent the overwriting of other places.
    let mut overwritten = Ok(());
    for range in ranges.iter().rev() {
        overwritten = overwritten.and(overwrite(medium, range));
    }
    medium.sync()?;
    overwritten.map_err(|e| e.context("not every copy of the header is overwritten"))?;
    // Places discarded too early might never be overwritten.
    let discarded =
        flat && ranges.iter().all(|range| medium.discard(range.start, range.end - range.start).is_ok());
    medium.sync()?;
    Ok(discarded)
}

/// The places of copies: the whole reserved areas on a flat medium.
fn copy_ranges(len: u64, flat: bool) -> Vec<Range<u64>> {
    let last = copy_c(len);
    if flat {
        let tail = last.map(|at| at..(at + TAIL_AREA).min(len));
        return once(0..HEADER_AREA.min(len)).chain(tail).collect();
    }
    let copies = [Some(COPY_A), Some(COPY_B), last];
    copies.into_iter().flatten().map(|at| at..at + HEADER_LEN as u64).collect()
}

/// Continues after places that cannot be written.
fn overwrite(medium: &dyn Medium, range: &Range<u64>) -> Result<()> {
    let random = SystemRandom::new()?;
    let mut result = Ok(());
    let mut at = range.start;
    while at < range.end {
        let mut bytes = vec![0; WRITE_LEN.min((range.end - at) as usize)];
        random.fill(&mut bytes);
        result = result.and(medium.write_at(at, &bytes));
        at += bytes.len() as u64;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::MemoryMedium;
    use lacuna_sim::{Fault, FaultMedium, OpKind};
    use std::sync::Arc;

    const OLD: u8 = 0x11;

    /// The number of old bytes that are still on the medium.
    fn count_old_bytes(medium: &MemoryMedium) -> u64 {
        count_old_bytes_in(medium, 0..medium.len())
    }

    fn count_old_bytes_in(medium: &MemoryMedium, range: Range<u64>) -> u64 {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        medium.read_at(range.start, &mut bytes).unwrap();
        bytes.retain(|byte| *byte == OLD);
        bytes.len() as u64
    }

    fn medium_of_old_bytes(len: u64) -> FaultMedium<MemoryMedium> {
        FaultMedium::new(Arc::new(MemoryMedium::from_bytes(vec![OLD; len as usize])))
    }

    #[test]
    fn only_the_header_areas_are_overwritten() {
        for len in [0, 100, HEADER_AREA, HEADER_AREA + TAIL_AREA, 10 << 20, (10 << 20) + 5000] {
            let medium = medium_of_old_bytes(len);
            let ranges = copy_ranges(len, true);
            assert!(overwrite_all(&medium, &ranges, true).unwrap());
            // Discarded places read as zeros.
            let gone: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            assert_eq!(count_old_bytes(medium.inner()), len - gone, "{len}");
        }
    }

    #[test]
    fn headers_are_overwritten_without_discard() {
        let len = 10 << 20;
        let medium = medium_of_old_bytes(len);
        medium.add(Fault::FailFrom { op: OpKind::Discard, nth: 1, error: Kind::Io });
        assert!(!overwrite_all(&medium, &copy_ranges(len, true), true).unwrap());
        let untouched = len - HEADER_AREA - TAIL_AREA;
        // One in 256 random bytes equals the old one.
        let kept = count_old_bytes(medium.inner()) - untouched;
        assert!(kept < (HEADER_AREA + TAIL_AREA) / 200, "{kept} bytes");
    }

    #[test]
    fn an_unwritable_copy_does_not_keep_the_others() {
        let len = 10 << 20;
        for (bad, other) in [(0..512, COPY_B), (0..512, len - 512), (len - TAIL_AREA..len, 0)] {
            let medium = medium_of_old_bytes(len);
            medium.add(Fault::FailRange { op: OpKind::Write, range: bad.clone(), error: Kind::Io });
            let error = overwrite_all(&medium, &copy_ranges(len, true), true).unwrap_err();
            assert!(error.to_string().contains("not every copy"), "{error}");
            assert!(count_old_bytes_in(medium.inner(), other..other + 512) < 64, "{bad:?}");
        }
    }
}
