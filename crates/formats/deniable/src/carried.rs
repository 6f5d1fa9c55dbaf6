//! What a stripe may carry on: the plaintext of the slots of the stripe a stride before it.
//!
//! Deniability contract: all hidden slots of a stripe are read, and each is tried once with the key
//! of the level that owns it, which is a throwaway key if the level is not open: these reads and
//! the ciphering are the same whatever levels exist. What an open level reads beside them is leaves
//! of its map that are not in memory (threat model, Work). Public slots are read if one of them is
//! live.
//!
//! Invariants: a block that cannot be read any more, after retries, is listed as lost, and goes on
//! as lost; a page or a record is dropped, for its reader finds that out. No byte of the stripe
//! that had the memory before is left: all are read over or wiped, which follows from public
//! entries and the number of the stripe alone.

use crate::keys::open_slot;
use crate::log::Log;
use crate::medium_reader::MediumReader;
use crate::place::{Place, Seq, Slot, is_live, live_slots};
use crate::plain::Plain;
use crate::source::Source;
use crate::summary::{Listed, Summary};
use lacuna_contracts::{BLOCK_SIZE, Result};
use lacuna_levels::{Entry, Tree, WriteKey};

/// The slots of the stripe a stride before.
pub(crate) struct Carried {
    /// The stripe that they come from; none for the first ones of a disk.
    from: Seq,
    /// Pages of maps that could not be read, with their level and slot.
    lost_pages: Vec<(u8, Slot, Entry)>,
    pub(crate) public: Plain,
    pub(crate) hidden: Plain,
}

impl Carried {
    /// Reads the stripe that stripe `seq` carries on. `is_live` says which of its public slots need
    /// to be decrypted.
    pub(crate) fn read(
        log: &Log,
        seq: Seq,
        is_live: impl FnOnce(Seq, &[Listed]) -> Vec<bool>,
    ) -> Result<Carried> {
        let from = log.params().carried_by(seq).unwrap_or(Seq::NONE);
        let (public, hidden) = (log.empty_slots(false), log.empty_slots(true));
        let mut carried = Carried { from, lost_pages: Vec::new(), public, hidden };
        if from == Seq::NONE {
            carried.public.wipe();
            carried.hidden.wipe();
            return Ok(carried);
        }
        match summary_or_lose(log, from)? {
            Some(summary) => {
                let live = is_live(from, &summary.public.entries);
                carried.read_public(log, &summary, &live)?;
                carried.read_hidden(log, &summary)?;
            }
            None => carried.lose(log)?,
        }
        Ok(carried)
    }

    fn read_public(&mut self, log: &Log, summary: &Summary, live: &[bool]) -> Result<()> {
        if !live.contains(&true) {
            self.public.wipe();
            return Ok(());
        }
        let given = read_run(log.reader(), self.first_slot(log, 0), self.public.blocks_mut())?;
        let listed = Slot::all(live.len()).zip(&summary.public.entries);
        for (slot, (entry, tag)) in listed.filter(|(slot, _)| live[slot.at()]) {
            let given = given[slot.at()];
            self.take_over(0, slot, *entry, |from, block| {
                open_slot(&summary.key, from, slot, *entry, tag, block).is_ok() && given
            });
        }
        Ok(())
    }

    fn read_hidden(&mut self, log: &Log, summary: &Summary) -> Result<()> {
        let given = read_run(log.reader(), self.first_slot(log, 1), self.hidden.blocks_mut())?;
        let keys = log.keys().all_of_stripe(&summary.salt)?;
        let listed = owned_entries(log, summary, &keys);
        for (slot, (owner, entry, tag)) in Slot::all(listed.len()).zip(listed) {
            let (key, given) = (&keys[usize::from(owner)], given[slot.at()]);
            self.take_over(owner, slot, entry, |from, block| {
                open_slot(key, from, slot, entry, &tag, block).is_ok() && given
            });
        }
        Ok(())
    }

    /// The summary of the stripe cannot be read: what it listed is known from the echo in the
    /// stripe after it, and lost. Of what the echo does not say either, the map goes on naming the
    /// slot, and readers find out.
    fn lose(&mut self, log: &Log) -> Result<()> {
        self.public.wipe();
        self.hidden.wipe();
        let Some(next) = log.summary_if_read(self.from.next())? else { return Ok(()) };
        for (slot, entry) in Slot::all(next.public.echo.len()).zip(&next.public.echo) {
            self.take_over(0, slot, *entry, |_, _| false);
        }
        let keys = log.keys().all_of_stripe(&next.salt)?;
        for level in log.keys().open_hidden() {
            let slots = log.params().slots(level);
            let echo = next.hidden_echo(&keys[usize::from(level)], slots.clone());
            let held = slots.map(Slot::nth).zip(echo).filter(|(_, entry)| *entry != Entry::Empty);
            for (slot, entry) in held {
                self.take_over(level, slot, entry, |_, _| false);
            }
        }
        Ok(())
    }

    /// Takes over a slot of a level, or of an owner that is no open level. `opens` is given the
    /// stripe and the bytes.
    fn take_over(&mut self, level: u8, slot: Slot, entry: Entry, opens: impl FnOnce(Seq, &mut [u8]) -> bool) {
        let from = self.from;
        let plain = if level == 0 { &mut self.public } else { &mut self.hidden };
        if !plain.take_over(level, slot, entry, |block| opens(from, block)) {
            self.lost_pages.push((level, slot, entry));
        }
    }

    fn first_slot(&self, log: &Log, level: u8) -> u64 {
        log.slot_offset(level, Place { seq: self.from, slot: Slot(0) })
    }

    /// Drops the slots that the map of a level does not name any more. Lost pages that the map
    /// still names are written anew, as far as memory has them.
    pub(crate) fn drop_stale(&mut self, level: u8, tree: &mut Tree, log: &Log) -> Result<()> {
        let (source, stride) = (Source::lenient(log, level), log.params().stride());
        for (_, slot, page) in self.lost_pages.iter().filter(|(owner, ..)| *owner == level) {
            let here = Place { seq: self.from, slot: *slot };
            if is_live(tree, *page, here, stride, &source)? {
                tree.rewrite(*page);
            }
        }
        let plain = if level == 0 { &mut self.public } else { &mut self.hidden };
        let entries = plain.entries_of(level);
        let live = live_slots(tree, &entries, self.from, stride, &source)?;
        for (slot, entry) in Slot::all(entries.len()).zip(entries) {
            if entry != Entry::Empty && !live.contains(&slot) {
                plain.clear(slot);
            }
        }
        Ok(())
    }
}

/// What the hidden slots of a stripe hold: for each the level that owns it, or the number of the
/// throwaway key, the entry, and its tag.
fn owned_entries(log: &Log, summary: &Summary, keys: &[WriteKey]) -> Vec<(u8, Entry, [u8; 16])> {
    let nothing = |slot| (log.keys().owner(slot), Entry::Empty, [0; 16]);
    let mut owned: Vec<_> = Slot::all(log.params().hidden_slots()).map(nothing).collect();
    for level in log.keys().open_hidden() {
        let slots = log.params().slots(level);
        let listed = summary.hidden_entries(&keys[usize::from(level)], slots.clone());
        for (slot, (entry, tag)) in slots.zip(listed).filter(|(_, (entry, _))| *entry != Entry::Empty) {
            owned[slot] = (level, entry, tag);
        }
    }
    owned
}

/// The summary of a stripe that is about to be overwritten; none if it is damaged. Errors: a medium
/// that reads nothing at all, or a system that refuses to read: nothing is lost then.
fn summary_or_lose(log: &Log, from: Seq) -> Result<Option<Summary>> {
    let mut block = [0; BLOCK_SIZE];
    match log.reader().read_or_lose(0, log.params().offset(from), &mut block) {
        Ok(()) => log.open_summary(from, &block),
        Err(e) if e.kind().is_refusal() || !log.reader().reads_at_all() => Err(e),
        Err(_) => Ok(None),
    }
}

/// Reads neighbouring blocks, of whatever level: every stripe costs that. Returns which of them the
/// medium gave; the others are zeros. Errors: a system that refuses to read.
fn read_run(reader: &MediumReader, offset: u64, buf: &mut [u8]) -> Result<Vec<bool>> {
    if reader.read_once(0, offset, buf).is_ok() {
        return Ok(vec![true; buf.len() / BLOCK_SIZE]);
    }
    let blocks = (offset..).step_by(BLOCK_SIZE).zip(buf.chunks_exact_mut(BLOCK_SIZE));
    let given = blocks.map(|(at, block)| match reader.read_or_lose(0, at, block) {
        Err(e) if e.kind().is_refusal() => Err(e),
        Err(_) => {
            block.fill(0);
            Ok(false)
        }
        Ok(()) => Ok(true),
    });
    given.collect()
}
