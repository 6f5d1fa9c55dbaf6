//! Reads a level: looks up the places of blocks under the level's lock, and reads the log without
//! it.

use crate::log::Log;
use crate::place::SlotPlace;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Kind, Result};
use lacuna_levels::{LOST_PLACE, SlotEntry, corrupt};

/// Reads blocks of a level. `look` sets their places, and itself fills the blocks that it sets to
/// 0.
pub(crate) fn read(
    log: &Log,
    level: u8,
    first: BlockAddr,
    buf: &mut [u8],
    look: impl Fn(&mut [u8], &mut [u64]) -> Result<()>,
) -> Result<()> {
    let mut places = vec![0; buf.len() / BLOCK_SIZE];
    look(buf, &mut places)?;
    loop {
        let read = fetch_all(log, level, first, &places, buf);
        if !read.as_ref().is_err_and(|e| e.kind() == Kind::Corrupt) {
            return read;
        }
        // Optimistic read: look the places up again on failure, because a block may have been
        // written since.
        let mut now = vec![0; places.len()];
        look(buf, &mut now)?;
        if now == places {
            return read;
        }
        places = now;
    }
}

/// Reads the blocks at `places`, as a map gives them, starting with block `first`.
fn fetch_all(log: &Log, level: u8, first: BlockAddr, places: &[u64], buf: &mut [u8]) -> Result<()> {
    let mut at = 0;
    while at < places.len() {
        let addr = first.0 + at as u64;
        if places[at] == LOST_PLACE {
            return Err(corrupt(format!("block {addr} cannot be read")));
        }
        let Some(place) = SlotPlace::unpack(places[at]) else {
            at += 1;
            continue;
        };
        // Blocks written one after another lie in successive slots.
        let follows =
            |(before, after): (&u64, &u64)| *after != LOST_PLACE && before.checked_add(1) == Some(*after);
        let run = 1 + places[at..].iter().zip(&places[at + 1..]).take_while(|pair| follows(*pair)).count();
        let entries: Vec<SlotEntry> = (addr..).take(run).map(SlotEntry::Data).collect();
        log.fetch(level, place, &entries, &mut buf[at * BLOCK_SIZE..(at + run) * BLOCK_SIZE])?;
        at += run;
    }
    Ok(())
}
