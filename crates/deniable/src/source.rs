//! Where a level reads its own pages: from the stripe that is being filled, from those on their way, or from the
//! medium.

use crate::log::{Log, Plain};
use crate::place::Place;
use lacuna_core::{BLOCK_SIZE, Kind, Result};
use lacuna_levels::{Entry, PageSource, again, corrupt};

/// The pages of one level, while stripe `seq` is being filled.
pub(crate) struct Source<'a> {
    pub(crate) log: &'a Log,
    pub(crate) level: u8,
    pub(crate) seq: u64,
    pub(crate) plain: &'a Plain,
}

/// No stripe is being filled.
static NOTHING: Plain = Plain { entries: Vec::new(), blocks: Vec::new() };

impl<'a> Source<'a> {
    /// The pages of a level of which no stripe is being filled.
    pub(crate) fn closed(log: &'a Log, level: u8) -> Source<'a> {
        Source { log, level, seq: 0, plain: &NOTHING }
    }
}

impl PageSource for Source<'_> {
    fn load(&self, place: u64, entry: Entry, block: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        let place = Place::unpack(place).ok_or_else(|| corrupt(format!("cannot find {entry}")))?;
        if place.seq == self.seq
            && let Some(found) = self.plain.slot(self.level, usize::from(place.slot), entry)
        {
            block.copy_from_slice(found);
            return Ok(());
        }
        let mut read = || self.log.fetch(self.level, place, &[entry], block);
        if self.level == 0 || self.seq == 0 {
            return read();
        }
        // What is hidden must not stop what is public: a hidden page that the medium will not give is lost.
        again(read).map_err(|e| e.with_kind(Kind::Corrupt))
    }
}
