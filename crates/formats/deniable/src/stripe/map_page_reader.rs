//! Reads the map pages of a level: from the stripe that is being filled, from stripes in flight, or
//! from the medium.

use crate::log::Log;
use crate::place::{SlotPlace, StripeSeq};
use crate::stripe::slot_buffer::SlotBuffer;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_levels::{PageSource, SlotEntry, corrupt};

/// The pages of one level.
pub(crate) struct MapPageReader<'a> {
    log: &'a Log,
    level: u8,
    /// The stripe that is being filled, if there is one, and its slots.
    seq: StripeSeq,
    plain: &'a SlotBuffer,
    /// Whether a page that the medium cannot read, after retries, counts as lost instead of as an
    /// error.
    may_lose: bool,
}

/// No stripe is being filled.
static NO_SLOTS: SlotBuffer = SlotBuffer::none();

impl<'a> MapPageReader<'a> {
    /// For readers, which get the errors of the medium. No stripe is being filled.
    pub(crate) fn strict(log: &'a Log, level: u8) -> MapPageReader<'a> {
        MapPageReader { log, level, seq: StripeSeq::NONE, plain: &NO_SLOTS, may_lose: false }
    }

    /// For rebuilding a map. No stripe is being filled.
    pub(crate) fn lenient(log: &'a Log, level: u8) -> MapPageReader<'a> {
        MapPageReader { may_lose: true, ..MapPageReader::strict(log, level) }
    }

    /// While stripe `seq` is being filled: one bad sector must not stop the log.
    pub(crate) fn filling(
        log: &'a Log,
        level: u8,
        seq: StripeSeq,
        plain: &'a SlotBuffer,
    ) -> MapPageReader<'a> {
        MapPageReader { log, level, seq, plain, may_lose: true }
    }

    /// The same, for readers, which get the errors of the medium.
    pub(crate) fn into_strict(self) -> MapPageReader<'a> {
        MapPageReader { may_lose: false, ..self }
    }
}

impl MapPageReader<'_> {
    /// Tries again to read a page that the medium did not give, with error `e`. If that fails, the
    /// page is lost, unless the medium reads nothing at all or the system refuses to read.
    fn read_or_lose(
        &self,
        place: SlotPlace,
        entry: SlotEntry,
        block: &mut [u8; BLOCK_SIZE],
        e: Error,
    ) -> Result<()> {
        let at = self.log.slot_offset(self.level, place);
        let mut scrap = [0; BLOCK_SIZE];
        let Err(last) = self.log.reader().read_with_pauses(self.level, at, &mut scrap) else {
            return self.log.fetch(self.level, place, &[entry], block);
        };
        if last.kind().is_refusal() {
            return Err(last);
        }
        if self.log.reader().is_readable() { Err(e.with_kind(Kind::Corrupt)) } else { Err(e) }
    }
}

impl PageSource for MapPageReader<'_> {
    fn load(&self, place: u64, entry: SlotEntry, block: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        let place = SlotPlace::unpack(place).ok_or_else(|| corrupt(format!("cannot find {entry}")))?;
        if place.seq == self.seq
            && let Some(found) = self.plain.block(self.level, place.slot, entry)
        {
            block.copy_from_slice(found);
            return Ok(());
        }
        if !self.may_lose {
            return self.log.fetch(self.level, place, &[entry], block);
        }
        self.log.reader().retry_if_refused(|| match self.log.fetch(self.level, place, &[entry], block) {
            Err(e) if e.kind() != Kind::Corrupt && !e.kind().is_refusal() => {
                self.read_or_lose(place, entry, block, e)
            }
            read => read,
        })
    }
}
