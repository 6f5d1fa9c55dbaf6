//! The keys of a stripe: for each level one pair, derived from the level's key and the stripe's random salt. A
//! salt is drawn for every stripe that is ever written, so no key is used for two stripes, after a power cut and on a
//! restored copy as little as otherwise; within a stripe each nonce is a domain and a slot.

use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, Secret};
use lacuna_crypto::{AesBlock, GcmKey, derive, derive_ciphers};

/// Bytes of a stripe's salt.
pub(crate) const SALT_LEN: usize = 32;
/// The unit at which a power cut may tear a write.
const SECTOR: usize = 512;
/// Bytes of a tag.
pub(crate) const TAG_LEN: usize = 16;

/// The key of one level of one disk, from which those of its stripes are derived.
pub(crate) fn level_key(master: &Secret<32>, uuid: &[u8; 16]) -> Secret<32> {
    derive(master, "deniable level", uuid)
}

/// What is encrypted under one key, so that nonces differ.
#[derive(Clone, Copy)]
pub(crate) enum Domain {
    Slot = 1,
    Summary = 2,
    Digest = 3,
    Root = 4,
    Checkpoint = 5,
    Entry = 6,
    Echo = 7,
}

fn nonce(domain: Domain, slot: usize) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[0] = domain as u8;
    nonce[1] = slot as u8;
    nonce
}

/// One level's keys for one stripe.
pub(crate) struct StripeKey {
    data: GcmKey,
    entries: AesBlock,
}

/// The refusal of bytes that do not verify, to be told where.
pub(crate) struct Unverified;

impl StripeKey {
    /// Derives the keys for the stripe with this salt.
    pub(crate) fn derive(level: &Secret<32>, salt: &[u8; SALT_LEN]) -> Result<StripeKey> {
        let (data, entries) = derive_ciphers(level, "deniable stripe", salt)?;
        Ok(StripeKey { data, entries })
    }

    /// Encrypts one block for a slot. The tag binds slot, entry and stripe.
    pub(crate) fn seal_slot(
        &self,
        seq: u64,
        slot: usize,
        entry: u64,
        src: &[u8],
        dst: &mut [u8],
    ) -> [u8; 16] {
        debug_assert!(src.len() == BLOCK_SIZE);
        self.data.seal(&nonce(Domain::Slot, slot), &associated(seq, entry), src, dst)
    }

    /// Decrypts one block where it lies; it is zeroed if it does not verify.
    pub(crate) fn open_slot(
        &self,
        seq: u64,
        slot: usize,
        entry: u64,
        tag: &[u8; 16],
        block: &mut [u8],
    ) -> std::result::Result<(), Unverified> {
        let nonce = nonce(Domain::Slot, slot);
        self.data.open_in_place(&nonce, &associated(seq, entry), block, tag).map_err(|_| Unverified)
    }

    /// Encrypts something else of which a stripe has one, or one per level.
    pub(crate) fn seal(
        &self,
        domain: Domain,
        index: usize,
        aad: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> [u8; 16] {
        self.data.seal(&nonce(domain, index), aad, src, dst)
    }

    /// Decrypts what [`StripeKey::seal`] encrypted, where it lies.
    pub(crate) fn open(
        &self,
        domain: Domain,
        index: usize,
        aad: &[u8],
        buf: &mut [u8],
        tag: &[u8; 16],
    ) -> std::result::Result<(), Unverified> {
        self.data.open_in_place(&nonce(domain, index), aad, buf, tag).map_err(|_| Unverified)
    }

    /// A tag by which to tell whether all of these slots were written, or some sectors are still what lay there before:
    /// over the first bytes of every sector, which are random in every stripe. It does not notice later damage, which
    /// the tags of the slots do.
    pub(crate) fn digest(&self, slots: &[u8]) -> [u8; 16] {
        let mut heads = Vec::with_capacity(slots.len() / SECTOR * 16);
        slots.chunks_exact(SECTOR).for_each(|sector| heads.extend_from_slice(&sector[..16]));
        self.data.seal(&nonce(Domain::Digest, 0), &heads, &[], &mut [])
    }

    /// The pad that covers the 16 bytes of a hidden entry or of its echo.
    pub(crate) fn pad(&self, domain: Domain, slot: usize) -> [u8; 16] {
        let mut block = [0; 16];
        block[..12].copy_from_slice(&nonce(domain, slot));
        self.entries.encrypt(block)
    }
}

fn associated(seq: u64, entry: u64) -> [u8; 16] {
    let mut aad = [0; 16];
    aad[..8].copy_from_slice(&seq.to_le_bytes());
    aad[8..].copy_from_slice(&entry.to_le_bytes());
    aad
}

/// The error of a block that does not verify.
pub(crate) fn corrupt(what: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, what.into())
        .found("bytes that do not verify")
        .expected("what was written last")
        .remedy("the medium was damaged or altered: restore the block from a backup")
}
