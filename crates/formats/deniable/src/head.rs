//! A head: what is kept of the summary of a stripe for one level, which is what it takes to read
//! the level's slots.

use crate::keys::open_slot;
use crate::place::{Seq, Slot};
use crate::summary::{Listed, Summary};
use lacuna_contracts::{BLOCK_SIZE, Result};
use lacuna_levels::{Entry, TAG_LEN, WriteKey, corrupt};
use std::ops::Range;

/// What is kept of a summary for one level.
pub(crate) struct Head {
    seq: Seq,
    key: WriteKey,
    /// Of all slots of the kind; those of another level are empty.
    entries: Vec<Listed>,
}

impl Head {
    /// Of level 0.
    pub(crate) fn public(summary: Summary) -> Head {
        Head { seq: summary.public.seq, key: summary.key, entries: summary.public.entries }
    }

    /// Of a hidden level that has `slots` among `all` hidden slots. `key` is its key for the
    /// stripe.
    pub(crate) fn hidden(summary: &Summary, key: WriteKey, slots: Range<usize>, all: usize) -> Head {
        let mut entries = vec![(Entry::Empty, [0; TAG_LEN]); all];
        entries[slots.clone()].copy_from_slice(&summary.hidden_entries(&key, slots));
        Head { seq: summary.public.seq, key, entries }
    }

    /// Bytes that are reckoned for a head that lists `slots` slots.
    pub(crate) fn bytes(slots: usize) -> u64 {
        1024 + (slots * size_of::<Listed>()) as u64
    }

    /// What the slots hold of the level.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.entries.iter().map(|(entry, _)| *entry)
    }

    /// What is listed for neighbouring slots, which must hold `entries`.
    pub(crate) fn listed(&self, slot: Slot, entries: &[Entry]) -> Result<&[Listed]> {
        let found = self.entries.get(slot.at()..slot.at() + entries.len()).unwrap_or_default();
        let differs = |at: usize, entry: &Entry| found.get(at).is_none_or(|found| found.0 != *entry);
        match entries.iter().enumerate().find(|(at, entry)| differs(*at, entry)) {
            Some((_, entry)) => Err(corrupt(format!("cannot read {entry}"))),
            None => Ok(found),
        }
    }

    /// Decrypts neighbouring slots, which must hold `entries`, where they were read to.
    pub(crate) fn open(&self, slot: Slot, entries: &[Entry], out: &mut [u8]) -> Result<()> {
        let listed = self.listed(slot, entries)?;
        for (at, (block, (entry, tag))) in out.chunks_exact_mut(BLOCK_SIZE).zip(listed).enumerate() {
            let opened = open_slot(&self.key, self.seq, Slot::nth(slot.at() + at), *entry, tag, block);
            opened.map_err(|_| corrupt(format!("cannot read {entry}")))?;
        }
        Ok(())
    }
}
