//! Where a level reads its own pages: from the stripe that is being filled, from those on their way, or from the
//! medium.

use crate::entry::{Entry, Place};
use crate::log::{Log, Plain};
use crate::tree::PageSource;
use lacuna_core::{BLOCK_SIZE, Kind, Result};

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
    fn load(&self, place: Place, entry: Entry, block: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        if place.seq == self.seq
            && let Some(found) = self.plain.slot(self.level, usize::from(place.slot), entry)
        {
            block.copy_from_slice(found);
            return Ok(());
        }
        let found = self.log.fetch(self.level, place, &[entry], block);
        // What is hidden must not stop what is public: a hidden page that the medium will not give is lost.
        if self.level == 0 { found } else { found.map_err(|e| e.with_kind(Kind::Corrupt)) }
    }
}
