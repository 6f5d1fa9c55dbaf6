//! A disk of cells in memory under HIVE's operations: what lower volumes see of higher ones, and how long a stash gets.

use lacuna_crypto::SeededRandom;
use lacuna_oblivious::{Block, Fill, Stash, draw_cells, place, tail_base};
use lacuna_sim::Rng;
use std::collections::HashMap;

const CELLS: usize = 3;

/// What an operation shows: its cells in order, and of each what the lowest volume's key opens.
type Shown = Vec<(u64, Option<Fill<u64>>)>;

struct World {
    random: SeededRandom,
    cells: Vec<Option<(u8, Block<u64>)>>,
    maps: Vec<HashMap<u64, u64>>,
    stashes: Vec<Stash<u64>>,
}

impl World {
    fn new(seed: u64, cells: usize, volumes: usize) -> World {
        World {
            random: SeededRandom::new(seed),
            cells: vec![None; cells],
            maps: vec![HashMap::new(); volumes],
            stashes: (0..volumes).map(|_| Stash::default()).collect(),
        }
    }

    fn write(&mut self, volume: usize, number: u64, data: u64) {
        self.stashes[volume].put(Block { number, data });
    }

    /// The latest version of the block in a cell, if it is that.
    fn held(&self, cell: u64) -> Option<(u8, Block<u64>)> {
        let (volume, block) = self.cells[cell as usize].clone()?;
        let at = usize::from(volume);
        let latest = self.maps[at].get(&block.number) == Some(&cell);
        (latest && self.stashes[at].get(block.number).is_none()).then_some((volume, block))
    }

    fn operate(&mut self) -> Shown {
        let cells = draw_cells(&self.random, self.cells.len() as u64, CELLS);
        let held = cells.iter().map(|cell| self.held(*cell)).collect();
        let fills = place(held, &mut self.stashes);
        for (cell, fill) in cells.iter().zip(&fills) {
            self.cells[*cell as usize] = match fill {
                Fill::Kept(volume, block) => Some((*volume, block.clone())),
                Fill::Placed(volume, block) => {
                    self.maps[usize::from(*volume)].insert(block.number, *cell);
                    Some((*volume, block.clone()))
                }
                Fill::Random => None,
            };
        }
        let seen = |fill: Fill<u64>| match fill {
            Fill::Kept(0, _) | Fill::Placed(0, _) => Some(fill),
            _ => None,
        };
        cells.into_iter().zip(fills.into_iter().map(seen)).collect()
    }

    fn read(&self, volume: usize, number: u64) -> Option<u64> {
        if let Some(data) = self.stashes[volume].get(number) {
            return Some(*data);
        }
        let cell = self.maps[volume].get(&number)?;
        let (of, block) = self.cells[*cell as usize].as_ref().expect("a map never points at noise");
        assert_eq!((usize::from(*of), block.number), (volume, number));
        Some(block.data)
    }
}

#[test]
fn every_volume_reads_like_its_model() {
    let mut world = World::new(1, 400, 3);
    let mut models = vec![HashMap::new(); 3];
    let mut rng = Rng::new(2);
    for stamp in 0..60_000 {
        let volume = if stamp % 2 == 0 { 0 } else { 1 + rng.below(2) as usize };
        let number = rng.below(60);
        world.write(volume, number, stamp);
        models[volume].insert(number, stamp);
        world.operate();
        let (volume, number) = (rng.below(3) as usize, rng.below(60));
        assert_eq!(world.read(volume, number), models[volume].get(&number).copied());
    }
    assert!(world.stashes.iter().map(Stash::len).sum::<usize>() < 40);
}

/// A public workload; the hidden volume has writes of its own if `hidden`, which are enqueued and no more (HIVE-B).
fn play(seed: u64, write: impl Fn(u64) -> u64, hidden: bool) -> Vec<Shown> {
    let mut world = World::new(seed, 200, 2);
    let mut rng = Rng::new(!seed);
    let turn = |n: u64| {
        world.write(0, write(n), n);
        if hidden && n.is_multiple_of(3) {
            world.write(1, rng.below(40), n);
        }
        world.operate()
    };
    (0..3000).map(turn).collect()
}

#[test]
fn whatever_is_written_the_same_cells_change() {
    let cells =
        |shown: Vec<Shown>| -> Vec<u64> { shown.into_iter().flatten().map(|(cell, _)| cell).collect() };
    for seed in 0..20 {
        let sequential = cells(play(seed, |n| n % 60, false));
        assert!(sequential == cells(play(seed, |_| 5, false)));
        assert!(sequential == cells(play(seed, |n| n * 7919 % 60, true)));
    }
}

#[test]
fn the_lower_volume_does_not_see_the_higher_one() {
    for seed in 0..50 {
        let write = |n: u64| n * 7919 % 60;
        assert!(play(seed, write, false) == play(seed, write, true), "seed {seed}");
    }
}

#[test]
fn a_leaky_disk_is_caught() {
    // It saves itself the encryption of what stays where it is: those cells do not change.
    let leaky = |shown: Vec<Shown>| -> Vec<u64> {
        let changed = shown.into_iter().flatten().filter(|(_, fill)| !matches!(fill, Some(Fill::Kept(..))));
        changed.map(|(cell, _)| cell).collect()
    };
    let caught =
        (0..20).filter(|seed| leaky(play(*seed, |n| n % 60, false)) != leaky(play(*seed, |_| 5, false)));
    assert_eq!(caught.count(), 20);
}

/// Operations with at least so many blocks in the stash, for each length, while every block is written at random again and
/// again and they fill half of the cells.
fn lengths(operations: u64) -> Vec<u64> {
    let (cells, blocks) = (2000, 1000);
    let mut world = World::new(7, cells, 1);
    let mut rng = Rng::new(8);
    let mut reached = vec![0; 64];
    for n in 0..operations + 10_000 {
        let number = if n < blocks { n } else { rng.below(blocks) };
        world.write(0, number, n);
        world.operate();
        if n >= 10_000 {
            let len = world.stashes[0].len();
            reached[..=len.min(63)].iter_mut().for_each(|count| *count += 1);
        }
    }
    reached
}

#[test]
fn the_stash_is_as_short_as_its_bound_says() {
    let operations =
        std::env::var("LACUNA_OPERATIONS").ok().and_then(|v| v.parse().ok()).unwrap_or(2_000_000);
    let reached = lengths(operations);
    let base = tail_base(CELLS as u32, 0.5).unwrap();
    for (len, count) in reached.iter().enumerate().take_while(|(_, count)| **count > 0) {
        let (measured, bound) = (*count as f64 / operations as f64, base.powi(len as i32));
        println!("{len}: {measured:.2e}, at most {bound:.2e}");
        // Rare lengths scatter: by three standard deviations of their number, were they independent, times a few for
        // that they come in bursts.
        let scatter = 12.0 * (bound / operations as f64).sqrt() + 12.0 / operations as f64;
        assert!(measured <= bound + scatter, "{len} blocks: {measured:e}, at most {bound:e}");
    }
    assert!(reached[20] == 0);
}
