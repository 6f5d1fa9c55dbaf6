//! What an opening finds in erase blocks of the log that it did not replay and in which nothing is live, and behind the end of the
//! replay.
//!
//! A power cut leaves there what had been given back, and what an opening wrote that was cut itself. Anything with a sequence number
//! that follows the end of the replay was in the log after it: then a group or an erase block between them is lost, and the disk would
//! be opened as it was before.

use crate::leb_table::LebUse;
use crate::log::Log;
use crate::params::Layout;
use lacuna_core::{Error, Kind, Result};
use lacuna_nand::{Flash, Leb};
use std::ops::Range;

/// Such blocks. `lost` are the sequence numbers that would follow; `ends` is where the next group would lie, and the places behind
/// it in the same block.
///
/// Errors: [`Kind::Corrupt`] if one of them, or any of `ends`, holds any of these.
pub(crate) fn find(
    flash: &dyn Flash,
    layout: &Layout,
    log: &Log,
    lost: &Range<u64>,
    ends: &[(u32, u32)],
) -> Result<Vec<Leb>> {
    for (number, unit) in ends.iter().filter(|(number, _)| *number < layout.log.1) {
        if flash.is_mapped(Leb(layout.log.0 + number))? {
            // Where a group could begin: on each page.
            for unit in (*unit..layout.units).step_by(layout.page_units() as usize) {
                check(log, *number, unit, lost)?;
            }
        }
    }
    let mut found = vec![];
    for number in 0..layout.log.1 {
        let leb = Leb(layout.log.0 + number);
        if log.with_table(|table| table.used(number)) != LebUse::Free || !flash.is_mapped(leb)? {
            continue;
        }
        check(log, number, 0, lost)?;
        found.push(leb);
    }
    Ok(found)
}

/// Errors: [`Kind::Corrupt`] if a group that is lost begins there.
fn check(log: &Log, number: u32, unit: u32, lost: &Range<u64>) -> Result<()> {
    let place = log.unit(number, unit);
    let Some(header) = log.read_header(place)?.filter(|header| lost.contains(&header.sequence)) else {
        return Ok(());
    };
    Err(Error::new(Kind::Corrupt, "a part of the log is lost")
        .found(format!("group {} in unit {}, and none that leads there", header.sequence, place.0))
        .expected(format!("group {} before it", lost.start))
        .remedy("restore the flash from a backup"))
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
