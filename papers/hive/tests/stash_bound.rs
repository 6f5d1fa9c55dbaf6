//! Levels in memory, for tests that a medium would make too slow: levels read like their models,
//! and over millions of operations at full load the stash stays within the bound.
//!
//! `LACUNA_OPERATIONS` sets the operations of each measurement (default 2,000,000).

use lacuna_oblivious::{StashSimulation, tail_base};
use lacuna_sim::{Rng, env_number};
use std::collections::HashMap;

/// Cells of a fully loaded level.
const CELLS: usize = 2000;
/// Operations in a batch: a few, and the format's number.
const BATCHES: [usize; 2] = [4, 32];
/// Cells that the format draws together.
const GROUP: usize = 8;

#[test]
fn a_level_reads_like_its_model() {
    for at_once in [1, 7] {
        let mut world = StashSimulation::new(1, 400, 2, 1, 130);
        let mut model = HashMap::new();
        let mut rng = Rng::new(2);
        for stamp in 0..60_000 {
            let number = rng.below(130);
            world.write(number, stamp);
            model.insert(number, stamp);
            if stamp % at_once == 0 {
                world.run_operations(at_once as usize);
            }
            let number = rng.below(130);
            assert_eq!(world.read(number), model.get(&number).copied());
        }
        assert!(world.pending() < 40);
    }
}

fn operations() -> u64 {
    env_number("LACUNA_OPERATIONS", 2_000_000)
}

/// Compares the tail of the stash at full load with the bound.
fn check(per_write: usize, at_once: usize, group: usize, in_order: bool) {
    let batches = operations() / at_once as u64;
    let reached = StashSimulation::filled(7, CELLS, per_write, group).tail(batches, at_once, in_order);
    let free = if per_write == 2 { 2.0 / 3.0 } else { 0.5 };
    let base = tail_base(per_write as u32, free, group as u64).unwrap();
    println!("{per_write} cells in groups of {group}, {at_once} operations at once, in order: {in_order}");
    for (blocks, count) in reached.iter().enumerate() {
        let (measured, bound) = (*count as f64 / batches as f64, base.powi(blocks as i32));
        println!("{blocks}: {measured:.2e}, at most {bound:.2e}");
        // Rare stash sizes scatter: allow three standard deviations of independent counts, times a
        // few, because they come in bursts.
        let scatter = 12.0 * (bound / batches as f64).sqrt() + 12.0 / batches as f64;
        assert!(measured <= bound + scatter, "{blocks} blocks: {measured:e}, at most {bound:e}");
    }
    assert!(reached.len() <= 20 * group);
}

#[test]
fn the_stash_stays_within_the_bound() {
    (2..5).for_each(|per_write| check(per_write, 1, 1, false));
}

#[test]
fn the_stash_stays_within_the_bound_after_every_batch() {
    for (at_once, in_order) in BATCHES.into_iter().flat_map(|at_once| [(at_once, false), (at_once, true)]) {
        (2..5).for_each(|per_write| check(per_write, at_once, GROUP, in_order));
    }
}

/// The check detects too few free cells: with more evicted blocks than cells that come free, the
/// tail exceeds the bound.
#[test]
fn too_few_free_cells_exceed_the_bound() {
    let mut world = StashSimulation::new(7, CELLS, 2, 1, CELLS / 2);
    (0..CELLS as u64 / 2).for_each(|number| world.write(number, 0));
    while world.pending() > 0 {
        world.run_operations(1);
    }
    let reached = world.tail(100_000, 1, false);
    let bound = tail_base(3, 0.5, 1).unwrap().powi(10);
    assert!(reached.len() > 10 && reached[10] as f64 / 100_000.0 > 100.0 * bound);
}
