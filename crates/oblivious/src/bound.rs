//! How long a stash gets.
//!
//! An operation puts one block into the stash and takes out as many as there are free cells among its *k*: B of them, a
//! binomial number of *k* with the probability *f* that a cell is free. Before its lower end stops it, the length is a
//! walk with steps 1 − B, and *k* · *f* > 1 makes it fall. For the y < 1 with E[y^(B−1)] = 1, the sequence y^(−length) is
//! a martingale of that walk, and so the probability that the walk from 0 ever reaches *m* is at most y^m; by reversal
//! of time that is also the tail of the length in the long run.
//!
//! A batch puts *b* blocks in, draws *b* · *k* cells at once, and takes out as many as are free among these. For the same
//! y the sequence y^(−length) over whole batches is still a martingale: E[y^F] = (1 − f + f·y)^(b·k) = y^b for F binomial,
//! so E[y^(F−b)] = 1, and the bound is the same at the ends of batches. Cells of a batch are distinct, so that F is
//! hypergeometric; y^F is convex, and of that the expectation is less when drawn without replacement (Hoeffding 1963,
//! theorem 4). A block keeps its old cell while its new version waits, so never more cells are taken than there are blocks:
//! with blocks for half of them *f* is at least 1/2, which only makes the walk fall faster. Levels together are one stash:
//! a level that displaces a higher one's block takes a block out and puts one in.

/// The base of the exponential that bounds the tail of the length of a stash: the probability of *m* blocks or more is at
/// most this to the power of *m*. `cells` of every operation, of which each is free with probability `free`.
///
/// None if operations free fewer cells than they fill in the long run (`cells` · `free` ≤ 1): such a stash grows for ever.
/// For 3 cells, half of them free, it is √5 − 2.
pub fn tail_base(cells: u32, free: f64) -> Option<f64> {
    if f64::from(cells) * free <= 1.0 {
        return None;
    }
    // E[y^B] − y is convex, 0 at 1 and positive at 0; with this drift its other zero lies below 1.
    let excess = |y: f64| (1.0 - free + free * y).powi(cells as i32) - y;
    let (mut low, mut high) = (0.0, lowest(cells, free));
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if excess(middle) > 0.0 { low = middle } else { high = middle }
    }
    Some(high)
}

/// Where E[y^B] − y is least: its derivative is 0.
fn lowest(cells: u32, free: f64) -> f64 {
    let k = f64::from(cells);
    ((1.0 / (k * free)).powf(1.0 / (k - 1.0)) - (1.0 - free)) / free
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::STASH_SLOTS;

    #[test]
    fn three_cells_half_free_give_the_root_of_a_quadratic() {
        // (1 + y)³ = 8y, less its root 1, is y² + 4y − 1 = 0.
        assert!((tail_base(3, 0.5).unwrap() - (5f64.sqrt() - 2.0)).abs() < 1e-12);
        // (1 − f + f·y)² = y has the roots 1 and ((1 − f) / f)².
        assert!((tail_base(2, 0.75).unwrap() - 1.0 / 9.0).abs() < 1e-12);
        assert_eq!(tail_base(2, 0.5), None);
        assert_eq!(tail_base(3, 0.3), None);
    }

    #[test]
    fn the_slots_of_the_stash_are_too_few_in_a_batch_of_2_to_the_68() {
        let log2_of_reaching = |cells, blocks| tail_base(cells, 0.5).unwrap().log2() * blocks as f64;
        // Full, and one more than fits.
        assert!((log2_of_reaching(3, STASH_SLOTS) + 66.65).abs() < 0.01);
        assert!((log2_of_reaching(3, STASH_SLOTS + 1) + 68.73).abs() < 0.01);
        assert!(log2_of_reaching(4, STASH_SLOTS) < -112.0);
    }
}
