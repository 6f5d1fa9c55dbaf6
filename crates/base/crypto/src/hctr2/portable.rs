//! HCTR2 for any machine, in batches over the `aes` and `polyval` crates.

use crate::ffi::CipherDirection;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};
use polyval::Polyval;
use polyval::universal_hash::UniversalHash;
use zeroize::Zeroize;

/// The first block of every hash: twice the length of the tweak in bits, plus 2, or 3 if the
/// message needs padding.
pub(super) fn length_block(tweak_len: usize, message_len: usize) -> [u8; 16] {
    let bits = tweak_len as u128 * 8;
    (bits * 2 + 2 + u128::from(!message_len.is_multiple_of(16))).to_le_bytes()
}

/// Blocks of key stream made at once.
const BATCH: usize = 32;

/// The key schedule of the portable engine.
pub(super) struct PortableKey {
    aes: Aes256,
    hash: Polyval,
    stream_mask: Block,
}

impl PortableKey {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        let aes = Aes256::new(key.into());
        let mut hash_key = Block::default();
        aes.encrypt_block(&mut hash_key);
        let mut stream_mask = Block::default();
        stream_mask[0] = 1;
        aes.encrypt_block(&mut stream_mask);
        let hash = Polyval::new(&hash_key);
        hash_key.as_mut_slice().zeroize();
        PortableKey { aes, hash, stream_mask }
    }

    pub(super) fn run_in_place(&self, direction: CipherDirection, tweak: &[u8], message: &mut [u8]) {
        let mut prefix = self.hash.clone();
        prefix.update(&[length_block(tweak.len(), message.len()).into()]);
        prefix.update_padded(tweak);
        let (head, tail) = message.split_first_chunk_mut::<16>().expect("at least one block");

        let mut before = Block::from(*head);
        xor(&mut before, &hash_tail(prefix.clone(), tail));
        let mut after = before;
        match direction {
            CipherDirection::Encrypt => self.aes.encrypt_block(&mut after),
            CipherDirection::Decrypt => self.aes.decrypt_block(&mut after),
        }
        let mut seed = self.stream_mask;
        xor(&mut seed, &before);
        xor(&mut seed, &after);
        self.xctr(&seed, tail);
        xor(&mut after, &hash_tail(prefix, tail));
        head.copy_from_slice(&after);
        seed.as_mut_slice().zeroize();
        before.as_mut_slice().zeroize();
    }

    /// XORs the XCTR key stream into `text`: block `i`, counted from 1, is AES of `seed` XOR `i`.
    fn xctr(&self, seed: &Block, text: &mut [u8]) {
        let mut stream = [Block::default(); BATCH];
        let mut counter = 0u64;
        for part in text.chunks_mut(16 * BATCH) {
            let used = &mut stream[..part.len().div_ceil(16)];
            for block in used.iter_mut() {
                counter += 1;
                *block = *seed;
                block.iter_mut().zip(counter.to_le_bytes()).for_each(|(b, c)| *b ^= c);
            }
            self.aes.encrypt_blocks(used);
            for (text, stream) in part.chunks_mut(16).zip(used.iter()) {
                text.iter_mut().zip(stream).for_each(|(t, s)| *t ^= s);
            }
        }
        stream.iter_mut().for_each(|block| block.as_mut_slice().zeroize());
    }
}

impl Drop for PortableKey {
    fn drop(&mut self) {
        self.stream_mask.as_mut_slice().zeroize();
    }
}

/// The hash alone.
pub(super) struct PortableHash(Polyval);

impl PortableHash {
    pub(super) fn new(key: &[u8; 16]) -> Self {
        PortableHash(Polyval::new(key.into()))
    }

    /// The hash over `tweak` and the whole of `message`.
    pub(super) fn hash(&self, tweak: &[u8], message: &[u8]) -> [u8; 16] {
        let mut hash = self.0.clone();
        hash.update(&[length_block(tweak.len(), message.len()).into()]);
        hash.update_padded(tweak);
        hash_tail(hash, message).into()
    }
}

/// Adds `text` to the hash and finishes it. A partial last block is padded with a byte 1 and zeros.
fn hash_tail(mut hash: Polyval, text: &[u8]) -> Block {
    let (whole, rest) = Block::slice_as_chunks(text);
    hash.update(whole);
    if !rest.is_empty() {
        let mut last = Block::default();
        last[..rest.len()].copy_from_slice(rest);
        last[rest.len()] = 1;
        hash.update(&[last]);
    }
    hash.finalize()
}

fn xor(a: &mut Block, b: &Block) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a ^= b);
}
