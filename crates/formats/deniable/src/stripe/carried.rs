//! The blocks that a stripe may carry: the plaintext of the slots of the stripe a stride before it.
//!
//! Deniability contract: all hidden slots of a stripe are read, and each is tried once, with the
//! key of the level that owns it or, if that level is not open, with a throwaway key. These reads
//! and the decryption are the same whatever levels exist. Beside them an open level reads only
//! leaves of its map that are not in memory (threat model, Work). Public slots are read if one of
//! them is live.
//!
//! Invariants: a block that cannot be read, after retries, is listed as lost, and stays listed when
//! it is carried; a page or a record is dropped, and its reader notices the loss. No byte of the
//! stripe that used the memory before remains: all bytes are read over or wiped, depending on
//! public entries and the number of the stripe alone.

use crate::keys::open_slot;
use crate::log::Log;
use crate::log::medium_reader::MediumReader;
use crate::log::summary::{Summary, TaggedEntry};
use crate::place::{Slot, SlotPlace, StripeSeq, is_live, live_slots};
use crate::stripe::map_page_reader::MapPageReader;
use crate::stripe::slot_buffer::SlotBuffer;
use lacuna_contracts::{BLOCK_SIZE, Result};
use lacuna_levels::{LevelMap, SlotEntry, WriteKey};

/// The slots of the stripe a stride before.
pub(crate) struct CarriedSlots {
    /// The stripe that they come from; none for the first stripes of a disk.
    source: StripeSeq,
    /// Map pages that could not be read, with their level and slot.
    lost_pages: Vec<(u8, Slot, SlotEntry)>,
    pub(crate) public: SlotBuffer,
    pub(crate) hidden: SlotBuffer,
}

impl CarriedSlots {
    /// Reads the stripe that stripe `seq` carries. `is_live` selects the public slots to be
    /// decrypted.
    pub(crate) fn read(
        log: &Log,
        seq: StripeSeq,
        is_live: impl FnOnce(StripeSeq, &[TaggedEntry]) -> Vec<bool>,
    ) -> Result<CarriedSlots> {
        let from = log.params().carried_stripe(seq).unwrap_or(StripeSeq::NONE);
        let (public, hidden) = (log.empty_slots(false), log.empty_slots(true));
        let mut carried = CarriedSlots { source: from, lost_pages: Vec::new(), public, hidden };
        if from == StripeSeq::NONE {
            carried.public.wipe();
            carried.hidden.wipe();
            return Ok(carried);
        }
        match read_old_summary(log, from)? {
            Some(summary) => {
                let live = is_live(from, &summary.public.entries);
                carried.read_public(log, &summary, &live)?;
                carried.read_hidden(log, &summary)?;
            }
            None => carried.mark_all_lost(log)?,
        }
        Ok(carried)
    }

    fn read_public(&mut self, log: &Log, summary: &Summary, live: &[bool]) -> Result<()> {
        if !live.contains(&true) {
            self.public.wipe();
            return Ok(());
        }
        let given = read_blocks(log.reader(), self.first_slot(log, 0), self.public.blocks_mut())?;
        let listed = Slot::all(live.len()).zip(&summary.public.entries);
        for (slot, (entry, tag)) in listed.filter(|(slot, _)| live[slot.index()]) {
            let given = given[slot.index()];
            self.decrypt_slot(0, slot, *entry, |from, block| {
                open_slot(&summary.key, from, slot, *entry, tag, block).is_ok() && given
            });
        }
        Ok(())
    }

    fn read_hidden(&mut self, log: &Log, summary: &Summary) -> Result<()> {
        let given = read_blocks(log.reader(), self.first_slot(log, 1), self.hidden.blocks_mut())?;
        let keys = log.keys().stripe_keys(&summary.salt)?;
        let listed = owned_entries(log, summary, &keys);
        for (slot, (owner, entry, tag)) in Slot::all(listed.len()).zip(listed) {
            let (key, given) = (&keys[usize::from(owner)], given[slot.index()]);
            self.decrypt_slot(owner, slot, entry, |from, block| {
                open_slot(key, from, slot, entry, &tag, block).is_ok() && given
            });
        }
        Ok(())
    }

    /// Handles a summary that cannot be read: the echo in the next stripe names the blocks of the
    /// stripe, and they are lost. If the echo cannot be read either, the map goes on naming the
    /// slots, and readers notice the loss.
    fn mark_all_lost(&mut self, log: &Log) -> Result<()> {
        self.public.wipe();
        self.hidden.wipe();
        let Some(next) = log.summary_if_readable(self.source.next())? else { return Ok(()) };
        for (slot, entry) in Slot::all(next.public.echo.len()).zip(&next.public.echo) {
            self.decrypt_slot(0, slot, *entry, |_, _| false);
        }
        let keys = log.keys().stripe_keys(&next.salt)?;
        for level in log.keys().open_hidden() {
            let slots = log.params().slots(level);
            let echo = next.hidden_echo(&keys[usize::from(level)], slots.clone());
            let held = slots.map(Slot::nth).zip(echo).filter(|(_, entry)| *entry != SlotEntry::Empty);
            for (slot, entry) in held {
                self.decrypt_slot(level, slot, entry, |_, _| false);
            }
        }
        Ok(())
    }

    /// Takes over a slot of a level, or of an owner that is not an open level. `opens` gets the
    /// stripe and the bytes, and returns whether they verify.
    fn decrypt_slot(
        &mut self,
        level: u8,
        slot: Slot,
        entry: SlotEntry,
        opens: impl FnOnce(StripeSeq, &mut [u8]) -> bool,
    ) {
        let from = self.source;
        let plain = if level == 0 { &mut self.public } else { &mut self.hidden };
        if !plain.decrypt_slot(level, slot, entry, |block| opens(from, block)) {
            self.lost_pages.push((level, slot, entry));
        }
    }

    fn first_slot(&self, log: &Log, level: u8) -> u64 {
        log.slot_offset(level, SlotPlace { seq: self.source, slot: Slot(0) })
    }

    /// Drops the slots that the map of a level no longer names. Lost pages that the map still names
    /// are to be written again, if they are in memory.
    pub(crate) fn drop_stale(&mut self, level: u8, tree: &mut LevelMap, log: &Log) -> Result<()> {
        let (source, stride) = (MapPageReader::lenient(log, level), log.params().stride());
        for (_, slot, page) in self.lost_pages.iter().filter(|(owner, ..)| *owner == level) {
            let here = SlotPlace { seq: self.source, slot: *slot };
            if is_live(tree, *page, here, stride, &source)? {
                tree.mark_for_rewrite(*page);
            }
        }
        let plain = if level == 0 { &mut self.public } else { &mut self.hidden };
        let entries = plain.entries_of(level);
        let live = live_slots(tree, &entries, self.source, stride, &source)?;
        for (slot, entry) in Slot::all(entries.len()).zip(entries) {
            if entry != SlotEntry::Empty && !live.contains(&slot) {
                plain.clear(slot);
            }
        }
        Ok(())
    }
}

/// For each hidden slot of a stripe its owner (a level, or the number of the throwaway key), its
/// entry and its tag.
fn owned_entries(log: &Log, summary: &Summary, keys: &[WriteKey]) -> Vec<(u8, SlotEntry, [u8; 16])> {
    let nothing = |slot| (log.keys().owner(slot), SlotEntry::Empty, [0; 16]);
    let mut owned: Vec<_> = Slot::all(log.params().hidden_slots()).map(nothing).collect();
    for level in log.keys().open_hidden() {
        let slots = log.params().slots(level);
        let listed = summary.hidden_entries(&keys[usize::from(level)], slots.clone());
        for (slot, (entry, tag)) in slots.zip(listed).filter(|(_, (entry, _))| *entry != SlotEntry::Empty) {
            owned[slot] = (level, entry, tag);
        }
    }
    owned
}

/// The summary of a stripe that is about to be overwritten; none if it is damaged. Errors: the
/// medium reads nothing at all, or the system refuses to read; in both cases nothing is lost.
fn read_old_summary(log: &Log, from: StripeSeq) -> Result<Option<Summary>> {
    let mut block = [0; BLOCK_SIZE];
    match log.reader().read_with_pauses(0, log.params().offset(from), &mut block) {
        Ok(()) => log.open_summary(from, &block),
        Err(e) if e.kind().is_refusal() || !log.reader().is_readable() => Err(e),
        Err(_) => Ok(None),
    }
}

/// Reads neighbouring blocks of any level as if for level 0: whether a stripe causes this read
/// follows from public facts alone. Returns which blocks the medium gave; the rest are zeroed.
/// Errors: the system refuses to read.
fn read_blocks(reader: &MediumReader, offset: u64, buf: &mut [u8]) -> Result<Vec<bool>> {
    if reader.read_once(0, offset, buf).is_ok() {
        return Ok(vec![true; buf.len() / BLOCK_SIZE]);
    }
    let blocks = (offset..).step_by(BLOCK_SIZE).zip(buf.chunks_exact_mut(BLOCK_SIZE));
    let given = blocks.map(|(at, block)| match reader.read_with_pauses(0, at, block) {
        Err(e) if e.kind().is_refusal() => Err(e),
        Err(_) => {
            block.fill(0);
            Ok(false)
        }
        Ok(()) => Ok(true),
    });
    given.collect()
}
