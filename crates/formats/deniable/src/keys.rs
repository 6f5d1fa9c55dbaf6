//! The keys of the levels of a disk, the keys of a stripe that are derived from them, and the
//! encryption of slots.
//!
//! Deniability contract: there is a key for every level that the disk can have, a random one if the
//! level is not open, so that a stripe takes the same encryption work whatever levels exist.

use crate::params::Params;
use crate::place::{Slot, StripeSeq};
use lacuna_contracts::{BLOCK_SIZE, LeWriter, Result, Secret};
use lacuna_crypto::{HedgedNonce, RandomSource, derive, random_secret};
use lacuna_levels::{DiskKeys, SALT_LEN, SlotEntry, TAG_LEN, Unverified, WriteKey};

/// The random bytes of a stripe or a checkpoint from which its keys are derived.
pub(crate) type Salt = [u8; SALT_LEN];

/// Domains of the encryption under a stripe's key, which keep nonces apart.
pub(crate) mod domain {
    pub(crate) const SLOT: u8 = 1;
    pub(crate) const SUMMARY: u8 = 2;
    pub(crate) const DIGEST: u8 = 3;
    pub(crate) const ROOT: u8 = 4;
    pub(crate) const CHECKPOINT: u8 = 5;
    pub(crate) const ENTRY: u8 = 6;
    pub(crate) const ECHO: u8 = 7;
}

/// The keys of one disk, one for each level.
pub(crate) struct LevelKeys {
    /// The keys of the open levels, starting at level 0; then throwaway keys for the other levels
    /// that the disk can have; last, one for the slots that belong to no level.
    keys: Vec<Secret<32>>,
    open_count: usize,
    /// The number of the key for each hidden slot.
    owners: Vec<u8>,
    /// Hedges salts, under a key derived from level 0's, which is always open.
    salts: HedgedNonce,
}

impl LevelKeys {
    /// Derives the keys of the open levels, and draws throwaway keys from `filler`.
    pub(crate) fn new(params: &Params, masters: DiskKeys<'_>, filler: &dyn RandomSource) -> LevelKeys {
        let mut keys: Vec<Secret<32>> =
            masters.keys.iter().map(|master| level_key(master, masters.uuid)).collect();
        let open = keys.len();
        let possible = 1 + usize::from(params.hidden_levels());
        // The same number of keys is drawn whatever levels are open.
        let drawn: Vec<Secret<32>> = (0..=possible).map(|_| random_secret(filler)).collect();
        keys.extend(drawn.into_iter().skip(open));
        let throwaway = keys.len() as u8 - 1;
        let owner = |slot: usize| {
            (1..throwaway).find(|level| params.slots(*level).contains(&slot)).unwrap_or(throwaway)
        };
        let owners = (0..params.hidden_slots()).map(owner).collect();
        let salts = HedgedNonce::derive(&keys[0], "deniable salt", &[]);
        LevelKeys { keys, open_count: open, owners, salts }
    }

    /// The open hidden levels.
    pub(crate) fn open_hidden(&self) -> std::ops::Range<u8> {
        1..self.open_count as u8
    }

    /// The key of an open level.
    pub(crate) fn level(&self, level: u8) -> &Secret<32> {
        &self.keys[usize::from(level)]
    }

    /// The hedge that makes salts of random bytes.
    pub(crate) fn salts(&self) -> &HedgedNonce {
        &self.salts
    }

    /// The key of an open level for the stripe with this salt.
    pub(crate) fn stripe_key(&self, level: u8, salt: &Salt) -> Result<WriteKey> {
        stripe_key(self.level(level), salt)
    }

    /// The keys of all possible levels, open or not, for the stripe with this salt, and last a
    /// throwaway key.
    pub(crate) fn stripe_keys(&self, salt: &Salt) -> Result<Vec<WriteKey>> {
        self.keys.iter().map(|key| stripe_key(key, salt)).collect()
    }

    /// The number, among the keys of a stripe, of the key for a hidden slot: that of the level that
    /// owns the slot, or of the throwaway key if no level does.
    pub(crate) fn owner(&self, slot: Slot) -> u8 {
        self.owners[slot.index()]
    }
}

/// The key of one level of one disk. The keys of its stripes are derived from it.
pub(crate) fn level_key(master: &Secret<32>, uuid: &[u8; 16]) -> Secret<32> {
    derive(master, "deniable level", uuid)
}

/// One level's keys for the stripe with this salt.
pub(crate) fn stripe_key(level: &Secret<32>, salt: &Salt) -> Result<WriteKey> {
    WriteKey::derive(level, "deniable stripe", salt)
}

/// Encrypts one block for a slot. The tag binds slot, entry and stripe.
pub(crate) fn seal_slot(
    key: &WriteKey,
    seq: StripeSeq,
    slot: Slot,
    entry: SlotEntry,
    src: &[u8],
    dst: &mut [u8],
) -> [u8; TAG_LEN] {
    debug_assert!(src.len() == BLOCK_SIZE);
    key.seal(domain::SLOT, slot.0, &associated(seq, entry), src, dst)
}

/// Decrypts one block in place; zeroes it if it does not verify.
pub(crate) fn open_slot(
    key: &WriteKey,
    seq: StripeSeq,
    slot: Slot,
    entry: SlotEntry,
    tag: &[u8; TAG_LEN],
    block: &mut [u8],
) -> std::result::Result<(), Unverified> {
    key.open(domain::SLOT, slot.0, &associated(seq, entry), block, tag)
}

fn associated(seq: StripeSeq, entry: SlotEntry) -> [u8; 16] {
    let mut aad = [0; 16];
    LeWriter(&mut aad).u64(0, seq.0).u64(8, entry.pack());
    aad
}
