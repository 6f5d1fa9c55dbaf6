//! What an opening finds in erase blocks of the log that it did not replay and in which nothing is live.
//!
//! A power cut leaves there what had been given back, and what an opening wrote that was cut itself. Anything with a sequence number
//! that follows the end of the replay was in the log after it: then an erase block between them is lost, and the disk would
//! be opened as it was before.

use crate::leb_table::LebUse;
use crate::log::Log;
use crate::params::Layout;
use lacuna_core::{Error, Kind, Result};
use lacuna_nand::{Flash, Leb};
use std::ops::Range;

/// Such blocks. `lost` are the sequence numbers that would follow.
///
/// Errors: [`Kind::Corrupt`] if one of them holds any of these.
pub(crate) fn find(flash: &dyn Flash, layout: &Layout, log: &Log, lost: &Range<u64>) -> Result<Vec<Leb>> {
    let mut found = vec![];
    for number in 0..layout.log.1 {
        let leb = Leb(layout.log.0 + number);
        if log.with_table(|table| table.used(number)) != LebUse::Free || !flash.is_mapped(leb)? {
            continue;
        }
        let first = log.read_header(log.unit(number, 0))?;
        if let Some(header) = first.filter(|header| lost.contains(&header.sequence)) {
            return Err(Error::new(Kind::Corrupt, "a part of the log is lost")
                .found(format!(
                    "group {} in erase block {}, and none that leads there",
                    header.sequence, leb.0
                ))
                .expected(format!("group {} before it", lost.start))
                .remedy("restore the flash from a backup"));
        }
        found.push(leb);
    }
    Ok(found)
}

/// Erases them, so that no later opening finds them again.
pub(crate) fn erase(flash: &dyn Flash, leftovers: &[Leb]) -> Result<()> {
    if leftovers.is_empty() {
        return Ok(());
    }
    leftovers.iter().try_for_each(|leb| flash.unmap(*leb))?;
    // What cannot be erased stays in the list, for the next purge.
    flash.drain_of(&|_| false).map(drop)
}
