//! AES-256 of single blocks on the AES instructions: the key schedule, and both directions.

#![allow(clippy::wildcard_imports, reason = "a dozen instructions")]

use std::arch::x86_64::*;

pub(super) const ROUNDS: usize = 14;

/// The AES-256 key schedule (FIPS 197), by AESKEYGENASSIST.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
pub(super) fn expand_encrypt(keys: &mut [[u8; 16]; ROUNDS + 1], key: &[u8; 32]) {
    keys[0].copy_from_slice(&key[..16]);
    keys[1].copy_from_slice(&key[16..]);
    macro_rules! next {
        ($round:literal, $constant:literal) => {
            let turned = _mm_aeskeygenassist_si128::<$constant>(block(&keys[$round - 1]));
            let word = if $round % 2 == 0 {
                _mm_shuffle_epi32::<0xff>(turned)
            } else {
                _mm_shuffle_epi32::<0xaa>(turned)
            };
            keys[$round] = bytes(_mm_xor_si128(running_xor(block(&keys[$round - 2])), word));
        };
    }
    next!(2, 0x01);
    next!(3, 0x00);
    next!(4, 0x02);
    next!(5, 0x00);
    next!(6, 0x04);
    next!(7, 0x00);
    next!(8, 0x08);
    next!(9, 0x00);
    next!(10, 0x10);
    next!(11, 0x00);
    next!(12, 0x20);
    next!(13, 0x00);
    next!(14, 0x40);
}

/// Each 32-bit word XORed with all words before it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
fn running_xor(words: __m128i) -> __m128i {
    let two = _mm_xor_si128(words, _mm_slli_si128::<4>(words));
    _mm_xor_si128(two, _mm_slli_si128::<8>(two))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
pub(super) fn encrypt_block(keys: &[[u8; 16]; ROUNDS + 1], text: __m128i) -> __m128i {
    let mut state = _mm_xor_si128(text, block(&keys[0]));
    for key in &keys[1..ROUNDS] {
        state = _mm_aesenc_si128(state, block(key));
    }
    _mm_aesenclast_si128(state, block(&keys[ROUNDS]))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
pub(super) fn decrypt_block(keys: &[[u8; 16]; ROUNDS + 1], text: __m128i) -> __m128i {
    let mut state = _mm_xor_si128(text, block(&keys[0]));
    for key in &keys[1..ROUNDS] {
        state = _mm_aesdec_si128(state, block(key));
    }
    _mm_aesdeclast_si128(state, block(&keys[ROUNDS]))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
pub(super) fn block(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: `bytes` has the 16 bytes that are read.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
pub(super) fn bytes(block: __m128i) -> [u8; 16] {
    let mut bytes = [0; 16];
    // SAFETY: `bytes` has the 16 bytes that are written.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), block) };
    bytes
}
