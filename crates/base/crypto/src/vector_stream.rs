//! The key stream of AES-256-CTR by 256-bit vectors (VAES), for large requests to the random source
//! and for messages.

use crate::ffi::AesBlock;

/// Fills `out` with the key stream. The first counter block is `head` followed by a 32-bit zero
/// (big-endian). Returns false, and leaves `out` unchanged, if this machine lacks the instructions.
///
/// `out` has fewer than 2^32 blocks, so the counter does not carry into `head`.
pub(crate) fn fill(schedule: &AesBlock, head: &[u8; 12], out: &mut [u8]) -> bool {
    // SAFETY: `out` is valid for its length, and nothing is read.
    unsafe { run::<false>(schedule, head, 0, std::ptr::null(), out.as_mut_ptr(), out.len()) }
}

/// XORs the key stream into `src` and writes the result to `dst` (of the same length). The first
/// counter block is `head` followed by `first`. Otherwise as [`fill`].
pub(crate) fn xor(schedule: &AesBlock, head: &[u8; 12], first: u32, src: &[u8], dst: &mut [u8]) -> bool {
    assert_eq!(src.len(), dst.len(), "key stream source and destination differ in length");
    // SAFETY: both slices are valid for the length and, being borrowed apart, do not overlap.
    unsafe { run::<true>(schedule, head, first, src.as_ptr(), dst.as_mut_ptr(), src.len()) }
}

/// [`xor`] in place.
pub(crate) fn xor_in_place(schedule: &AesBlock, head: &[u8; 12], first: u32, buf: &mut [u8]) -> bool {
    let text = buf.as_mut_ptr();
    // SAFETY: `text` is valid for the length; source and destination may be equal.
    unsafe { run::<true>(schedule, head, first, text, text, buf.len()) }
}

/// # Safety
/// `dst` and, with `XOR`, `src` are valid for `len` bytes, and either equal or disjoint.
unsafe fn run<const XOR: bool>(
    schedule: &AesBlock,
    head: &[u8; 12],
    first: u32,
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_supported(schedule) {
        assert!(len / 16 < (u32::MAX - first) as usize, "a key stream too long for its counter");
        // SAFETY: the features were detected, and the caller vouches for both pointers.
        unsafe { x86::stream::<XOR>(schedule.round_keys(), head, first, src, dst, len) };
        return true;
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (schedule, head, first, src, dst, len);
    false
}

/// Whether the processor has the instructions, and the library stores round keys in the order that
/// the instructions need.
#[cfg(target_arch = "x86_64")]
fn is_supported(schedule: &AesBlock) -> bool {
    static ABLE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ABLE.get_or_init(|| {
        let detected = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("vaes");
        let mut block = [0; 16];
        detected && {
            let (nothing, out) = (std::ptr::null(), block.as_mut_ptr());
            // SAFETY: the features were detected, `out` is valid for a block, and nothing is read.
            unsafe { x86::stream::<false>(schedule.round_keys(), &[0; 12], 0, nothing, out, 16) };
            block == schedule.encrypt([0; 16])
        }
    })
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::wildcard_imports, reason = "a dozen instructions")]
mod x86 {
    use lacuna_contracts::wipe;
    use std::arch::x86_64::*;

    const ROUNDS: usize = 14;
    /// Vectors processed side by side, to hide the latency of a round.
    const SIDE_BY_SIDE: usize = 8;
    const VECTOR: usize = 32;
    const STEP: usize = SIDE_BY_SIDE * VECTOR;

    /// Writes the key stream to `dst`; with `XOR`, XORs it into the bytes at `src` first.
    ///
    /// # Safety
    /// `dst` and, with `XOR`, `src` are valid for `len` bytes, and either equal or disjoint.
    #[target_feature(enable = "avx2,aes,vaes")]
    pub(super) unsafe fn stream<const XOR: bool>(
        round_keys: &[[u8; 16]; ROUNDS + 1],
        head: &[u8; 12],
        first: u32,
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) {
        let mut keys = [_mm256_setzero_si256(); ROUNDS + 1];
        for (key, bytes) in keys.iter_mut().zip(round_keys) {
            *key = both(bytes);
        }
        let mut start = [0; 16];
        start[..12].copy_from_slice(head);
        // Counters with a little-endian last word, and the shuffle that makes it big-endian.
        let turn =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 14, 13, 12));
        let first = first as i32;
        let mut counters =
            _mm256_add_epi32(both(&start), _mm256_setr_epi32(0, 0, 0, first, 0, 0, 0, first + 1));
        let two = _mm256_setr_epi32(0, 0, 0, 2, 0, 0, 0, 2);
        let mut at = 0;
        while at < len {
            let mut vectors = [_mm256_setzero_si256(); SIDE_BY_SIDE];
            for vector in &mut vectors {
                *vector = _mm256_xor_si256(_mm256_shuffle_epi8(counters, turn), keys[0]);
                counters = _mm256_add_epi32(counters, two);
            }
            for key in &keys[1..ROUNDS] {
                for vector in &mut vectors {
                    *vector = _mm256_aesenc_epi128(*vector, *key);
                }
            }
            for vector in &mut vectors {
                *vector = _mm256_aesenclast_epi128(*vector, keys[ROUNDS]);
            }
            let (text, rest) = (src.wrapping_add(at), len - at);
            // SAFETY: `at` lies before `len`.
            let out = unsafe { dst.add(at) };
            if rest >= STEP {
                // SAFETY: the whole step lies before `len`. Without `XOR` nothing is read.
                unsafe { put::<XOR>(&vectors, text, out) };
            } else {
                let mut last = [0u8; STEP];
                if XOR {
                    // SAFETY: the rest lies before `len`, and is shorter than `last`.
                    unsafe { std::ptr::copy_nonoverlapping(text, last.as_mut_ptr(), rest) };
                }
                let step = last.as_mut_ptr();
                // SAFETY: `last` has the length of a step.
                unsafe { put::<true>(&vectors, step, step) };
                // SAFETY: as for the first copy.
                unsafe { std::ptr::copy_nonoverlapping(step, out, rest) };
                wipe(&mut last);
            }
            at += STEP;
        }
        for key in &mut keys {
            // SAFETY: `key` is a live vector. Volatile, because the compiler may drop a write that
            // is never read.
            unsafe { std::ptr::write_volatile(key, _mm256_setzero_si256()) };
        }
    }

    /// The same 16 bytes in both halves.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn both(bytes: &[u8; 16]) -> __m256i {
        // SAFETY: `bytes` has the 16 bytes that are read.
        _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
    }

    /// Writes vectors to `dst`; with `XOR`, XORs them into the bytes at `src` first.
    ///
    /// # Safety
    /// `dst` and, with `XOR`, `src` are valid for a step, and either equal or disjoint.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn put<const XOR: bool>(vectors: &[__m256i; SIDE_BY_SIDE], src: *const u8, dst: *mut u8) {
        for (i, vector) in vectors.iter().enumerate() {
            let mut bytes = *vector;
            if XOR {
                // SAFETY: the caller vouches for `src`.
                let text = unsafe { _mm256_loadu_si256(src.add(i * VECTOR).cast()) };
                bytes = _mm256_xor_si256(bytes, text);
            }
            // SAFETY: the caller vouches for `dst`.
            unsafe { _mm256_storeu_si256(dst.add(i * VECTOR).cast(), bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vector_key_stream_matches_aws_lc() {
        let schedule = AesBlock::from_bytes(&std::array::from_fn(|i| i as u8 * 7));
        for len in [0, 1, 16, 255, 256, 257, 4096, 70_001] {
            let mut counter = [0x80; 16];
            counter[12..].fill(0);
            let mut expected = vec![0; len];
            schedule.xor_stream(&counter, &mut expected);
            let mut out = vec![0x55; len];
            if !fill(&schedule, &[0x80; 12], &mut out) {
                return;
            }
            assert!(out == expected, "{len} bytes");
        }
    }
}
