//! Hidden levels: what is written to them waits ([`lacuna_levels::HiddenLevels`]) until a stripe passes by that takes it
//! along.
//!
//! Deniability contract: nothing here decides that, when or where anything is written. A stripe that the public or the
//! paced clock caused passes by, and its hidden slots are filled: with what must be carried on, with pages and blocks of
//! the open hidden levels, and with random bytes.

use crate::carrier::Carried;
use crate::core::Core;
use crate::filling::Filling;
use crate::keys::{domain, seal_slot};
use crate::log::{InFlight, Plain};
use crate::source::Source;
use crate::summary::{ENTRIES_AT, HIDDEN_ECHO, HIDDEN_ENTRY, ROOT_LEN, ROOTS_AT, seal_root};
use lacuna_core::{BLOCK_SIZE, Result};
use lacuna_levels::{Entry, MapState, SALT_LEN};
use std::sync::PoisonError;

static ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];

/// What hidden slots hold: the level and what of it, for each.
pub(crate) type Echo = Vec<(u8, Entry)>;

/// What the hidden part of a stripe's summary says.
pub(crate) struct HiddenPart {
    /// The states of the maps of levels 1 and up.
    roots: Vec<MapState>,
    /// What the hidden slots of the stripe before hold.
    echo: Echo,
}

/// Readers of a stripe wait until its hidden slots are filled: after a failure, or a panic, they hold nothing.
struct FilledAnyway<'a>(&'a InFlight);

impl Drop for FilledAnyway<'_> {
    fn drop(&mut self) {
        self.0.hidden.get_or_init(|| Plain::new(0));
    }
}

impl Core {
    /// Fills the hidden slots of a stripe from what it carries on and from what the levels have queued. Stripes come in order.
    pub(crate) fn fill_hidden(&self, in_flight: &InFlight, carried: Carried) -> Result<HiddenPart> {
        let _guard = FilledAnyway(in_flight);
        let (plain, roots) = Filling::fill(self, in_flight.seq, carried)?;
        let mut last = self.hidden_echo.lock().unwrap_or_else(PoisonError::into_inner);
        let echo = std::mem::replace(&mut *last, plain.entries.clone());
        let _set_once = in_flight.hidden.set(plain);
        Ok(HiddenPart { roots, echo })
    }

    /// Encrypts every hidden slot: also those that hold nothing, under a key that is the level's or a throwaway one, so that
    /// the work is the same whatever is in them.
    pub(crate) fn encrypt_hidden(
        &self,
        in_flight: &InFlight,
        says: &HiddenPart,
        salt: &[u8; SALT_LEN],
        slots: &mut [u8],
        part: &mut [u8],
    ) -> Result<()> {
        self.random.filler.fill(part);
        let (seq, plain) = (in_flight.seq, in_flight.hidden.get().expect("it was filled before it was sent"));
        let keys = self.log.stripe_keys(salt)?;
        for (level, root) in (1..).zip(&says.roots) {
            let at = (level - 1) * ROOT_LEN;
            seal_root(root, &keys[level], level, &mut part[at..at + ROOT_LEN]);
        }
        let entries_at = ENTRIES_AT - ROOTS_AT;
        let (entries, echo) = part[entries_at..].split_at_mut(plain.entries.len() * HIDDEN_ENTRY);
        let blocks = plain.blocks.chunks_exact(BLOCK_SIZE).zip(slots.chunks_exact_mut(BLOCK_SIZE));
        for (slot, (src, dst)) in blocks.enumerate() {
            let (level, entry) = plain.entries[slot];
            // What an empty slot still holds in memory is nothing that goes to the medium.
            let (owner, src) =
                if entry == Entry::Empty { (self.log.owner(slot), &ZEROS[..]) } else { (level, src) };
            let key = &keys[usize::from(owner)];
            let tag = seal_slot(key, seq, slot, entry.pack(), src, dst);
            let cover = key.cover(domain::ENTRY, slot as u8, entry);
            if entry != Entry::Empty {
                let listed = &mut entries[slot * HIDDEN_ENTRY..(slot + 1) * HIDDEN_ENTRY];
                listed[16..].copy_from_slice(&tag);
                listed[..16].copy_from_slice(&cover);
            }
        }
        for (slot, (level, entry)) in says.echo.iter().enumerate() {
            let owner = if *entry == Entry::Empty { self.log.owner(slot) } else { *level };
            let covered = keys[usize::from(owner)].cover(domain::ECHO, slot as u8, *entry);
            if *entry != Entry::Empty {
                echo[slot * HIDDEN_ECHO..(slot + 1) * HIDDEN_ECHO].copy_from_slice(&covered);
            }
        }
        Ok(())
    }

    /// Queues blocks of a hidden level. Waits while too much is queued.
    pub(crate) fn write_hidden(&self, level: u8, first: u64, data: &[u8]) -> Result<()> {
        self.hidden.write(&self.cover(), level, first, data, &Source::strict(&self.log, level))
    }

    /// Queues a discard of a hidden level.
    pub(crate) fn discard_hidden(&self, level: u8, first: u64, count: u64) -> Result<()> {
        self.hidden.discard(&self.cover(), level, first, count, &Source::strict(&self.log, level))
    }

    /// Waits until everything that a hidden level acknowledged is durable. Causes no write and no sync.
    pub(crate) fn flush_hidden(&self, level: u8) -> Result<()> {
        let last = self.hidden.wait_passed(&self.cover(), level)?;
        self.wait_durable(last)
    }

    /// Where blocks of a hidden level lie that are in stripes; the others are read at once, and their place given as 0.
    pub(crate) fn look_hidden(
        &self,
        level: u8,
        first: u64,
        buf: &mut [u8],
        places: &mut [u64],
    ) -> Result<()> {
        self.hidden.look(&self.health, level, first, buf, places, &Source::strict(&self.log, level))
    }

    /// Which of `count` blocks of a hidden level are written.
    pub(crate) fn hidden_written(&self, level: u8, first: u64, count: usize) -> Result<Vec<bool>> {
        self.hidden.written(&self.health, level, first, count, &Source::strict(&self.log, level))
    }
}
