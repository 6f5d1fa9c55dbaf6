//! How blocks are encrypted: with a tag that becomes a leaf of a tree; or those that need none, by
//! what they are (RAND-EINT), with the tag inside (COMP-EINT), or without any check (encryption
//! only).
//!
//! A tag is a pseudorandom function of index, write counter and content, and is the nonce as well
//! (SIV): a machine that is resumed twice repeats counters, and then shows no more than whether
//! contents are equal.

use crate::ablation::{Check, enforced};
use crate::compress::{PACKED_HEADER, compress, decompress};
use crate::counter::{Counter, Session};
use crate::entropy::is_random_looking;
use crate::keys::{FileKeys, Tag, tag_counter, wide_tweak};
use lacuna_contracts::{Plain, Result};
use lacuna_crypto::GcmKey;
use std::sync::Arc;

/// The largest block.
pub(crate) const MOST_BLOCK_SIZE: usize = 4096;
/// The smallest block.
pub(crate) const LEAST_BLOCK_SIZE: usize = 128;
/// What COMP-EINT has to save: the tag, and what packing costs.
pub(crate) const SAVED: usize = size_of::<Tag>() + PACKED_HEADER;

/// The ciphers of a run of blocks.
pub(crate) struct Ciphers<'k> {
    keys: &'k FileKeys,
    /// AES-256-GCM of a session: most runs have one session.
    held: Option<(Session, Arc<GcmKey>)>,
}

impl<'k> Ciphers<'k> {
    pub(crate) fn new(keys: &'k FileKeys) -> Self {
        Ciphers { keys, held: None }
    }

    fn gcm(&mut self, session: Session) -> Result<&GcmKey> {
        if self.held.as_ref().is_none_or(|(held, _)| *held != session) {
            self.held = Some((session, self.keys.gcm(session)?));
        }
        Ok(&self.held.as_ref().expect("it was put there").1)
    }

    /// Encrypts a block whose tag becomes a leaf.
    pub(crate) fn seal_tagged(
        &mut self,
        block: u64,
        counter: Counter,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<Tag> {
        let (index, counter) = bound(block, counter);
        self.seal(block, counter, &index.to_le_bytes(), from, to)
    }

    /// Encrypts something under its synthetic tag, which `data` goes into beside the counter.
    fn seal(&mut self, block: u64, counter: Counter, data: &[u8], from: &[u8], to: &mut [u8]) -> Result<Tag> {
        let keys = self.keys;
        let tag = keys.siv().seal(self.gcm(counter.session)?, &tag_counter(counter), data, from, to);
        crate::witness::gcm(counter.session, &tag, block, from);
        Ok(tag)
    }

    /// Decrypts a block whose tag is a leaf. `false` if the tag does not verify.
    pub(crate) fn open_tagged(
        &mut self,
        block: u64,
        counter: Counter,
        bytes: &mut [u8],
        tag: &Tag,
    ) -> Result<bool> {
        let (index, counter) = bound(block, counter);
        let (keys, data) = (self.keys, index.to_le_bytes());
        let gcm = self.gcm(counter.session)?;
        Ok(keys.siv().open_in_place(gcm, &tag_counter(counter), &data, bytes, tag).is_ok())
    }
}

/// What keys, nonces, tweaks and associated data bind of a block: its index and its counter.
fn bound(block: u64, counter: Counter) -> (u64, Counter) {
    let index = if enforced(Check::Index) { block } else { 0 };
    (index, if enforced(Check::Counter) { counter } else { Counter::HOLE })
}

/// The blocks of a scheme that need no leaf.
pub(crate) trait Low: Send + Sync + 'static {
    /// The counter to be used, given the next one.
    fn counter(next: Counter) -> Counter {
        next
    }

    /// Encrypts a block. `false` if it needs a leaf; `to` may then hold anything.
    fn seal(
        ciphers: &mut Ciphers<'_>,
        block: u64,
        counter: Counter,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<bool>;

    /// Decrypts a block where it lies. `false` if it does not verify.
    fn open(ciphers: &mut Ciphers<'_>, block: u64, counter: Counter, bytes: &mut [u8]) -> Result<bool>;
}

/// RAND-EINT: HCTR2 under index and counter. A block that was altered, moved or replayed decrypts
/// to random bytes.
pub(crate) struct RandLow;

impl Low for RandLow {
    fn seal(
        ciphers: &mut Ciphers<'_>,
        block: u64,
        counter: Counter,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<bool> {
        if is_random_looking(from) {
            return Ok(false);
        }
        let (index, counter) = bound(block, counter);
        let tweak = wide_tweak(index, counter);
        crate::witness::wide(&tweak, block, from);
        ciphers.keys.wide().encrypt(&tweak, from, to);
        Ok(true)
    }

    fn open(ciphers: &mut Ciphers<'_>, block: u64, counter: Counter, bytes: &mut [u8]) -> Result<bool> {
        let (index, counter) = bound(block, counter);
        ciphers.keys.wide().decrypt_in_place(&wide_tweak(index, counter), bytes);
        if is_random_looking(bytes) && enforced(Check::Entropy) {
            bytes.fill(0);
            return Ok(false);
        }
        Ok(true)
    }
}

/// COMP-EINT: compressed, and the tag in the room that this gives.
pub(crate) struct CompLow;

impl Low for CompLow {
    fn seal(
        ciphers: &mut Ciphers<'_>,
        block: u64,
        counter: Counter,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<bool> {
        let (text, tag) = to.split_last_chunk_mut::<16>().expect("a block is longer than a tag");
        let mut packed = Plain::new([0u8; MOST_BLOCK_SIZE]);
        let packed = &mut packed[..text.len()];
        if compress(from, packed, SAVED).is_none() {
            return Ok(false);
        }
        let (index, counter) = bound(block, counter);
        *tag = ciphers.seal(block, counter, &inner_data(index), packed, text)?;
        Ok(true)
    }

    fn open(ciphers: &mut Ciphers<'_>, block: u64, counter: Counter, bytes: &mut [u8]) -> Result<bool> {
        let (text, tag) = bytes.split_last_chunk::<16>().expect("a block is longer than a tag");
        let mut packed = Plain::new([0u8; MOST_BLOCK_SIZE]);
        let packed = &mut packed[..text.len()];
        let (index, counter) = bound(block, counter);
        let (siv, data) = (ciphers.keys.siv(), inner_data(index));
        let gcm = ciphers.gcm(counter.session)?;
        let opened = siv.open(gcm, &tag_counter(counter), &data, text, tag, packed).is_ok();
        let good = opened && decompress(packed, bytes).is_some();
        if !good {
            bytes.fill(0);
        }
        Ok(good || !enforced(Check::InnerTag))
    }
}

/// What a tag inside of a block covers beside the block: its index, and a byte by which it differs
/// from a leaf's.
fn inner_data(block: u64) -> [u8; 9] {
    let mut data = [1; 9];
    data[..8].copy_from_slice(&block.to_le_bytes());
    data
}

/// Encryption only: AES-256-XTS, the tweak being the index. Its one counter says that a block is no
/// hole.
pub(crate) struct PlainLow;

impl Low for PlainLow {
    fn counter(_: Counter) -> Counter {
        Counter { session: Session(0), pass: 2 }
    }

    fn seal(ciphers: &mut Ciphers<'_>, block: u64, _: Counter, from: &[u8], to: &mut [u8]) -> Result<bool> {
        ciphers.keys.xts().session().encrypt(&u128::from(block).to_le_bytes(), from, to);
        Ok(true)
    }

    fn open(ciphers: &mut Ciphers<'_>, block: u64, _: Counter, bytes: &mut [u8]) -> Result<bool> {
        ciphers.keys.xts().session().decrypt_in_place(&u128::from(block).to_le_bytes(), bytes);
        Ok(true)
    }
}
