//! Reads the map pages of a level: from the stripe that is being filled, from stripes in flight, or
//! from the medium.

use crate::log::Log;
use crate::place::{Place, Seq};
use crate::plain::Plain;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_levels::{Entry, PageSource, corrupt};

/// The pages of one level.
pub(crate) struct Source<'a> {
    log: &'a Log,
    level: u8,
    /// The stripe that is being filled, if there is one, and its slots.
    seq: Seq,
    plain: &'a Plain,
    /// Whether a page that the medium cannot read, after retries, counts as lost instead of as an
    /// error.
    lost: bool,
}

/// No stripe is being filled.
static NOTHING: Plain = Plain::none();

impl<'a> Source<'a> {
    /// For readers, which get the errors of the medium. No stripe is being filled.
    pub(crate) fn strict(log: &'a Log, level: u8) -> Source<'a> {
        Source { log, level, seq: Seq::NONE, plain: &NOTHING, lost: false }
    }

    /// For rebuilding a map. No stripe is being filled.
    pub(crate) fn lenient(log: &'a Log, level: u8) -> Source<'a> {
        Source { lost: true, ..Source::strict(log, level) }
    }

    /// While stripe `seq` is being filled: one bad sector must not stop the log.
    pub(crate) fn filling(log: &'a Log, level: u8, seq: Seq, plain: &'a Plain) -> Source<'a> {
        Source { log, level, seq, plain, lost: true }
    }

    /// The same, for readers, which get the errors of the medium.
    pub(crate) fn strictly(self) -> Source<'a> {
        Source { lost: false, ..self }
    }
}

impl Source<'_> {
    /// Tries again to read a page that the medium did not give, with error `e`. If that fails, the
    /// page is lost, unless the medium reads nothing at all or the system refuses to read.
    fn read_or_lose(&self, place: Place, entry: Entry, block: &mut [u8; BLOCK_SIZE], e: Error) -> Result<()> {
        let at = self.log.slot_offset(self.level, place);
        let mut scrap = [0; BLOCK_SIZE];
        let Err(last) = self.log.reader().read_or_lose(self.level, at, &mut scrap) else {
            return self.log.fetch(self.level, place, &[entry], block);
        };
        if last.kind().is_refusal() {
            return Err(last);
        }
        if self.log.reader().reads_at_all() { Err(e.with_kind(Kind::Corrupt)) } else { Err(e) }
    }
}

impl PageSource for Source<'_> {
    fn load(&self, place: u64, entry: Entry, block: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        let place = Place::unpack(place).ok_or_else(|| corrupt(format!("cannot find {entry}")))?;
        if place.seq == self.seq
            && let Some(found) = self.plain.block(self.level, place.slot, entry)
        {
            block.copy_from_slice(found);
            return Ok(());
        }
        if !self.lost {
            return self.log.fetch(self.level, place, &[entry], block);
        }
        self.log.reader().held(|| match self.log.fetch(self.level, place, &[entry], block) {
            Err(e) if e.kind() != Kind::Corrupt && !e.kind().is_refusal() => {
                self.read_or_lose(place, entry, block, e)
            }
            read => read,
        })
    }
}
