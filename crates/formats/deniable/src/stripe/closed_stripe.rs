//! A closed stripe, and its encryption.
//!
//! Deniability contract: every hidden slot, full or empty, is encrypted under the key of the level
//! that owns it or a throwaway key: the work is the same whatever the slots hold and whatever
//! levels exist. Where no open level writes to the summary, it is random.

use crate::geometry::{ENTRIES_AT, HIDDEN_ECHO, HIDDEN_ENTRY, ROOT_LEN, ROOTS_AT};
use crate::keys::{LevelKeys, Salt, domain, seal_slot};
use crate::log::StripeInFlight;
use crate::log::summary::{self, PublicSummary, seal_root};
use crate::params::Params;
use crate::place::{Slot, StripeSeq};
use crate::stripe::slot_buffer::{LevelEntries, SlotBuffer};
use lacuna_contracts::{BLOCK_SIZE, LeWriter, Result};
use lacuna_crypto::{HEDGED, RandomSource};
use lacuna_levels::{MapState, SlotEntry, WriteKey};
use std::sync::Arc;

/// A stripe that takes in no more blocks.
pub(crate) struct ClosedStripe {
    pub(crate) in_flight: Arc<StripeInFlight>,
    /// The hidden part of its summary.
    pub(crate) hidden: HiddenPart,
    /// The salt as it was drawn, until it is hedged.
    pub(crate) salt: Salt,
    /// The salt of the checkpoint that is due before the stripe, if one is.
    pub(crate) checkpoint: Option<Salt>,
    /// The public part of its summary, with the tags still missing.
    pub(crate) part: PublicSummary,
}

/// The hidden part of a stripe's summary.
pub(crate) struct HiddenPart {
    /// The states of the maps of the hidden levels, starting at level 1.
    pub(crate) roots: Vec<MapState>,
    /// The entries of the hidden slots of the stripe before.
    pub(crate) echo: LevelEntries,
}

/// A stripe as it is written to the medium.
pub(crate) struct EncryptedStripe {
    pub(crate) seq: StripeSeq,
    /// The stripe that its summary calls durable.
    pub(crate) claimed: StripeSeq,
    pub(crate) checkpoint: Option<Salt>,
    pub(crate) bytes: Vec<u8>,
}

impl ClosedStripe {
    /// Makes the salt depend on everything that will be sealed under it: two copies of a running
    /// machine, which draw the same random bytes, get different keys for different content. If the
    /// random bytes are fresh, the salt is as random as they are, and reveals nothing (deniability
    /// contract). Every slot is hashed, full or empty: the work is the same whatever levels exist.
    pub(crate) fn with_hedged_salt(mut self, keys: &LevelKeys) -> ClosedStripe {
        let (salts, part) = (keys.salts(), &self.part);
        let mut content = Vec::new();
        let plain = [&self.in_flight.public, self.in_flight.hidden.get().expect("it was filled")];
        for (slot, level, entry, block) in plain.into_iter().flat_map(SlotBuffer::to_encrypt) {
            let mut bound = [0; 10];
            LeWriter(&mut bound).put(0, &[level, slot.0]).u64(2, entry.pack());
            content.extend(salts.nonce::<16>(&[0; HEDGED], &bound, block));
        }
        content.extend(part.previous);
        content.extend(part.synced.0.to_le_bytes());
        content.extend(part.root.encode());
        content.extend(part.echo.iter().flat_map(|entry| entry.pack().to_le_bytes()));
        content.extend(self.hidden.roots.iter().flat_map(MapState::encode));
        for (level, entry) in &self.hidden.echo {
            content.push(*level);
            content.extend(entry.pack().to_le_bytes());
        }
        self.salt = salts.hedge(self.salt, &part.seq.0.to_le_bytes(), &content);
        self
    }

    /// Encrypts the stripe into `bytes`, which are as long as a stripe.
    pub(crate) fn encrypt(
        mut self,
        params: &Params,
        keys: &LevelKeys,
        filler: &dyn RandomSource,
        mut bytes: Vec<u8>,
    ) -> Result<EncryptedStripe> {
        let stripe_keys = keys.stripe_keys(&self.salt)?;
        let key = &stripe_keys[0];
        let (summary, slots) = bytes.split_at_mut(BLOCK_SIZE);
        let (public, hidden) = slots.split_at_mut(params.public_slots() * BLOCK_SIZE);
        let mut hidden_part = [0; BLOCK_SIZE];
        let hidden_part = &mut hidden_part[..params.geometry.public_at() - ROOTS_AT];
        filler.fill(hidden_part);
        self.encrypt_hidden(keys, &stripe_keys, hidden, hidden_part);
        let seq = self.part.seq;
        let slots = self.in_flight.public.to_encrypt().zip(public.chunks_exact_mut(BLOCK_SIZE));
        for (((slot, _, entry, src), dst), (_, tag)) in slots.zip(&mut self.part.entries) {
            *tag = seal_slot(key, seq, slot, entry, src, dst);
        }
        let digest = key.digest(domain::DIGEST, hidden);
        summary::seal(key, &self.salt, &digest, hidden_part, &self.part, summary);
        Ok(EncryptedStripe { seq, claimed: self.part.synced, checkpoint: self.checkpoint, bytes })
    }

    /// Encrypts the hidden slots, and writes the records of open levels over the random bytes of
    /// `part`.
    fn encrypt_hidden(&self, keys: &LevelKeys, stripe_keys: &[WriteKey], slots: &mut [u8], part: &mut [u8]) {
        let (seq, plain) =
            (self.part.seq, self.in_flight.hidden.get().expect("it was filled before it was sent"));
        let (roots, listed) = part.split_at_mut(ENTRIES_AT - ROOTS_AT);
        for ((level, root), out) in (1..).zip(&self.hidden.roots).zip(roots.chunks_exact_mut(ROOT_LEN)) {
            seal_root(root, &stripe_keys[usize::from(level)], level, out);
        }
        let (entries, echo) = listed.split_at_mut(plain.slots() * HIDDEN_ENTRY);
        // A slot is encrypted under its owner's key, full or empty.
        let key_of = |slot: Slot| &stripe_keys[usize::from(keys.owner(slot))];
        let slots = plain.to_encrypt().zip(slots.chunks_exact_mut(BLOCK_SIZE));
        for (((slot, _, entry, src), dst), listed) in slots.zip(entries.chunks_exact_mut(HIDDEN_ENTRY)) {
            let key = key_of(slot);
            let tag = seal_slot(key, seq, slot, entry, src, dst);
            let cover = key.encrypt_entry(domain::ENTRY, slot.0, entry);
            if entry != SlotEntry::Empty {
                listed[..16].copy_from_slice(&cover);
                listed[16..].copy_from_slice(&tag);
            }
        }
        let echoed = Slot::all(self.hidden.echo.len()).zip(&self.hidden.echo);
        for ((slot, (_, entry)), out) in echoed.zip(echo.chunks_exact_mut(HIDDEN_ECHO)) {
            let cover = key_of(slot).encrypt_entry(domain::ECHO, slot.0, *entry);
            if *entry != SlotEntry::Empty {
                out.copy_from_slice(&cover);
            }
        }
    }
}
