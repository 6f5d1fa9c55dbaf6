//! What an opening finds in erase blocks of the log that it did not replay and in which nothing is
//! live, and behind the end of the replay.
//!
//! A power cut leaves there what had been given back, and what an opening wrote that was cut
//! itself. Anything with a sequence number that follows the end of the replay was in the log after
//! it: then a group or an erase block between them is lost, and the disk would be opened as it was
//! before.

use crate::leb_table::LebUse;
use crate::log::Log;
use crate::params::Layout;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_nand::{Flash, Leb};
use std::ops::Range;

/// Such blocks.
#[derive(Default)]
pub(crate) struct Leftovers {
    lebs: Vec<Leb>,
    /// One of them holds something that may have been written by an opening that was cut.
    pub(crate) of_opening: bool,
}

/// Finds them. `lost` are the sequence numbers that would follow; `ends` is where the next group
/// would lie, and the places behind it in the same block.
///
/// Errors: [`Kind::Corrupt`] if one of them, or any of `ends`, holds any of these.
pub(crate) fn find(
    flash: &dyn Flash,
    layout: &Layout,
    log: &Log,
    lost: &Range<u64>,
    ends: &[(u32, u32)],
) -> Result<Leftovers> {
    for (number, unit) in ends.iter().filter(|(number, _)| *number < layout.log.1) {
        if flash.is_mapped(Leb(layout.log.0 + number))? {
            // Where a group could begin: on each page.
            for unit in (*unit..layout.units).step_by(layout.page_units() as usize) {
                check(log, *number, unit, lost)?;
            }
        }
    }
    let mut found = Leftovers::default();
    for number in 0..layout.log.1 {
        let leb = Leb(layout.log.0 + number);
        if log.with_table(|table| table.used(number)) != LebUse::Free || !flash.is_mapped(leb)? {
            continue;
        }
        let sequence = check(log, number, 0, lost)?;
        // What was given back by the log has a number from before its end. A header that does not
        // verify may have been torn.
        found.of_opening |= sequence.is_none_or(|sequence| sequence >= lost.end);
        found.lebs.push(leb);
    }
    Ok(found)
}

/// The sequence number of the group that begins there, if one does.
///
/// Errors: [`Kind::Corrupt`] if it is one that is lost.
fn check(log: &Log, number: u32, unit: u32, lost: &Range<u64>) -> Result<Option<u64>> {
    let place = log.unit(number, unit);
    let sequence = log.read_header(place)?.map(|header| header.sequence);
    let Some(found) = sequence.filter(|sequence| lost.contains(sequence)) else {
        return Ok(sequence);
    };
    Err(Error::new(Kind::Corrupt, "a part of the log is lost")
        .found(format!("group {found} in unit {}, and none that leads there", place.0))
        .expected(format!("group {} before it", lost.start))
        .remedy("restore the flash from a backup"))
}

/// Erases them, so that no later opening finds them again.
pub(crate) fn erase(flash: &dyn Flash, leftovers: &Leftovers) -> Result<()> {
    if leftovers.lebs.is_empty() {
        return Ok(());
    }
    leftovers.lebs.iter().try_for_each(|leb| flash.unmap(*leb))?;
    // What cannot be erased stays in the list, for the next purge.
    flash.drain_of(&|_| false).map(drop)
}
