//! Levels in memory, for what a medium would be too slow to show: they read like their models, and what waits for a cell is
//! as little as the bound says, over millions of operations at full load.
//!
//! `LACUNA_OPERATIONS` sets the operations of each measurement (default 2,000,000).

use lacuna_oblivious::{World, tail_base};
use lacuna_sim::Rng;
use std::collections::HashMap;

/// Cells at full load.
const CELLS: usize = 2000;
/// Operations in a batch: few, and as many as the format does at once.
const BATCHES: [usize; 2] = [4, 32];

#[test]
fn every_level_reads_like_its_model() {
    for at_once in [1, 7] {
        let mut world = World::new(1, 400, 3, &[60, 60, 60]);
        let mut models = vec![HashMap::new(); 3];
        let mut rng = Rng::new(2);
        for stamp in 0..60_000 {
            let level = if stamp % 2 == 0 { 0 } else { 1 + rng.below(2) as usize };
            let number = rng.below(60);
            world.write(level as u8, number, stamp);
            models[level].insert(number, stamp);
            if stamp % at_once == 0 {
                world.operate(at_once as usize);
            }
            let (level, number) = (rng.below(3) as usize, rng.below(60));
            assert_eq!(world.read(level as u8, number), models[level].get(&number).copied());
        }
        assert!(world.waiting() < 40);
    }
}

fn operations() -> u64 {
    std::env::var("LACUNA_OPERATIONS").ok().and_then(|v| v.parse().ok()).unwrap_or(2_000_000)
}

/// Holds the tail of what waits in a world at full load against the bound.
fn check(per_write: usize, levels: usize, at_once: usize) {
    let batches = operations() / at_once as u64;
    let reached = World::full(7, CELLS, per_write, levels).tail(batches, at_once);
    let base = tail_base(per_write as u32, 0.5).unwrap();
    println!("{per_write} cells, {levels} levels, {at_once} operations at once");
    for (blocks, count) in reached.iter().enumerate() {
        let (measured, bound) = (*count as f64 / batches as f64, base.powi(blocks as i32));
        println!("{blocks}: {measured:.2e}, at most {bound:.2e}");
        // Rare lengths scatter: by three standard deviations of their number, were they independent, times a few for
        // that they come in bursts.
        let scatter = 12.0 * (bound / batches as f64).sqrt() + 12.0 / batches as f64;
        assert!(measured <= bound + scatter, "{blocks} blocks: {measured:e}, at most {bound:e}");
    }
    assert!(reached.len() <= 20);
}

#[test]
fn what_waits_is_as_little_as_the_bound_says() {
    check(3, 1, 1);
    check(4, 1, 1);
}

#[test]
fn so_it_is_after_every_batch() {
    for at_once in BATCHES {
        check(3, 1, at_once);
        check(4, 1, at_once);
    }
}

/// Each level has a quarter of the cells, as in the format; what level 0 displaces waits together with its own.
#[test]
fn a_hidden_level_that_is_displaced_makes_no_difference() {
    check(3, 2, 1);
    BATCHES.into_iter().for_each(|at_once| check(3, 2, at_once));
}

/// The proof that the measurement bites: where more blocks wait than cells come free, it shows.
#[test]
fn too_few_free_cells_are_noticed() {
    let reached = World::full(7, CELLS, 2, 1).tail(100_000, 1);
    let bound = tail_base(3, 0.5).unwrap().powi(10);
    assert!(reached.len() > 10 && reached[10] as f64 / 100_000.0 > 100.0 * bound);
}
