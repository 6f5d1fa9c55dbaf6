//! Disks opened in this process on any medium, without threads and with seeded randomness: the
//! calls alone determine the calls to the medium, so that these can be counted, or charged by a
//! model, with the same result every time.

use lacuna_contracts::{Budget, Disk, Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_levels::{DiskKeys, LevelFormat, Levels, OpenOptions, Randomness, level_disks};
use lacuna_medium::Medium;
use lacuna_sealed::{CachedSlots, SealedDisk};
use std::sync::Arc;

const UUID: [u8; 16] = [6; 16];

fn master(level: u8) -> Secret<32> {
    Secret::copy_from(&[level + 5; 32])
}

fn random(seed: u64) -> Arc<SeededRandom> {
    Arc::new(SeededRandom::new(seed))
}

/// Creates a disk and returns its first `levels` levels, level 0 first.
pub fn levels(
    medium: &Arc<dyn Medium>,
    params: &impl LevelFormat,
    levels: u8,
    budget: Budget,
) -> Result<Vec<Arc<dyn Disk>>> {
    Ok(levels_of(&open_new(medium, params, levels, budget)?))
}

/// The open levels of a disk, level 0 first.
pub fn levels_of<D: Levels + 'static>(disk: &Arc<D>) -> Vec<Arc<dyn Disk>> {
    level_disks(disk).into_iter().map(|level| level as Arc<dyn Disk>).collect()
}

/// Creates a disk and opens `levels` levels.
pub fn open_new<F: LevelFormat>(
    medium: &Arc<dyn Medium>,
    params: &F,
    levels: u8,
    budget: Budget,
) -> Result<Arc<F::Disk>> {
    let keys: Vec<Secret<32>> = (0..levels).map(master).collect();
    let masters = DiskKeys { keys: &keys, uuid: &UUID };
    params.create(medium, masters, Randomness { public: random(1), filler: random(2) })?;
    let options = OpenOptions::foreground(budget, Randomness { public: random(3), filler: random(4) });
    params.open(Arc::clone(medium), masters, options).map(Arc::new)
}

/// Creates and opens a disk of format `sealed`.
pub fn sealed(
    medium: &Arc<dyn Medium>,
    params: &lacuna_sealed::Params,
    budget: Budget,
) -> Result<Arc<dyn Disk>> {
    SealedDisk::create(&**medium, params, &master(0))?;
    let options = lacuna_sealed::OpenOptions {
        budget,
        read_only: false,
        write_through: false,
        background: false,
        random: random(3),
        kept: None,
        cached: CachedSlots::Dropped,
    };
    Ok(Arc::new(SealedDisk::open(Arc::clone(medium), params, &master(0), &UUID, options)?))
}

/// The value of `name` in the status of a disk; 0 if it is absent.
pub fn status(disk: &dyn Disk, name: &str) -> u64 {
    disk.status().items.iter().find(|item| item.name == name).map_or(0, |item| item.value)
}
