//! HCTR2 on 512-bit AES and carry-less multiplication (VAES, VPCLMULQDQ).
//!
//! The first block of a message shares a vector with the next three, so vectors of a 4096-byte
//! block are as aligned as the block. In the hash, the last block of tweak and length (the
//! "prefix") takes its place, which makes the message a whole number of vectors.

#![allow(clippy::wildcard_imports, reason = "four dozen instructions")]

use super::portable::length_block;
use super::x86_aes::{ROUNDS, block, bytes, decrypt_block, encrypt_block, expand_encrypt};
use crate::ffi::CipherDirection;
use std::arch::x86_64::*;
use zeroize::Zeroize;

/// Powers of the hash key: the number of blocks hashed before a reduction. 256 blocks are 4096
/// bytes.
const POWERS: usize = 256;
/// Vectors enciphered side by side, to hide the latency of a round.
const BATCH: usize = 8;
const VECTOR: usize = 64;

/// A hash key and its powers, in descending order from `POWERS` to 1, followed by zeros.
#[repr(C, align(64))]
struct HashPowers {
    powers: [[u8; 16]; POWERS + 4],
    key: [u8; 16],
}

impl HashPowers {
    const ZEROS: HashPowers = HashPowers { powers: [[0; 16]; POWERS + 4], key: [0; 16] };
}

impl Drop for HashPowers {
    fn drop(&mut self) {
        self.powers.zeroize();
        self.key.zeroize();
    }
}

/// Everything derived from a key.
#[repr(C, align(64))]
struct KeySchedule {
    hash: HashPowers,
    encrypt: [[u8; 16]; ROUNDS + 1],
    decrypt: [[u8; 16]; ROUNDS + 1],
    stream_mask: [u8; 16],
}

impl Drop for KeySchedule {
    fn drop(&mut self) {
        self.encrypt.zeroize();
        self.decrypt.zeroize();
        self.stream_mask.zeroize();
    }
}

/// Whether this machine has every instruction that this module uses.
fn is_supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("pclmulqdq")
}

/// The hash alone. A value proves that the machine has the instructions.
pub(super) struct VectorHash(Box<HashPowers>);

impl VectorHash {
    /// `None` if the machine lacks an instruction.
    pub(super) fn new(key: &[u8; 16]) -> Option<Self> {
        if !is_supported() {
            return None;
        }
        let mut hash = Box::new(HashPowers { key: *key, ..HashPowers::ZEROS });
        // SAFETY: every feature that `fill_powers` enables was detected above.
        unsafe { fill_powers(&mut hash) };
        Some(VectorHash(hash))
    }

    /// The hash over `tweak` and the whole of `message`.
    pub(super) fn hash(&self, tweak: &[u8], message: &[u8]) -> [u8; 16] {
        // SAFETY: `new` detected the features.
        unsafe { hash(&self.0, tweak, message) }
    }
}

/// The key schedule of the vector engine. A value proves that the machine has the instructions.
pub(super) struct VectorKey(Box<KeySchedule>);

impl VectorKey {
    /// `None` if the machine lacks an instruction.
    pub(super) fn new(key: &[u8; 32]) -> Option<Self> {
        if !is_supported() {
            return None;
        }
        let mut schedule = Box::new(KeySchedule {
            hash: HashPowers::ZEROS,
            encrypt: [[0; 16]; ROUNDS + 1],
            decrypt: [[0; 16]; ROUNDS + 1],
            stream_mask: [0; 16],
        });
        // SAFETY: every feature that `expand` enables was detected above.
        unsafe { expand(&mut schedule, key) };
        Some(VectorKey(schedule))
    }

    /// `src` and `dst` have the same length, at least 16.
    pub(super) fn run(&self, direction: CipherDirection, tweak: &[u8], src: &[u8], dst: &mut [u8]) {
        assert!(src.len() == dst.len() && src.len() >= 16);
        // SAFETY: `new` detected the features; both slices are valid for the length, and disjoint.
        unsafe { cipher(&self.0, direction, tweak, src.as_ptr(), dst.as_mut_ptr(), src.len()) }
    }

    /// `buf` has at least 16 bytes.
    pub(super) fn run_in_place(&self, direction: CipherDirection, tweak: &[u8], buf: &mut [u8]) {
        assert!(buf.len() >= 16);
        let text = buf.as_mut_ptr();
        // SAFETY: `new` detected the features; `text` is valid for the length, and source and
        // destination may be equal.
        unsafe { cipher(&self.0, direction, tweak, text, text, buf.len()) }
    }
}

/// # Safety
/// `src` and `dst` are valid for `len` bytes, at least 16, and either equal or disjoint.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
unsafe fn cipher(
    schedule: &KeySchedule,
    direction: CipherDirection,
    tweak: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) {
    let (powers, keys) = (&schedule.hash.powers, &schedule.encrypt);
    let prefix = hash_prefix(&schedule.hash, tweak, len);
    // SAFETY: `src` is valid for at least 16 bytes.
    let head = unsafe { _mm_loadu_si128(src.cast()) };
    // SAFETY: `src` is valid for `len` bytes; without `STREAM` nothing is written.
    let before =
        _mm_xor_si128(head, unsafe { hash_and_stream::<false>(powers, keys, prefix, head, src, dst, len) });
    let after = match direction {
        CipherDirection::Encrypt => encrypt_block(&schedule.encrypt, before),
        CipherDirection::Decrypt => decrypt_block(&schedule.decrypt, before),
    };
    let seed = _mm_xor_si128(_mm_xor_si128(before, after), block(&schedule.stream_mask));
    // SAFETY: the caller vouches for both pointers.
    let hashed = unsafe { hash_and_stream::<true>(powers, keys, prefix, seed, src, dst, len) };
    // SAFETY: `dst` is valid for at least 16 bytes.
    unsafe { _mm_storeu_si128(dst.cast(), _mm_xor_si128(after, hashed)) };
}

/// The hash of length, tweak and the whole of a message.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
fn hash(hash: &HashPowers, tweak: &[u8], message: &[u8]) -> [u8; 16] {
    let key = _mm512_zextsi128_si512(block(&hash.key));
    let times_key = |x| _mm512_castsi512_si128(multiply(_mm512_zextsi128_si512(x), key));
    let before = times_key(hash_prefix(hash, tweak, message.len()));
    let Some(head) = message.first_chunk::<16>() else {
        if message.is_empty() {
            return bytes(before);
        }
        let mut padded = [0; 16];
        padded[..message.len()].copy_from_slice(message);
        padded[message.len()] = 1;
        return bytes(times_key(_mm_xor_si128(before, block(&padded))));
    };
    // `hash_and_stream` does not hash the first block and starts with `carry` in its place, so
    // `carry` includes the first block.
    let carry = _mm_xor_si128(before, block(head));
    let (src, nowhere) = (message.as_ptr(), std::ptr::null_mut());
    // SAFETY: `src` is valid for the length, which is at least 16; without `STREAM` nothing is
    // written.
    bytes(unsafe {
        hash_and_stream::<false>(
            &hash.powers,
            &[[0; 16]; ROUNDS + 1],
            carry,
            carry,
            src,
            nowhere,
            message.len(),
        )
    })
}

/// Hashes the prefix and the message after its first block. With `STREAM`, XORs the key stream of
/// `seed` into the message first, from `src` to `dst`, and hashes the result; the first block of
/// `dst` is then meaningless.
///
/// # Safety
/// `src` and, with `STREAM`, `dst` are valid for `len` bytes, and either equal or disjoint.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
unsafe fn hash_and_stream<const STREAM: bool>(
    powers: &[[u8; 16]; POWERS + 4],
    encrypt: &[[u8; 16]; ROUNDS + 1],
    prefix: __m128i,
    seed: __m128i,
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> __m128i {
    let mut stream = XctrStream::new(encrypt, seed);
    let mut carry = prefix;
    let mut at = 0;
    while at < len {
        let group = (len - at).min(POWERS * 16);
        let end = at + group;
        let mut sum = PolyvalSum::new(powers, group.div_ceil(16));
        // The carry is multiplied by the power of the group's first block. It is available late, so
        // it is added last.
        let carry_power = sum.power();
        // The first block of a message is not hashed.
        let mut hashed_lanes = if at == 0 { 0xfc } else { 0xff };
        while end - at >= BATCH * VECTOR {
            let mut text = [_mm512_setzero_si512(); BATCH];
            for (i, vector) in text.iter_mut().enumerate() {
                // SAFETY: the whole batch lies before `end`, which is at most `len`.
                *vector = unsafe { _mm512_loadu_si512(src.add(at + i * VECTOR).cast()) };
            }
            if STREAM {
                stream.xor(&mut text);
                for (i, vector) in text.iter().enumerate() {
                    // SAFETY: as for the loads.
                    unsafe { _mm512_storeu_si512(dst.add(at + i * VECTOR).cast(), *vector) };
                }
            }
            text[0] = _mm512_maskz_mov_epi64(hashed_lanes, text[0]);
            hashed_lanes = 0xff;
            for vector in text {
                sum.add(vector);
            }
            at += BATCH * VECTOR;
        }
        while at < end {
            let bytes = (end - at).min(VECTOR);
            let mask = u64::MAX >> (VECTOR - bytes);
            // SAFETY: the mask selects only bytes before `end`; no other is accessed.
            let mut text = [unsafe { _mm512_maskz_loadu_epi8(mask, src.add(at).cast()) }];
            if STREAM {
                stream.xor(&mut text);
                // SAFETY: as for the load.
                unsafe { _mm512_mask_storeu_epi8(dst.add(at).cast(), mask, text[0]) };
            }
            let whole = _mm512_maskz_mov_epi8(mask, text[0]);
            let padding = if bytes.is_multiple_of(16) { 0 } else { 1u64 << bytes };
            let padded = _mm512_mask_mov_epi8(whole, padding, _mm512_set1_epi8(1));
            sum.add(_mm512_maskz_mov_epi64(hashed_lanes, padded));
            hashed_lanes = 0xff;
            at += bytes;
        }
        sum.add_at(_mm512_zextsi128_si512(carry), carry_power);
        carry = sum.reduce();
    }
    carry
}

/// The XCTR key stream: block `i` is AES of the seed XOR `i`.
struct XctrStream {
    keys: [__m512i; ROUNDS + 1],
    counter: __m512i,
}

impl XctrStream {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
    fn new(encrypt: &[[u8; 16]; ROUNDS + 1], seed: __m128i) -> Self {
        let mut keys = [_mm512_setzero_si512(); ROUNDS + 1];
        for (key, bytes) in keys.iter_mut().zip(encrypt) {
            *key = _mm512_broadcast_i32x4(block(bytes));
        }
        keys[0] = _mm512_xor_si512(keys[0], _mm512_broadcast_i32x4(seed));
        XctrStream { keys, counter: _mm512_set_epi64(0, 3, 0, 2, 0, 1, 0, 0) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
    fn xor<const N: usize>(&mut self, text: &mut [__m512i; N]) {
        let step = _mm512_set_epi64(0, 4, 0, 4, 0, 4, 0, 4);
        let mut state = [_mm512_setzero_si512(); N];
        for s in &mut state {
            *s = _mm512_xor_si512(self.counter, self.keys[0]);
            self.counter = _mm512_add_epi64(self.counter, step);
        }
        for key in &self.keys[1..ROUNDS] {
            for s in &mut state {
                *s = _mm512_aesenc_epi128(*s, *key);
            }
        }
        for (t, s) in text.iter_mut().zip(state) {
            *t = _mm512_aesenclast_epi128(s, _mm512_xor_si512(*t, self.keys[ROUNDS]));
        }
    }
}

/// A sum of products of blocks and powers of the hash key, four at a time, not yet reduced.
struct PolyvalSum<'a> {
    powers: &'a [[u8; 16]],
    low: __m512i,
    middle: __m512i,
    high: __m512i,
}

impl<'a> PolyvalSum<'a> {
    /// An empty sum for `blocks` blocks.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
    fn new(powers: &'a [[u8; 16]; POWERS + 4], blocks: usize) -> Self {
        let zero = _mm512_setzero_si512();
        PolyvalSum { powers: &powers[POWERS - blocks..], low: zero, middle: zero, high: zero }
    }

    /// The powers of the next four blocks.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
    fn power(&self) -> __m512i {
        let four: &[[u8; 16]; 4] = self.powers.first_chunk().expect("zeros follow the last power");
        // SAFETY: `four` has 64 bytes.
        unsafe { _mm512_loadu_si512(four.as_ptr().cast()) }
    }

    /// Adds the next four blocks. Blocks after the last must be zero.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
    fn add(&mut self, blocks: __m512i) {
        self.add_at(blocks, self.power());
        self.powers = &self.powers[4..];
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
    fn add_at(&mut self, x: __m512i, power: __m512i) {
        const XOR3: i32 = 0x96;
        let (a, b) = (_mm512_clmulepi64_epi128::<0x01>(x, power), _mm512_clmulepi64_epi128::<0x10>(x, power));
        self.low = _mm512_xor_si512(self.low, _mm512_clmulepi64_epi128::<0x00>(x, power));
        self.middle = _mm512_ternarylogic_epi64::<XOR3>(self.middle, a, b);
        self.high = _mm512_xor_si512(self.high, _mm512_clmulepi64_epi128::<0x11>(x, power));
    }

    /// The sum of the four lanes, reduced.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
    fn reduce(self) -> __m128i {
        let lanes = self.reduce_lanes();
        let half = _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
        _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half))
    }

    /// The lanes, each reduced by itself.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
    fn reduce_lanes(self) -> __m512i {
        // x^128 + x^127 + x^126 + x^121 + 1; only the top 64 coefficients below x^128 are needed.
        let poly = _mm512_set1_epi64(0xc200_0000_0000_0000_u64 as i64);
        let low = _mm512_xor_si512(self.low, _mm512_bslli_epi128::<8>(self.middle));
        let high = _mm512_xor_si512(self.high, _mm512_bsrli_epi128::<8>(self.middle));
        // Twice: cancel the low 64 bits by a multiple of the polynomial, and move up by 64 bits.
        let once =
            _mm512_xor_si512(_mm512_shuffle_epi32::<0x4e>(low), _mm512_clmulepi64_epi128::<0x00>(low, poly));
        let twice = _mm512_xor_si512(
            _mm512_shuffle_epi32::<0x4e>(once),
            _mm512_clmulepi64_epi128::<0x00>(once, poly),
        );
        _mm512_xor_si512(high, twice)
    }
}

/// The products of the lanes of `a` and `b` in the field of POLYVAL.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
fn multiply(a: __m512i, b: __m512i) -> __m512i {
    let zero = _mm512_setzero_si512();
    let mut product = PolyvalSum { powers: &[], low: zero, middle: zero, high: zero };
    product.add_at(a, b);
    product.reduce_lanes()
}

/// The hash of length and tweak, before the multiplication by the hash key that comes with the
/// message.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
fn hash_prefix(hash: &HashPowers, tweak: &[u8], len: usize) -> __m128i {
    let key = _mm512_zextsi128_si512(block(&hash.key));
    let mut sum = block(&length_block(tweak.len(), len));
    for part in tweak.chunks(16) {
        let mut padded = [0; 16];
        padded[..part.len()].copy_from_slice(part);
        let product = multiply(_mm512_zextsi128_si512(sum), key);
        sum = _mm_xor_si128(_mm512_castsi512_si128(product), block(&padded));
    }
    sum
}

/// Fills `schedule` from `key`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
fn expand(schedule: &mut KeySchedule, key: &[u8; 32]) {
    expand_encrypt(&mut schedule.encrypt, key);
    schedule.decrypt[0] = schedule.encrypt[ROUNDS];
    schedule.decrypt[ROUNDS] = schedule.encrypt[0];
    for round in 1..ROUNDS {
        schedule.decrypt[round] = bytes(_mm_aesimc_si128(block(&schedule.encrypt[ROUNDS - round])));
    }
    schedule.hash.key = bytes(encrypt_block(&schedule.encrypt, _mm_setzero_si128()));
    schedule.stream_mask = bytes(encrypt_block(&schedule.encrypt, _mm_set_epi64x(0, 1)));
    fill_powers(&mut schedule.hash);
}

/// Fills in the powers of the hash key.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq,aes,pclmulqdq")]
fn fill_powers(hash: &mut HashPowers) {
    let first = _mm512_zextsi128_si512(block(&hash.key));
    let mut four = [first; 4];
    for i in 1..4 {
        four[i] = multiply(four[i - 1], first);
    }
    let fourth = _mm512_broadcast_i32x4(_mm512_castsi512_si128(four[3]));
    let mut lanes = [[0u8; 16]; 4];
    for (lane, power) in lanes.iter_mut().zip(four.iter().rev()) {
        *lane = bytes(_mm512_castsi512_si128(*power));
    }
    // SAFETY: `lanes` has 64 bytes.
    let mut powers = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
    lanes.zeroize();
    for place in hash.powers[..POWERS].rchunks_exact_mut(4) {
        // SAFETY: `place` has four blocks of 16 bytes.
        unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), powers) };
        powers = multiply(powers, fourth);
    }
}
