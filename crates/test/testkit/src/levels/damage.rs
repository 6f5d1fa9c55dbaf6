//! Reads disks with levels on damaged media.

use super::disks::open;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_levels::{LevelDisk, LevelFormat, level_disks};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::versions::{DiskModel, fill, stamp_of};
use std::sync::Arc;

/// Opens two levels of a medium and reads the first blocks of both; `blocks` has their numbers.
/// Each block must have a version that `allowed` (level, block, stamp) allows, or fail with an
/// error that begins with its name: a check joins adjacent blocks by the rest. Returns the number
/// of failures, or `None` if the disk does not open.
///
/// # Panics
///
/// If a block reads as another version, or fails for a reason other than damage.
pub fn failures<F: LevelFormat>(
    params: &F,
    bytes: Vec<u8>,
    blocks: [u64; 2],
    allowed: impl Fn(usize, u64, u64) -> bool,
) -> Option<[u64; 2]> {
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(bytes));
    let disk = match open(&medium, params, 2, 77) {
        Ok(disk) => disk,
        Err(e) => {
            assert_eq!(e.kind(), Kind::Corrupt, "{e}");
            return None;
        }
    };
    let levels = level_disks(&disk);
    let failed = [0, 1].map(|number| {
        let level = &levels[number];
        let is_allowed = |block, stamp| allowed(number, block, stamp);
        let failed = (0..blocks[number]).filter(|&block| fails(level, block, is_allowed)).count();
        assert_takes_writes(level);
        failed as u64
    });
    Some(failed)
}

fn fails(level: &LevelDisk, block: u64, allowed: impl Fn(u64, u64) -> bool) -> bool {
    let mut data = vec![0; BLOCK_SIZE];
    match level.read(BlockAddr(block), &mut data) {
        Ok(()) => {
            let stamp = stamp_of(block, &data).expect("a block reads as a version that was written");
            assert!(allowed(block, stamp), "level {}, block {block} reads {stamp}", level.level());
            false
        }
        Err(e) => {
            assert_eq!(e.kind(), Kind::Corrupt, "{e}");
            let message = e.to_string();
            let rest = message.strip_prefix(&format!("block {block}"));
            assert!(rest.is_some_and(|rest| rest.starts_with([' ', ':'])), "{e} is of block {block}");
            true
        }
    }
}

/// Checks that a damaged block is readable again after a write.
fn assert_takes_writes(level: &LevelDisk) {
    let (mut data, mut back) = (vec![0; BLOCK_SIZE], vec![0; BLOCK_SIZE]);
    fill(0, 1 << 40, &mut data);
    level.write(BlockAddr(0), &data).unwrap();
    level.read(BlockAddr(0), &mut back).unwrap();
    assert!(back == data);
}

/// The number of blocks of a level that cannot be read.
///
/// # Panics
///
/// If a block does not read as its latest version, or fails for a reason other than damage.
pub fn lost_blocks(level: &LevelDisk, model: &DiskModel) -> usize {
    let mut data = vec![0; BLOCK_SIZE];
    let mut is_lost = |block: &u64| match level.read(BlockAddr(*block), &mut data) {
        Ok(()) => {
            assert_eq!(stamp_of(*block, &data), Some(model.latest(*block)), "block {block}");
            false
        }
        Err(e) => {
            assert!(matches!(e.kind(), Kind::Io | Kind::Corrupt), "{e}");
            true
        }
    };
    (0..model.blocks()).filter(|block| is_lost(block)).count()
}
