//! A small deterministic generator, for simulation only: its output is predictable and must never
//! become a key, a nonce, a salt or padding.

/// xoshiro256**, seeded through splitmix64. For simulation only, never for keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng([u64; 4]);

impl Rng {
    /// The generator for a seed. Any seed is good, including zero.
    pub fn new(seed: u64) -> Self {
        let mut z = seed;
        Rng(std::array::from_fn(|_| {
            z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut x = z;
            x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            x ^ (x >> 31)
        }))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// A number below `n`. The bias is below `n / 2^64`, which no simulation can detect.
    ///
    /// # Panics
    /// If `n` is zero: there is no such number.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "no number is below zero");
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// True with probability `n / d`. Always true if `n >= d`.
    pub fn chance(&mut self, n: u64, d: u64) -> bool {
        self.below(d) < n
    }

    /// Fills `buf`.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.fill(&mut out);
        out
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If `items` is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Puts `items` in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_stream() {
        let mut pair = [Rng::new(7), Rng::new(7)];
        let [first, second] = pair.each_mut().map(|rng| rng.bytes(1001));
        assert_eq!(first, second);
        assert_ne!(first, Rng::new(8).bytes(1001));
        assert_eq!(pair[0], pair[1]);
    }

    #[test]
    fn matches_the_published_algorithm() {
        // splitmix64 with seed 0 begins e220a8397b1dcdaf, 6e789e6aa1b965f4 ...; xoshiro256** starts
        // from that state.
        let rng = Rng::new(0);
        assert_eq!(rng.0[0], 0xE220_A839_7B1D_CDAF);
        assert_eq!(rng.0[1], 0x6E78_9E6A_A1B9_65F4);
        let mut rng = Rng([1, 2, 3, 4]);
        assert_eq!([rng.next_u64(), rng.next_u64(), rng.next_u64()], [11520, 0, 1_509_978_240]);
    }

    #[test]
    fn numbers_stay_in_their_range_and_cover_it() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[rng.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert!((0..100).all(|_| rng.chance(5, 5)));
        assert!((0..100).all(|_| !rng.chance(0, 5)));
        let mut order: Vec<u32> = (0..50).collect();
        rng.shuffle(&mut order);
        assert_ne!(order, (0..50).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
        assert!(order.contains(rng.pick(&order)));
    }
}
