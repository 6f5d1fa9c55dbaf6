//! How blocks are encrypted that need no tag in a tree: by what they are (RAND-EINT), with the tag inside (COMP-EINT), or
//! without any check (encryption only).

use crate::compress::{PACKED_HEADER, compress, decompress};
use crate::counter::{Counter, Session};
use crate::entropy::is_random_looking;
use crate::keys::{FileKeys, Tag, Vectors, wide_tweak};
use crate::weak::{Check, enforced};

/// The largest block.
pub(crate) const MOST_BLOCK_SIZE: usize = 4096;
/// The smallest block.
pub(crate) const LEAST_BLOCK_SIZE: usize = 128;
/// What COMP-EINT has to save: the tag, and what packing costs.
pub(crate) const SAVED: usize = size_of::<Tag>() + PACKED_HEADER;

/// The ciphers of a run of blocks.
pub(crate) struct Ciphers<'k> {
    keys: &'k FileKeys,
    vectors: Vectors<'k>,
}

impl<'k> Ciphers<'k> {
    pub(crate) fn new(keys: &'k FileKeys) -> Self {
        Ciphers { keys, vectors: keys.vectors() }
    }

    /// Encrypts a block whose tag becomes a leaf.
    pub(crate) fn seal_tagged(&mut self, block: u64, counter: Counter, from: &[u8], to: &mut [u8]) -> Tag {
        let vector = self.vectors.of(block, counter);
        crate::witness::gcm(vector, block, from);
        self.keys.gcm().seal(&vector, &block.to_le_bytes(), from, to)
    }

    /// Decrypts a block whose tag is a leaf. `false` if the tag does not verify.
    pub(crate) fn open_tagged(&mut self, block: u64, counter: Counter, bytes: &mut [u8], tag: &Tag) -> bool {
        let vector = self.vectors.of(block, counter);
        self.keys.gcm().open_in_place(&vector, &block.to_le_bytes(), bytes, tag).is_ok()
    }
}

/// The blocks of a scheme that need no leaf.
pub(crate) trait Low: Send + Sync + 'static {
    /// The counter to be used, given the next one.
    fn counter(next: Counter) -> Counter {
        next
    }

    /// Encrypts a block. `false` if it needs a leaf; `to` may then hold anything.
    fn seal(ciphers: &mut Ciphers<'_>, block: u64, counter: Counter, from: &[u8], to: &mut [u8]) -> bool;

    /// Decrypts a block where it lies. `false` if it does not verify.
    fn open(ciphers: &mut Ciphers<'_>, block: u64, counter: Counter, bytes: &mut [u8]) -> bool;
}

/// RAND-EINT: HCTR2 under index and counter. A block that was altered, moved or replayed decrypts to random bytes.
pub(crate) struct RandLow;

impl Low for RandLow {
    fn seal(ciphers: &mut Ciphers<'_>, block: u64, counter: Counter, from: &[u8], to: &mut [u8]) -> bool {
        if is_random_looking(from) {
            return false;
        }
        let tweak = wide_tweak(block, counter);
        crate::witness::wide(&tweak, from);
        ciphers.keys.wide().encrypt(&tweak, from, to);
        true
    }

    fn open(ciphers: &mut Ciphers<'_>, block: u64, counter: Counter, bytes: &mut [u8]) -> bool {
        ciphers.keys.wide().decrypt_in_place(&wide_tweak(block, counter), bytes);
        if is_random_looking(bytes) && enforced(Check::Entropy) {
            bytes.fill(0);
            return false;
        }
        true
    }
}

/// COMP-EINT: compressed, and the tag in the room that this gives.
pub(crate) struct CompLow;

impl Low for CompLow {
    fn seal(ciphers: &mut Ciphers<'_>, block: u64, counter: Counter, from: &[u8], to: &mut [u8]) -> bool {
        let (text, tag) = to.split_last_chunk_mut::<16>().expect("a block is longer than a tag");
        let mut packed = [0; MOST_BLOCK_SIZE];
        let packed = &mut packed[..text.len()];
        if compress(from, packed, SAVED).is_none() {
            return false;
        }
        let vector = ciphers.vectors.of(block, counter);
        crate::witness::gcm(vector, block, packed);
        *tag = ciphers.keys.gcm().seal(&vector, &inner_data(block), packed, text);
        true
    }

    fn open(ciphers: &mut Ciphers<'_>, block: u64, counter: Counter, bytes: &mut [u8]) -> bool {
        let (text, tag) = bytes.split_last_chunk::<16>().expect("a block is longer than a tag");
        let mut packed = [0; MOST_BLOCK_SIZE];
        let packed = &mut packed[..text.len()];
        let vector = ciphers.vectors.of(block, counter);
        let opened = ciphers.keys.gcm().open(&vector, &inner_data(block), text, tag, packed).is_ok();
        let good = opened && decompress(packed, bytes).is_some();
        if !good {
            bytes.fill(0);
        }
        good || !enforced(Check::InnerTag)
    }
}

/// What a tag inside of a block covers beside the block: its index, and a byte by which it differs from a leaf's.
fn inner_data(block: u64) -> [u8; 9] {
    let mut data = [1; 9];
    data[..8].copy_from_slice(&block.to_le_bytes());
    data
}

/// Encryption only: AES-256-XTS, the tweak being the index. Its one counter says that a block is no hole.
pub(crate) struct PlainLow;

impl Low for PlainLow {
    fn counter(_: Counter) -> Counter {
        Counter { session: Session(0), pass: 2 }
    }

    fn seal(ciphers: &mut Ciphers<'_>, block: u64, _: Counter, from: &[u8], to: &mut [u8]) -> bool {
        ciphers.keys.xts().session().encrypt(&u128::from(block).to_le_bytes(), from, to);
        true
    }

    fn open(ciphers: &mut Ciphers<'_>, block: u64, _: Counter, bytes: &mut [u8]) -> bool {
        ciphers.keys.xts().session().decrypt_in_place(&u128::from(block).to_le_bytes(), bytes);
        true
    }
}
