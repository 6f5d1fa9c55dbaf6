//! The keys of a disk and of its stripes, and what is encrypted under them.

use lacuna_core::{BLOCK_SIZE, Result, Secret};
use lacuna_crypto::derive;
use lacuna_levels::{SALT_LEN, TAG_LEN, Unverified, WriteKey};

/// The key of one level of one disk, from which those of its stripes are derived.
pub(crate) fn level_key(master: &Secret<32>, uuid: &[u8; 16]) -> Secret<32> {
    derive(master, "deniable level", uuid)
}

/// What is encrypted under the key of a stripe, so that nonces differ.
pub(crate) mod domain {
    pub(crate) const SLOT: u8 = 1;
    pub(crate) const SUMMARY: u8 = 2;
    pub(crate) const DIGEST: u8 = 3;
    pub(crate) const ROOT: u8 = 4;
    pub(crate) const CHECKPOINT: u8 = 5;
    pub(crate) const ENTRY: u8 = 6;
    pub(crate) const ECHO: u8 = 7;
}

/// One level's keys for the stripe with this salt.
pub(crate) fn stripe_key(level: &Secret<32>, salt: &[u8; SALT_LEN]) -> Result<WriteKey> {
    WriteKey::derive(level, "deniable stripe", salt)
}

/// Encrypts one block for a slot. The tag binds slot, entry and stripe.
pub(crate) fn seal_slot(
    key: &WriteKey,
    seq: u64,
    slot: usize,
    entry: u64,
    src: &[u8],
    dst: &mut [u8],
) -> [u8; TAG_LEN] {
    debug_assert!(src.len() == BLOCK_SIZE);
    key.seal(domain::SLOT, slot as u8, &associated(seq, entry), src, dst)
}

/// Decrypts one block where it lies; it is zeroed if it does not verify.
pub(crate) fn open_slot(
    key: &WriteKey,
    seq: u64,
    slot: usize,
    entry: u64,
    tag: &[u8; TAG_LEN],
    block: &mut [u8],
) -> std::result::Result<(), Unverified> {
    key.open(domain::SLOT, slot as u8, &associated(seq, entry), block, tag)
}

fn associated(seq: u64, entry: u64) -> [u8; 16] {
    let mut aad = [0; 16];
    aad[..8].copy_from_slice(&seq.to_le_bytes());
    aad[8..].copy_from_slice(&entry.to_le_bytes());
    aad
}
