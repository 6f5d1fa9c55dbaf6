//! A disk of cells in memory: draws and placement as on the medium, without ciphers, pages of maps and power cuts. Tests and
//! benchmarks run it for millions of operations to see how much waits; no disk is made of it.

use crate::draw::draw_cells;
use crate::placement::Placement;
use crate::stash::Stash;
use lacuna_crypto::SeededRandom;

/// What a cell holds: of which level, the number of the block, and its content.
type Held = (u8, u64, u64);

/// Levels that share cells, with a stash each.
pub struct World {
    random: SeededRandom,
    /// The paper's *k*.
    per_write: usize,
    cells: Vec<Option<Held>>,
    /// The cell of every block of every level.
    maps: Vec<Vec<Option<u64>>>,
    stashes: Vec<Stash<u64>>,
}

impl World {
    /// An empty world of `cells` cells. `levels` are the blocks of each level, from level 0 up.
    pub fn new(seed: u64, cells: usize, per_write: usize, levels: &[usize]) -> World {
        World {
            random: SeededRandom::new(seed),
            per_write,
            cells: vec![None; cells],
            maps: levels.iter().map(|blocks| vec![None; *blocks]).collect(),
            stashes: levels.iter().map(|_| Stash::default()).collect(),
        }
    }

    /// A world at full load: its levels, each as long as the others, have written all their blocks, which fill half of the
    /// cells.
    pub fn full(seed: u64, cells: usize, per_write: usize, levels: usize) -> World {
        let blocks = cells / 2 / levels;
        let mut world = World::new(seed, cells, per_write, &vec![blocks; levels]);
        for number in 0..blocks as u64 {
            for level in 0..levels as u8 {
                world.write(level, number, 0);
                world.operate(1);
            }
        }
        while world.waiting() > 0 {
            world.operate(1);
        }
        world
    }

    /// Puts a block into the stash of its level.
    pub fn write(&mut self, level: u8, number: u64, data: u64) {
        self.stashes[usize::from(level)].put(number, data);
    }

    /// The latest version of a block.
    pub fn read(&self, level: u8, number: u64) -> Option<u64> {
        let at = usize::from(level);
        if let Some(data) = self.stashes[at].get(number) {
            return Some(*data);
        }
        let cell = self.maps[at][number as usize]?;
        let (of, block, data) = self.cells[cell as usize].expect("a map never points at random bytes");
        assert_eq!((of, block), (level, number), "a cell holds what its map says");
        Some(data)
    }

    /// Blocks of all levels that wait for a cell.
    pub fn waiting(&self) -> usize {
        self.stashes.iter().map(Stash::len).sum()
    }

    /// Does so many operations at once, as a batch does them: rewrites distinct cells, *k* for each operation.
    pub fn operate(&mut self, operations: usize) {
        let drawn = draw_cells(&self.random, self.cells.len() as u64, operations * self.per_write);
        let old: Vec<Option<Held>> = drawn.iter().map(|cell| self.cells[*cell as usize]).collect();
        let mut placement = Placement::new(drawn.len());
        for level in 0..self.maps.len() as u8 {
            self.keep(level, &drawn, &old, &mut placement);
            let at = usize::from(level);
            while let Some(slot) = placement.free()
                && let Some((number, data)) = self.stashes[at].pop()
            {
                self.cells[drawn[slot] as usize] = Some((level, number, data));
                self.maps[at][number as usize] = Some(drawn[slot]);
                placement.take(level, slot);
            }
        }
        placement.unowned().for_each(|slot| self.cells[drawn[slot] as usize] = None);
    }

    /// What a level has in the cells stays; what a lower one took the cell from waits, unless a newer version does.
    fn keep(&mut self, level: u8, drawn: &[u64], old: &[Option<Held>], placement: &mut Placement) {
        let at = usize::from(level);
        for (slot, (cell, held)) in drawn.iter().zip(old).enumerate() {
            let Some((of, number, data)) = *held else { continue };
            if of != level || self.maps[at][number as usize] != Some(*cell) || placement.keep(level, slot) {
                continue;
            }
            self.maps[at][number as usize] = None;
            if self.stashes[at].get(number).is_none() {
                self.stashes[at].put(number, data);
            }
        }
    }

    /// Writes random blocks of level 0, and operates after every `at_once` of them, `batches` times. Returns, for each
    /// number, after how many of those times at least so many blocks waited.
    pub fn tail(&mut self, batches: u64, at_once: usize) -> Vec<u64> {
        let blocks = self.maps[0].len() as u64;
        let mut reached = Vec::new();
        for batch in 0..batches {
            for _ in 0..at_once {
                let number = draw_cells(&self.random, blocks, 1)[0];
                self.write(0, number, batch);
            }
            self.operate(at_once);
            let waiting = self.waiting();
            reached.resize(reached.len().max(waiting + 1), 0);
            reached[..=waiting].iter_mut().for_each(|count| *count += 1);
        }
        reached
    }
}
