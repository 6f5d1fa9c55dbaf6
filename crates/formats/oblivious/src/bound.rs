//! A bound on the length of the stash of level 0.
//!
//! An operation puts one block into the stash, and takes out one for each free cell among its *k*:
//! B blocks, where B is binomial with *k* trials and the probability *f* that a cell of the region
//! is free. Without the end at 0 the length is a walk with steps 1 − B, which falls because *k* ·
//! *f* > 1. For the y < 1 with E[y^(B−1)] = 1, the sequence y^(−length) is a martingale of that
//! walk. The probability that the walk from 0 ever reaches *m* is therefore at most y^m; by
//! reversal of time this also bounds the tail of the length in the long run.
//!
//! A batch puts *b* blocks and pages in, draws *b* · *k* cells of the region at once, and takes out
//! one block for each free cell among them. For the same y the sequence y^(−length) over whole
//! batches is still a martingale: E[y^F] = (1 − f + f·y)^(b·k) = y^b for F binomial, so E[y^(F−b)]
//! = 1, and the bound is the same at the ends of batches. The cells of a batch are distinct, so F
//! is hypergeometric; y^F is convex, and the expectation of a convex function is smaller for draws
//! without replacement (Hoeffding 1963, theorem 4). A block keeps its old cell while its new
//! version is pending, so a level never uses more cells than it has blocks: the free share is at
//! least *f*, and a larger share only makes the walk fall faster.
//!
//! Cells are drawn in groups of *g* neighbours, which may become free together and be filled
//! together. The free share of a group is *f* on average, however its cells depend on each other.
//! For the G free cells of a group, z^G is convex in G, so its expectation is at most that of a
//! group that is either free as a whole or not at all: 1 − f + f·z^g. With y = z^g the argument
//! above applies, and the tail is at most z^m = y^(m/g).
//!
//! The format has *g* = 8; *k* = 2 with *f* = 2/3 and therefore y = ((1 − f) / f)² = 1/4; and *k*
//! of 3 or more with *f* = 1/2 and y of at most √5 − 2. After a batch, more than
//! [`crate::limits::STASH_SLOTS`] blocks are pending with a probability of at most 4^(−49/8) =
//! 2^−12.25, for steps that are independent of each other, if neighbours are always free together.
//! They are not: by simulation at full load (`papers/hive/tests/stash_bound.rs`) one batch in
//! 100,000 leaves more if blocks are written in order, and none if writes are random. Then another
//! batch follows at once, which depends on level 0 alone; a pending block is never in memory alone
//! after a flush. Blocks of hidden levels need no stash: until a cell takes them they are not
//! durable, and their old versions stay.

/// The base of the exponential bound on the tail of the length of a stash: the probability of *m*
/// blocks or more is at most this to the power of *m*. Every operation draws `cells` cells, in
/// groups of `group`; each is free with probability `free`.
///
/// None if operations free no more cells than they fill in the long run (`cells` · `free` ≤ 1):
/// such a stash grows for ever. For 3 cells, half of them free, drawn one by one, it is √5 − 2.
pub fn tail_base(cells: u32, free: f64, group: u64) -> Option<f64> {
    if f64::from(cells) * free <= 1.0 {
        return None;
    }
    // E[y^B] − y is convex, 0 at 1 and positive at 0; with this drift its other zero lies below 1.
    let excess = |y: f64| (1.0 - free + free * y).powi(cells as i32) - y;
    let (mut low, mut high) = (0.0, lowest(cells, free));
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if excess(middle) > 0.0 { low = middle } else { high = middle }
    }
    Some(high.powf(1.0 / group as f64))
}

/// The y that minimises E[y^B] − y: the derivative is 0.
fn lowest(cells: u32, free: f64) -> f64 {
    let k = f64::from(cells);
    ((1.0 / (k * free)).powf(1.0 / (k - 1.0)) - (1.0 - free)) / free
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::regions::cells_per_block;
    use crate::limits::{GROUP, STASH_SLOTS};
    use crate::params::PER_WRITE;

    #[test]
    fn three_cells_half_free_give_the_root_of_a_quadratic() {
        // (1 + y)³ = 8y, less its root 1, is y² + 4y − 1 = 0.
        assert!((tail_base(3, 0.5, 1).unwrap() - (5f64.sqrt() - 2.0)).abs() < 1e-12);
        // (1 − f + f·y)² = y has the roots 1 and ((1 − f) / f)².
        assert!((tail_base(2, 0.75, 1).unwrap() - 1.0 / 9.0).abs() < 1e-12);
        assert!((tail_base(2, 2.0 / 3.0, 1).unwrap() - 0.25).abs() < 1e-12);
        assert_eq!(tail_base(2, 0.5, 1), None);
        assert_eq!(tail_base(3, 0.3, 1), None);
    }

    /// The stash stays short for every number of cells that an operation may rewrite.
    #[test]
    fn the_stash_is_bounded_under_every_plan() {
        for per_write in PER_WRITE {
            let free = 1.0 - 1.0 / f64::from(cells_per_block(per_write));
            assert!(tail_base(u32::from(per_write), free, GROUP).is_some(), "{per_write}");
        }
    }

    #[test]
    fn the_stash_overflows_at_most_once_in_4000_batches() {
        let log2 =
            |cells, free: f64| tail_base(cells, free, GROUP).unwrap().log2() * (STASH_SLOTS + 1) as f64;
        assert!((log2(2, 2.0 / 3.0) + 12.25).abs() < 1e-6);
        assert!(log2(3, 0.5) < -12.5 && log2(4, 0.5) < -21.0);
    }
}
