//! The end of a disk: all copies of its header are overwritten, and with them everything that a passphrase opens.
//!
//! Nothing of the data is touched. Without the header it is noise to everybody, also to those who know every passphrase; what a
//! copy of the header elsewhere opens, it still opens.

use crate::claim::Claim;
use crate::cluster::{Holder, Site, refuse_snapshot};
use crate::create_rados::remove_objects;
use crate::former_copies;
use crate::header::medium;
use crate::observer::Observer;
use lacuna_core::{Error, Kind, Result};
use lacuna_crypto::{RandomSource, SystemRandom};
use lacuna_header::{
    CopyState, Diagnosis, HEADER_AREA, HEADER_LEN, Location, PublicHeader, TAIL_AREA, copy_c,
};
use lacuna_medium::Medium;
use std::iter::once;
use std::ops::Range;

/// The longest medium of which every place is looked at where a copy may lie: beyond, only the first and the last part of this length.
const SEARCHED: u64 = 64 << 30;
/// What is written at once.
const STEP: usize = 1 << 16;

/// What was erased.
#[derive(Debug)]
pub struct Erased {
    /// What the header said, if a copy of it was whole.
    pub header: Option<PublicHeader>,
    /// Copies that lay where the medium once ended.
    pub former_copies: usize,
    /// Whether all of the medium was searched for such copies, which takes a header and a medium that can be read.
    pub searched_all: bool,
    /// Whether the medium was told that it need not keep what was overwritten, and did not refuse.
    pub discarded: bool,
}

/// Overwrites all copies of the header of a disk or vault, and tells the medium that it need not keep them. A disk in RADOS goes
/// with all its objects. `agree` is told what the header says, if it can be read; an error of it ends everything before anything is
/// written.
///
/// Errors: [`Kind::NotFound`] where there is no header, not even a damaged one; [`Kind::Io`] where that cannot be read; [`Kind::Busy`] while the disk is open;
/// [`Kind::PurgeIncomplete`] on flash that keeps an older header; what the medium reports.
pub fn erase(
    location: &Location,
    holder: &Holder,
    observer: &dyn Observer,
    agree: impl FnOnce(Option<&PublicHeader>) -> Result<()>,
) -> Result<Erased> {
    let what = format!("cannot erase {location}");
    refuse_snapshot(location, "erase")?;
    let (medium, connection) = medium(location, holder).map_err(|e| e.context(&what))?;
    let diagnosis = Diagnosis::of(medium.len(), &|offset, buf| medium.read_at(offset, buf));
    let unreadable = diagnosis.copies.iter().find(|copy| matches!(copy.state, CopyState::Unreadable(_)));
    if let (false, Some(copy)) = (diagnosis.is_of_ours(), unreadable) {
        return Err(Error::new(Kind::Io, what)
            .found(format!(
                "nothing that can be read where a copy of the header lies, at byte {}",
                copy.offset.unwrap_or(0)
            ))
            .expected("a disk or a vault of lacuna")
            .remedy("if it is one, overwrite all of it, or destroy the medium"));
    }
    if !diagnosis.is_of_ours() {
        return Err(Error::new(Kind::NotFound, what)
            .found("no header, not even a damaged one")
            .expected("a disk or a vault of lacuna")
            .remedy("make sure that it is the right place: what has no header is erased already"));
    }
    let header = diagnosis.header;
    let _claim = header.as_ref().map(|header| Claim::take(header.uuid, &what, observer)).transpose()?;
    agree(header.as_ref())?;
    let flat = matches!(Site::of(location, &holder.cluster), Site::File(_));
    if let (Some(connection), Some(header)) = (&connection, &header) {
        // Before the header, which says which objects they are: what is cut short can be done again.
        remove_objects(connection, header.uuid, observer).map_err(|e| e.context(&what))?;
    }
    let erased = erase_copies(&*medium, header, flat).map_err(|e| e.context(&what))?;
    if let Some(connection) = connection {
        connection.remove_header().and_then(|()| connection.forget_lock()).map_err(|e| e.context(&what))?;
    }
    Ok(erased)
}

/// `flat`: the medium is a file or block device, and not one that holds headers alone.
fn erase_copies(medium: &dyn Medium, header: Option<PublicHeader>, flat: bool) -> Result<Erased> {
    let len = medium.len();
    let mut ranges = places(len, flat);
    // Without a header it is not known what to look for.
    let (mut former, mut searched_all) = (0, !flat || header.is_some());
    if let Some(header) = header.as_ref().filter(|_| flat) {
        searched_all = len <= SEARCHED;
        let last = (!searched_all).then(|| len - SEARCHED..len);
        for part in once(0..len.min(SEARCHED)).chain(last) {
            let found = former_copies::find(medium, header.uuid, part);
            searched_all &= found.complete;
            for at in found.places {
                former += 1;
                ranges.push(at..at + HEADER_LEN as u64);
            }
        }
    }
    // The last copies first: those that are found first are the ones that everybody knows.
    // A place that cannot be written keeps no other from being overwritten.
    let failed = ranges.iter().rev().filter_map(|range| overwrite(medium, range).err()).next_back();
    medium.sync()?;
    if let Some(e) = failed {
        return Err(e.context("not every copy of the header is overwritten"));
    }
    // What is discarded too early might never be overwritten.
    let discarded =
        flat && ranges.iter().all(|range| medium.discard(range.start, range.end - range.start).is_ok());
    medium.sync()?;
    Ok(Erased { header, former_copies: former, searched_all, discarded })
}

/// Where copies lie, whole areas where they are nobody else's.
fn places(len: u64, flat: bool) -> Vec<Range<u64>> {
    let last = copy_c(len);
    if flat {
        let tail = last.map(|at| at..(at + TAIL_AREA).min(len));
        return once(0..HEADER_AREA.min(len)).chain(tail).collect();
    }
    let copies = [Some(lacuna_header::COPY_A), Some(lacuna_header::COPY_B), last];
    copies.into_iter().flatten().map(|at| at..at + HEADER_LEN as u64).collect()
}

fn overwrite(medium: &dyn Medium, range: &Range<u64>) -> Result<()> {
    let random = SystemRandom::new()?;
    let mut at = range.start;
    while at < range.end {
        let mut bytes = vec![0; STEP.min((range.end - at) as usize)];
        random.fill(&mut bytes);
        medium.write_at(at, &bytes)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::MemoryMedium;

    #[test]
    fn whole_areas_go_and_nothing_between() {
        for len in [0, 100, HEADER_AREA, HEADER_AREA + TAIL_AREA, 10 << 20, (10 << 20) + 5000] {
            let medium = MemoryMedium::from_bytes(vec![0x11; len as usize]);
            erase_copies(&medium, None, true).unwrap();
            let mut bytes = vec![0; len as usize];
            medium.read_at(0, &mut bytes).unwrap();
            bytes.retain(|byte| *byte == 0x11);
            let gone: u64 = places(len, true).iter().map(|range| range.end - range.start).sum();
            // Discarded places read as zeros.
            assert_eq!(bytes.len() as u64, len - gone, "{len}");
        }
    }
}
