//! A machine that is resumed twice: two copies of an open disk, with the same medium and the same
//! generator state, write different data.

use super::disks::{FreshDisk, fresh_disk};
use lacuna_contracts::{BlockAddr, Disk};
use lacuna_levels::{LevelDisk, LevelFormat, Levels};
use lacuna_sim::versions::content;
use std::sync::Arc;

/// The number of open levels: level 0 and two hidden ones.
const LEVELS: usize = 3;

/// Runs both copies from the beginning, identically up to the point where they diverge. Then they
/// write different data to the level `diverging_level`, and the same data to level 0.
///
/// # Panics
///
/// If the disk cannot be created, or if level 0 refuses a write.
pub fn resume_twice<F: LevelFormat>(params: &F, diverging_level: usize) {
    for copy in 1..3 {
        let FreshDisk { disk, levels, .. } = fresh_disk(params, LEVELS, [1, 2]);
        run_copy(&*disk, &levels, diverging_level, 10 * copy);
    }
}

/// The run of one copy. After the divergence it writes stamps of its own.
fn run_copy<D: Levels>(disk: &D, levels: &[Arc<LevelDisk>], diverging_level: usize, own: u64) {
    (0..30).for_each(|at| write(&levels[0], at, 5));
    write(&levels[1], 3, 5);
    disk.refresh().unwrap();
    // The copies diverge here.
    for at in 0..12 {
        write(&levels[diverging_level], at, own);
        write(&levels[0], 40 + at, 7);
    }
    (0..4).for_each(|_| disk.refresh().unwrap());
    let _no_cover = disk.close();
}

fn write(level: &LevelDisk, block: u64, stamp: u64) {
    let written = level.write(BlockAddr(block), &content(block, stamp));
    // A hidden level refuses the write if its queue of pending blocks is full.
    assert!(level.level() > 0 || written.is_ok());
}
