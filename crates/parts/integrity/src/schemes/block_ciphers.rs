//! Encryption of blocks: with a tag that becomes a leaf of a tree, or without a leaf. A block
//! without a leaf is verified by its entropy (RAND-EINT) or by a tag inside (COMP-EINT), or is not
//! verified (encryption only).
//!
//! A tag is a pseudorandom function of index, write counter and content, and is also the nonce
//! (SIV): a machine that is resumed twice repeats counters, and then reveals only whether contents
//! are equal.

use crate::ablation::{SchemeCheck, is_enforced};
use crate::counters::counter::{Counter, Session};
use crate::keys::{FileKeys, Tag, tag_counter, wide_tweak};
use crate::schemes::compress::{PACKED_HEADER, compress, decompress};
use crate::schemes::entropy::is_random_looking;
use lacuna_contracts::WipeOnDrop;
use lacuna_crypto::AesBlock;
use std::sync::Arc;

/// The largest block.
pub(crate) const MOST_BLOCK_SIZE: usize = 4096;
/// The smallest block.
pub(crate) const LEAST_BLOCK_SIZE: usize = 128;
/// Bytes that COMP-EINT must save: the tag and the packing header.
pub(crate) const SAVED: usize = size_of::<Tag>() + PACKED_HEADER;

/// The ciphers for a run of blocks.
pub(crate) struct RunCiphers<'k> {
    keys: &'k FileKeys,
    /// The key streams of the last session: most runs have one session.
    held: Option<(Session, Arc<AesBlock>)>,
}

impl<'k> RunCiphers<'k> {
    pub(crate) fn new(keys: &'k FileKeys) -> Self {
        RunCiphers { keys, held: None }
    }

    fn stream(&mut self, session: Session) -> &AesBlock {
        if self.held.as_ref().is_none_or(|(held, _)| *held != session) {
            self.held = Some((session, self.keys.stream(session)));
        }
        &self.held.as_ref().expect("it was put there").1
    }

    /// Encrypts a block with a tag that becomes a leaf.
    pub(crate) fn seal_tagged(&mut self, block: u64, counter: Counter, from: &[u8], to: &mut [u8]) -> Tag {
        let (index, counter) = bound(block, counter);
        self.seal(block, counter, &index.to_le_bytes(), from, to)
    }

    /// Encrypts `from` under its synthetic tag, which covers `data` and the counter.
    fn seal(&mut self, block: u64, counter: Counter, data: &[u8], from: &[u8], to: &mut [u8]) -> Tag {
        let keys = self.keys;
        let tag = keys.siv().seal(self.stream(counter.session), &tag_counter(counter), data, from, to);
        crate::nonce_log::gcm(counter.session, &tag, block, from);
        tag
    }

    /// Decrypts a block with a tag that is a leaf. `false` if the tag does not verify.
    pub(crate) fn open_tagged(&mut self, block: u64, counter: Counter, bytes: &mut [u8], tag: &Tag) -> bool {
        let (index, counter) = bound(block, counter);
        let (keys, data) = (self.keys, index.to_le_bytes());
        let stream = self.stream(counter.session);
        keys.siv().open_in_place(stream, &tag_counter(counter), &data, bytes, tag).is_ok()
    }
}

/// The index and counter that keys, nonces, tweaks and associated data of a block bind.
fn bound(block: u64, counter: Counter) -> (u64, Counter) {
    let index = if is_enforced(SchemeCheck::Index) { block } else { 0 };
    (index, if is_enforced(SchemeCheck::Counter) { counter } else { Counter::HOLE })
}

/// The encryption of blocks without a leaf in a scheme.
pub(crate) trait LeaflessCipher: Send + Sync + 'static {
    /// The counter to use, given the next one.
    fn counter(next: Counter) -> Counter {
        next
    }

    /// Encrypts a block. `false` if it needs a leaf; the content of `to` is then arbitrary.
    fn seal(ciphers: &mut RunCiphers<'_>, block: u64, counter: Counter, from: &[u8], to: &mut [u8]) -> bool;

    /// Decrypts a block in place. `false` if it does not verify.
    fn open(ciphers: &mut RunCiphers<'_>, block: u64, counter: Counter, bytes: &mut [u8]) -> bool;
}

/// RAND-EINT: HCTR2 with index and counter as tweak. A block that was altered, moved or replayed
/// decrypts to random bytes.
pub(crate) struct RandCipher;

impl LeaflessCipher for RandCipher {
    fn seal(ciphers: &mut RunCiphers<'_>, block: u64, counter: Counter, from: &[u8], to: &mut [u8]) -> bool {
        if is_random_looking(from) {
            return false;
        }
        let (index, counter) = bound(block, counter);
        let tweak = wide_tweak(index, counter);
        crate::nonce_log::wide(&tweak, block, from);
        ciphers.keys.wide().encrypt(&tweak, from, to);
        true
    }

    fn open(ciphers: &mut RunCiphers<'_>, block: u64, counter: Counter, bytes: &mut [u8]) -> bool {
        let (index, counter) = bound(block, counter);
        ciphers.keys.wide().decrypt_in_place(&wide_tweak(index, counter), bytes);
        if is_random_looking(bytes) && is_enforced(SchemeCheck::Entropy) {
            bytes.fill(0);
            return false;
        }
        true
    }
}

/// COMP-EINT: the block is compressed, and its tag lies in the saved space.
pub(crate) struct CompCipher;

impl LeaflessCipher for CompCipher {
    fn seal(ciphers: &mut RunCiphers<'_>, block: u64, counter: Counter, from: &[u8], to: &mut [u8]) -> bool {
        let (text, tag) = to.split_last_chunk_mut::<16>().expect("a block is longer than a tag");
        let mut packed = WipeOnDrop::new([0u8; MOST_BLOCK_SIZE]);
        let packed = &mut packed[..text.len()];
        if compress(from, packed, SAVED).is_none() {
            return false;
        }
        let (index, counter) = bound(block, counter);
        *tag = ciphers.seal(block, counter, &inner_data(index), packed, text);
        true
    }

    fn open(ciphers: &mut RunCiphers<'_>, block: u64, counter: Counter, bytes: &mut [u8]) -> bool {
        let (text, tag) = bytes.split_last_chunk::<16>().expect("a block is longer than a tag");
        let mut packed = WipeOnDrop::new([0u8; MOST_BLOCK_SIZE]);
        let packed = &mut packed[..text.len()];
        let (index, counter) = bound(block, counter);
        let (siv, data) = (ciphers.keys.siv(), inner_data(index));
        let stream = ciphers.stream(counter.session);
        let opened = siv.open(stream, &tag_counter(counter), &data, text, tag, packed).is_ok();
        let good = opened && decompress(packed, bytes).is_some();
        if !good {
            bytes.fill(0);
        }
        good || !is_enforced(SchemeCheck::InnerTag)
    }
}

/// The data that a tag inside a block covers besides the block: its index, and a byte that
/// separates it from the tag of a leaf.
fn inner_data(block: u64) -> [u8; 9] {
    let mut data = [1; 9];
    data[..8].copy_from_slice(&block.to_le_bytes());
    data
}

/// Encryption only: AES-256-XTS with the index as tweak. Every block has the same counter, which
/// only says that it is no hole.
pub(crate) struct XtsCipher;

impl LeaflessCipher for XtsCipher {
    fn counter(_: Counter) -> Counter {
        Counter { session: Session(0), pass: 2 }
    }

    fn seal(ciphers: &mut RunCiphers<'_>, block: u64, _: Counter, from: &[u8], to: &mut [u8]) -> bool {
        ciphers.keys.xts().session().encrypt(&u128::from(block).to_le_bytes(), from, to);
        true
    }

    fn open(ciphers: &mut RunCiphers<'_>, block: u64, _: Counter, bytes: &mut [u8]) -> bool {
        ciphers.keys.xts().session().decrypt_in_place(&u128::from(block).to_le_bytes(), bytes);
        true
    }
}
