//! IsRand: its statistic against the definition, its verdicts on plain cases and against the rule.
//! `papers/eint` checks its thresholds against the bound.

use lacuna_integrity::{STATISTIC_BITS, is_random_looking, statistic, statistic_term, threshold};
use proptest::prelude::*;

const SIZES: [usize; 6] = [128, 256, 512, 1024, 2048, 4096];

/// Statistics below which samples of 128, 256, 512 and 1024 bytes look random, as in
/// docs/integrity.md.
const RANDOM_SAMPLES: [u64; 4] = [352_500, 1_043_000, 3_184_000, 9_431_000];

/// A run of bytes with `values` byte values, equally frequent up to one.
fn spread(len: usize, values: usize) -> Vec<u8> {
    (0..len).map(|at| (at % values) as u8).collect()
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn terms_are_the_rounded_logarithms() {
    for count in 0..=4096_usize {
        let exact = if count == 0 { 0.0 } else { count as f64 * (count as f64).log2() };
        let term = f64::from(statistic_term(count)) / f64::from(1_u32 << STATISTIC_BITS);
        assert!(term <= exact + 1e-9 && exact - term < 0.001, "{count}: {term} of {exact}");
    }
}

#[test]
fn plain_blocks_are_judged_correctly() {
    for len in SIZES {
        assert!(!is_random_looking(&vec![0; len]), "zeros of {len} bytes");
        assert!(!is_random_looking(&spread(len, 16)), "sixteen values in {len} bytes");
        if len < 512 {
            assert!(is_random_looking(&spread(len, 256)), "all values in {len} bytes");
        }
        for seed in 0..200 {
            assert!(is_random_looking(&random(len, seed)), "random bytes, {len}, seed {seed}");
        }
    }
    let text = b"It was a bright cold day in April, and the clocks were striking thirteen. Winston Smith, his chin nuzzled into h";
    let page: Vec<u8> = text.iter().copied().cycle().take(4096).collect();
    for len in SIZES {
        assert!(!is_random_looking(&page[..len]), "text of {len} bytes");
    }
}

#[test]
fn sizes_without_a_threshold_look_random() {
    for len in [0, 1, 16, 64, 127, 129, 4095, 4097, 8192] {
        assert!(is_random_looking(&vec![0; len]), "{len}");
    }
}

/// The sample of a block.
fn sampled(block: &[u8]) -> Vec<u8> {
    let part = block.len() / 16;
    block.chunks(part).flat_map(|part_of| &part_of[..part / 4]).copied().collect()
}

#[test]
fn the_sample_decides_clear_cases() {
    let block = random(4096, 1);
    let mut low = block.clone();
    low.chunks_mut(256).for_each(|part| part[..64].fill(b'a'));
    assert!(!is_random_looking(&low), "the sample is constant");
    let mut unseen = block.clone();
    unseen.chunks_mut(256).for_each(|part| part[64..].fill(b'a'));
    assert!(is_random_looking(&unseen), "the sample looks random, and the rest is not examined");
    let mut padded = block;
    padded[3000..].fill(0);
    assert!(!is_random_looking(&padded), "the end is padding");
    let mut narrow = random(4096, 2);
    narrow.iter_mut().for_each(|byte| *byte %= 224);
    assert!(!is_random_looking(&narrow), "every byte is below 224: the whole block shows it");
    assert!(statistic(&sampled(&narrow)) < threshold(1024).unwrap(), "and its sample does not");
}

proptest! {
    #[test]
    #[allow(clippy::naive_bytecount, reason = "a test counts as slowly as it likes")]
    fn the_statistic_is_its_definition(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let sum: u64 = (0..=255_u8)
            .map(|value| bytes.iter().filter(|byte| **byte == value).count())
            .map(|count| u64::from(statistic_term(count)))
            .sum();
        prop_assert_eq!(statistic(&bytes), sum);
    }

    #[test]
    fn the_verdict_is_the_rule(
        len in proptest::sample::select(SIZES.to_vec()), values in 8_usize..256, seed in any::<u64>(),
    ) {
        let block: Vec<u8> = random(len, seed).iter().map(|byte| (usize::from(*byte) % values) as u8).collect();
        let low = statistic(&block) >= threshold(len).unwrap();
        let expected = match len {
            ..512 => !low,
            _ => match statistic(&sampled(&block)) {
                sample if sample < RANDOM_SAMPLES[len.ilog2() as usize - 9] => true,
                sample => sample < threshold(len / 4).unwrap() && !low,
            },
        };
        prop_assert_eq!(is_random_looking(&block), expected);
    }
}
