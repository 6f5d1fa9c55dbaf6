//! `IsRand` (EINT, section 3.3): tells the contents of a block from uniformly random bytes. A
//! wide-block cipher decrypts a ciphertext that was altered, moved or replayed to random bytes.
//!
//! The statistic of a run of n bytes is T = Σ t\[c\] over its 256 byte values, where c counts how
//! often a value occurs and t\[c\] = ⌊c · log2(c) · 2^12⌋: an integer that grows as the empirical
//! entropy, log2(n) - T / (n · 2^12) bits, falls. A run is told from random bytes when T reaches
//! the threshold of its size. docs/integrity.md derives the thresholds, and `papers/eint` computes
//! them: a uniformly random run of n bytes reaches its threshold with probability at most 2^-101. A
//! block is first judged by a sample of a quarter of its bytes, spread over the block, which
//! decides most blocks either way; then as a whole. A random block can fail either of the two
//! tests, so it is judged not random-looking with probability at most 2^-100.
//!
//! All arithmetic is on integers, so every machine gives the same verdict on the same block.

/// Bits after the binary point of the statistic.
pub const STATISTIC_BITS: u32 = 12;

/// The largest run of bytes that can be judged.
pub const LARGEST_BLOCK: usize = 4096;

/// The smallest run of bytes that can be judged; shorter blocks count as random-looking.
pub const SMALLEST_BLOCK: usize = 128;

/// Blocks of at least this size are judged by a sample, a quarter of the block, before they are
/// judged as a whole.
const SAMPLED_FROM: usize = 512;

/// The number of equal parts of a block; the sample is the first quarter of each part.
const SAMPLED_PARTS: usize = 16;

/// By size of the sample in bytes: a block with a lower statistic than this counts as
/// random-looking without the second test. Of uniformly random samples, 999 in 1000 are lower. A
/// wrong verdict of this kind costs a tag and no security.
const RANDOM_SAMPLES: [(usize, u64); 4] =
    [(128, 352_500), (256, 1_043_000), (512, 3_184_000), (1024, 9_431_000)];

/// Thresholds by size in bytes: one more than the least value that the bound proves, so that the
/// rounding of its computation does not matter.
const THRESHOLDS: [(usize, u64); 6] = [
    (128, 807_768),
    (256, 1_674_010),
    (512, 4_008_369),
    (1024, 10_369_950),
    (2048, 27_116_126),
    (4096, 69_027_892),
];

/// t\[c\] for every count of a byte value in a run of at most [`LARGEST_BLOCK`] bytes.
static TERMS: [u32; LARGEST_BLOCK + 1] = terms();

const fn terms() -> [u32; LARGEST_BLOCK + 1] {
    let mut terms = [0; LARGEST_BLOCK + 1];
    let mut count = 1;
    while count <= LARGEST_BLOCK {
        terms[count] = term(count as u64);
        count += 1;
    }
    terms
}

/// ⌊c · log2(c) · 2^12⌋, by repeated squaring of the mantissa in integers: 24 bits of the
/// logarithm.
const fn term(count: u64) -> u32 {
    let whole = count.ilog2();
    let mut mantissa = count << (62 - whole);
    let mut fraction: u64 = 0;
    let mut bit = 0;
    while bit < 24 {
        let square = (mantissa as u128 * mantissa as u128) >> 62;
        let carry = (square >> 63) as u64;
        mantissa = (square >> carry) as u64;
        fraction = fraction << 1 | carry;
        bit += 1;
    }
    let logarithm = (whole as u64) << 24 | fraction;
    ((count * logarithm) >> (24 - STATISTIC_BITS)) as u32
}

/// t\[c\], the contribution to the statistic of a byte value that occurs `count` times.
///
/// # Panics
/// If `count` is above [`LARGEST_BLOCK`].
pub fn statistic_term(count: usize) -> u32 {
    TERMS[count]
}

/// The least statistic that tells a run of `len` bytes from random ones; `None` for sizes that
/// cannot be judged.
pub fn threshold(len: usize) -> Option<u64> {
    find(&THRESHOLDS, len)
}

/// The statistic T of `bytes`, in units of 2^-12 bits.
///
/// # Panics
/// If there are more than [`LARGEST_BLOCK`] bytes.
pub fn statistic(bytes: &[u8]) -> u64 {
    assert!(bytes.len() <= LARGEST_BLOCK, "a run of {} bytes is too long to judge", bytes.len());
    let mut histogram = Histogram::default();
    histogram.add(bytes);
    histogram.statistic()
}

/// IsRand: whether `block` looks like uniformly random bytes. A uniformly random block of a size
/// that can be judged (128, 256, ... 4096 bytes) is judged not random-looking with probability at
/// most 2^-100; a block of another size always counts as random-looking.
pub fn is_random_looking(block: &[u8]) -> bool {
    let Some(whole) = threshold(block.len()) else { return true };
    let mut histogram = Histogram::default();
    if block.len() < SAMPLED_FROM {
        histogram.add(block);
        return histogram.statistic() < whole;
    }
    let sampled = block.len() / 4;
    let (part, first) = (block.len() / SAMPLED_PARTS, sampled / SAMPLED_PARTS);
    block.chunks_exact(part).for_each(|part| histogram.add(&part[..first]));
    let statistic = histogram.statistic();
    if find(&RANDOM_SAMPLES, sampled).is_some_and(|random| statistic < random) {
        return true;
    }
    if threshold(sampled).is_some_and(|threshold| statistic >= threshold) {
        return false;
    }
    block.chunks_exact(part).for_each(|part| histogram.add(&part[first..]));
    histogram.statistic() < whole
}

fn find(table: &[(usize, u64)], len: usize) -> Option<u64> {
    table.iter().find(|(size, _)| *size == len).map(|(_, value)| *value)
}

/// Counts of each byte value, spread over four tables, so that equal bytes in a row do not wait for
/// each other's counts.
struct Histogram([[u16; 256]; 4]);

impl Default for Histogram {
    fn default() -> Self {
        Histogram([[0; 256]; 4])
    }
}

impl Histogram {
    fn add(&mut self, bytes: &[u8]) {
        let [a, b, c, d] = &mut self.0;
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            let word = u64::from_le_bytes(*word);
            a[usize::from(word as u8)] += 1;
            b[usize::from((word >> 8) as u8)] += 1;
            c[usize::from((word >> 16) as u8)] += 1;
            d[usize::from((word >> 24) as u8)] += 1;
            a[usize::from((word >> 32) as u8)] += 1;
            b[usize::from((word >> 40) as u8)] += 1;
            c[usize::from((word >> 48) as u8)] += 1;
            d[usize::from((word >> 56) as u8)] += 1;
        }
        rest.iter().for_each(|byte| a[usize::from(*byte)] += 1);
    }

    fn statistic(&self) -> u64 {
        let mut counts = [0_u16; 256];
        for table in &self.0 {
            counts.iter_mut().zip(table).for_each(|(sum, count)| *sum += count);
        }
        // At most 4096 · 12 · 2^12, which fits 32 bits.
        counts.iter().map(|count| TERMS[usize::from(*count).min(LARGEST_BLOCK)]).sum::<u32>().into()
    }
}
