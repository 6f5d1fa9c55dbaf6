//! Where a level reads its own pages: from the stripe that is being filled, from those on their
//! way, or from the medium.

use crate::log::Log;
use crate::place::{Place, Seq};
use crate::plain::Plain;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_levels::{Entry, PageSource, corrupt};

/// The pages of one level.
pub(crate) struct Source<'a> {
    log: &'a Log,
    level: u8,
    /// The stripe that is being filled, if any is, and what it holds.
    seq: Seq,
    plain: &'a Plain,
    /// A page that the medium will not give, after retries, is lost and not an error.
    lost: bool,
}

/// No stripe is being filled.
static NOTHING: Plain = Plain::none();

impl<'a> Source<'a> {
    /// For readers, who are told of a medium that fails. No stripe is being filled.
    pub(crate) fn strict(log: &'a Log, level: u8) -> Source<'a> {
        Source { log, level, seq: Seq::NONE, plain: &NOTHING, lost: false }
    }

    /// For those who rebuild a map. No stripe is being filled.
    pub(crate) fn lenient(log: &'a Log, level: u8) -> Source<'a> {
        Source { lost: true, ..Source::strict(log, level) }
    }

    /// While stripe `seq` is being filled: one bad sector must not stop the log.
    pub(crate) fn filling(log: &'a Log, level: u8, seq: Seq, plain: &'a Plain) -> Source<'a> {
        Source { log, level, seq, plain, lost: true }
    }

    /// The same, for readers.
    pub(crate) fn strictly(self) -> Source<'a> {
        Source { lost: false, ..self }
    }
}

impl Source<'_> {
    /// A page that the medium does not give, with error `e`: it is lost if the medium gives others,
    /// and the system did not refuse to read it.
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
