//! A region of cells in memory: draws and placement as on the medium, without ciphers, pages of
//! maps and power cuts. Tests and benchmarks run it for millions of operations to measure the
//! stash; no disk is made of it.

use crate::batch::draw::draw_cells;
use crate::cells::regions::cells_per_block;
use lacuna_crypto::SeededRandom;
use std::collections::{HashMap, VecDeque};

/// The level of a region.
pub struct StashSimulation {
    random: SeededRandom,
    /// The paper's *k*.
    per_write: usize,
    /// Neighbouring cells that are drawn together.
    group: usize,
    /// The block in each cell, and its contents.
    cells: Vec<Option<(u64, u64)>>,
    /// The cell of every block.
    map: Vec<Option<u64>>,
    /// Pending blocks, and the order of their arrival.
    pending: HashMap<u64, u64>,
    order: VecDeque<u64>,
}

impl StashSimulation {
    /// An empty world of `cells` cells, drawn in groups of `group`, for a level of `blocks` blocks.
    pub fn new(seed: u64, cells: usize, per_write: usize, group: usize, blocks: usize) -> StashSimulation {
        StashSimulation {
            random: SeededRandom::new(seed),
            per_write,
            group,
            cells: vec![None; cells],
            map: vec![None; blocks],
            pending: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// A world at full load: all blocks of the level are written, and fill the same share of the
    /// cells as on a disk.
    pub fn filled(seed: u64, cells: usize, per_write: usize, group: usize) -> StashSimulation {
        let blocks = cells / cells_per_block(per_write as u8) as usize;
        let mut world = StashSimulation::new(seed, cells, per_write, group, blocks);
        for number in 0..blocks as u64 {
            world.write(number, 0);
            world.run_operations(group);
        }
        while world.pending() > 0 {
            world.run_operations(group);
        }
        world
    }

    /// Makes a block pending.
    pub fn write(&mut self, number: u64, data: u64) {
        if self.pending.insert(number, data).is_none() {
            self.order.push_back(number);
        }
    }

    /// The latest version of a block.
    pub fn read(&self, number: u64) -> Option<u64> {
        if let Some(data) = self.pending.get(&number) {
            return Some(*data);
        }
        let cell = self.map[number as usize]?;
        let (block, data) = self.cells[cell as usize].expect("a map never points at random bytes");
        assert_eq!(block, number, "a cell holds the block of its map");
        Some(data)
    }

    /// The number of pending blocks.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Does `operations` operations at once, as a batch does them: rewrites distinct cells, *k* for
    /// each operation, in whole groups. A cell with the latest version of a block keeps it.
    pub fn run_operations(&mut self, operations: usize) {
        let group = self.group as u64;
        let groups = (operations * self.per_write).div_ceil(self.group);
        let drawn = draw_cells(&self.random, self.cells.len() as u64 / group, groups);
        let drawn: Vec<u64> =
            drawn.into_iter().flat_map(|number| number * group..(number + 1) * group).collect();
        let old: Vec<Option<(u64, u64)>> = drawn.iter().map(|cell| self.cells[*cell as usize]).collect();
        let kept = |(held, cell): (&Option<(u64, u64)>, &u64)| {
            held.is_some_and(|(number, _)| self.map[number as usize] == Some(*cell))
        };
        let kept: Vec<bool> = old.iter().zip(&drawn).map(kept).collect();
        for (cell, _) in drawn.iter().zip(kept).filter(|(_, kept)| !kept) {
            self.cells[*cell as usize] = self.order.pop_front().map(|number| {
                self.map[number as usize] = Some(*cell);
                (number, self.pending.remove(&number).expect("it waits"))
            });
        }
    }

    /// Writes blocks, and operates after every `at_once` of them, `batches` times: random blocks,
    /// or blocks in order, over and over, so that neighbours are freed together. Returns, for each
    /// number, how often at least that number of blocks was pending.
    pub fn tail(&mut self, batches: u64, at_once: usize, in_order: bool) -> Vec<u64> {
        let blocks = self.map.len() as u64;
        let mut reached = Vec::new();
        for batch in 0..batches {
            for at in 0..at_once as u64 {
                let next = (batch * at_once as u64 + at) % blocks;
                let number = if in_order { next } else { draw_cells(&self.random, blocks, 1)[0] };
                self.write(number, batch);
            }
            self.run_operations(at_once);
            let waiting = self.pending();
            reached.resize(reached.len().max(waiting + 1), 0);
            reached[..=waiting].iter_mut().for_each(|count| *count += 1);
        }
        reached
    }
}
