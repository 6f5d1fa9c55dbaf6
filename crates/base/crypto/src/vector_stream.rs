//! The key stream of AES-256-CTR by 256-bit vectors (VAES), for large requests to the random
//! source.

use crate::ffi::AesBlock;

/// Fills `out` with the key stream. The first counter block is `head` followed by a 32-bit zero
/// (big-endian). Returns false, and leaves `out` unchanged, if this machine lacks the instructions.
///
/// `out` has fewer than 2^32 blocks, so the counter does not carry into `head`.
pub(crate) fn fill(schedule: &AesBlock, head: &[u8; 12], out: &mut [u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_supported(schedule) {
        assert!(out.len() / 16 < u32::MAX as usize, "a key stream too long for its counter");
        // SAFETY: the features were detected.
        unsafe { x86::fill(schedule.round_keys(), head, out) };
        return true;
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (schedule, head, out);
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
            // SAFETY: the features were detected.
            unsafe { x86::fill(schedule.round_keys(), &[0; 12], &mut block) };
            block == schedule.encrypt([0; 16])
        }
    })
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::wildcard_imports, reason = "a dozen instructions")]
mod x86 {
    use std::arch::x86_64::*;

    const ROUNDS: usize = 14;
    /// Vectors processed side by side, to hide the latency of a round.
    const SIDE_BY_SIDE: usize = 8;
    const VECTOR: usize = 32;
    const STEP: usize = SIDE_BY_SIDE * VECTOR;

    #[target_feature(enable = "avx2,aes,vaes")]
    pub(super) fn fill(round_keys: &[[u8; 16]; ROUNDS + 1], head: &[u8; 12], out: &mut [u8]) {
        let mut keys: [__m256i; ROUNDS + 1] = std::array::from_fn(|round| both(&round_keys[round]));
        let mut start = [0; 16];
        start[..12].copy_from_slice(head);
        // Counters with a little-endian last word, and the shuffle that makes it big-endian.
        let turn =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 14, 13, 12));
        let mut counters = _mm256_add_epi32(both(&start), _mm256_setr_epi32(0, 0, 0, 0, 0, 0, 0, 1));
        let two = _mm256_setr_epi32(0, 0, 0, 2, 0, 0, 0, 2);
        let mut next = || {
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
            vectors
        };
        let mut steps = out.chunks_exact_mut(STEP);
        for step in &mut steps {
            store(&next(), step.try_into().expect("a whole step"));
        }
        let rest = steps.into_remainder();
        if !rest.is_empty() {
            let mut last = [0; STEP];
            store(&next(), &mut last);
            rest.copy_from_slice(&last[..rest.len()]);
            zeroize::Zeroize::zeroize(&mut last[..]);
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

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(vectors: &[__m256i; SIDE_BY_SIDE], out: &mut [u8; STEP]) {
        for (vector, place) in vectors.iter().zip(out.chunks_exact_mut(VECTOR)) {
            // SAFETY: `place` has the 32 bytes that are written.
            unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), *vector) };
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
