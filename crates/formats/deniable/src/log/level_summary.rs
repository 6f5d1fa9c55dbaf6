//! The part of a stripe's summary that is kept for one level, enough to read the level's slots.

use crate::keys::open_slot;
use crate::log::summary::{Summary, TaggedEntry};
use crate::place::{Slot, StripeSeq};
use lacuna_contracts::{BLOCK_SIZE, Result};
use lacuna_levels::{SlotEntry, TAG_LEN, WriteKey, corrupt};
use std::ops::Range;

/// The part of a summary that is kept for one level.
pub(crate) struct LevelSummary {
    seq: StripeSeq,
    key: WriteKey,
    /// One for each slot of the kind; slots of another level are empty.
    entries: Vec<TaggedEntry>,
}

impl LevelSummary {
    /// The summary of level 0.
    pub(crate) fn public(summary: Summary) -> LevelSummary {
        LevelSummary { seq: summary.public.seq, key: summary.key, entries: summary.public.entries }
    }

    /// The summary of a hidden level that has `slots` among `all` hidden slots. `key` is the
    /// level's key for the stripe.
    pub(crate) fn hidden(summary: &Summary, key: WriteKey, slots: Range<usize>, all: usize) -> LevelSummary {
        let mut entries = vec![(SlotEntry::Empty, [0; TAG_LEN]); all];
        entries[slots.clone()].copy_from_slice(&summary.hidden_entries(&key, slots));
        LevelSummary { seq: summary.public.seq, key, entries }
    }

    /// Bytes charged for a summary that lists `slots` slots.
    pub(crate) fn bytes(slots: usize) -> u64 {
        1024 + (slots * size_of::<TaggedEntry>()) as u64
    }

    /// The entry of each slot.
    pub(crate) fn entries(&self) -> impl Iterator<Item = SlotEntry> {
        self.entries.iter().map(|(entry, _)| *entry)
    }

    /// The listed entries and tags of neighbouring slots, which must hold `entries`.
    pub(crate) fn listed(&self, slot: Slot, entries: &[SlotEntry]) -> Result<&[TaggedEntry]> {
        let found = self.entries.get(slot.index()..slot.index() + entries.len()).unwrap_or_default();
        let differs = |at: usize, entry: &SlotEntry| found.get(at).is_none_or(|found| found.0 != *entry);
        match entries.iter().enumerate().find(|(at, entry)| differs(*at, entry)) {
            Some((_, entry)) => Err(corrupt(format!("{entry} cannot be read"))),
            None => Ok(found),
        }
    }

    /// Decrypts neighbouring slots in place. They must hold `entries`.
    pub(crate) fn open(&self, slot: Slot, entries: &[SlotEntry], out: &mut [u8]) -> Result<()> {
        let listed = self.listed(slot, entries)?;
        for (at, (block, (entry, tag))) in out.chunks_exact_mut(BLOCK_SIZE).zip(listed).enumerate() {
            let opened = open_slot(&self.key, self.seq, Slot::nth(slot.index() + at), *entry, tag, block);
            opened.map_err(|_| corrupt(format!("{entry} cannot be read")))?;
        }
        Ok(())
    }
}
