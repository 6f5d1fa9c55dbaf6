//! Leftover groups on the flash: in erase blocks of the log that were not replayed and hold nothing
//! live, and behind the end of the replay.
//!
//! After a power cut these are groups in blocks that had been freed, and groups of an opening that
//! was itself cut. An opening skips the sequence numbers that follow the end of the replay. A group
//! with such a number was therefore part of the log: a group or an erase block before it is lost,
//! and opening the disk would be a rollback.

use crate::log::Log;
use crate::log::leb_table::LebUse;
use crate::params::Layout;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_nand::{Flash, Leb};
use std::ops::Range;

/// Erase blocks with leftover groups.
#[derive(Default)]
pub(crate) struct StaleGroups {
    lebs: Vec<Leb>,
    /// Whether one of them may hold groups of an opening that was cut.
    pub(crate) of_opening: bool,
}

/// Finds the leftovers. `lost` are the sequence numbers that would follow the replay; `ends` are
/// the places of the next group. They are checked up to the ends of their blocks.
///
/// Errors: [`Kind::Corrupt`] if a leftover or a place in `ends` holds a group with such a number.
pub(crate) fn find(
    flash: &dyn Flash,
    layout: &Layout,
    log: &Log,
    lost: &Range<u64>,
    ends: &[(u32, u32)],
) -> Result<StaleGroups> {
    for (number, unit) in ends.iter().filter(|(number, _)| *number < layout.log.1) {
        if flash.is_mapped(Leb(layout.log.0 + number))? {
            // A group may begin on each page.
            for unit in (*unit..layout.units).step_by(layout.page_units() as usize) {
                check_group(log, *number, unit, lost)?;
            }
        }
    }
    let mut found = StaleGroups::default();
    for number in 0..layout.log.1 {
        let leb = Leb(layout.log.0 + number);
        if log.with_table(|table| table.usage(number)) != LebUse::Free || !flash.is_mapped(leb)? {
            continue;
        }
        let sequence = check_group(log, number, 0, lost)?;
        // A group in a block that the log freed has a number below the end of the log. A header
        // that does not verify may have been torn.
        found.of_opening |= sequence.is_none_or(|sequence| sequence >= lost.end);
        found.lebs.push(leb);
    }
    Ok(found)
}

/// The sequence number of the group at this place, if there is one.
///
/// Errors: [`Kind::Corrupt`] if the number is in `lost`.
fn check_group(log: &Log, number: u32, unit: u32, lost: &Range<u64>) -> Result<Option<u64>> {
    let place = log.unit(number, unit);
    let sequence = log.read_header(place)?.map(|header| header.sequence);
    let Some(found) = sequence.filter(|sequence| lost.contains(sequence)) else {
        return Ok(sequence);
    };
    Err(Error::new(Kind::Corrupt, "a part of the log is lost")
        .found(format!("group {found} in unit {}, and none that leads there", place.0))
        .expected(format!("group {} before it", lost.start))
        .hint("restore the flash from a backup"))
}

/// Erases the leftovers, so that no later opening finds them again.
pub(crate) fn erase(flash: &dyn Flash, leftovers: &StaleGroups) -> Result<()> {
    if leftovers.lebs.is_empty() {
        return Ok(());
    }
    leftovers.lebs.iter().try_for_each(|leb| flash.unmap(*leb))?;
    // Copies that cannot be erased stay listed for the next purge.
    flash.drain_of(&|_| false).map(drop)
}
