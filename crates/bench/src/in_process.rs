//! Disks opened in this process on any medium, without threads and with seeded randomness: what they ask of the medium
//! follows from the calls alone, so that it can be counted, or charged by a model, and comes out the same every time.

use lacuna_core::{Budget, Disk, Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_deniable::{Deniable, OpenOptions};
use lacuna_medium::Medium;
use lacuna_oblivious::Oblivious;
use lacuna_sealed::Sealed;
use std::sync::Arc;
use std::time::Duration;

const UUID: [u8; 16] = [6; 16];

fn master(level: u8) -> Secret<32> {
    Secret::copy_from(&[level + 5; 32])
}

fn random(seed: u64) -> Arc<SeededRandom> {
    Arc::new(SeededRandom::new(seed))
}

fn options(budget: Budget) -> OpenOptions {
    OpenOptions {
        budget,
        read_only: false,
        background: false,
        cover_timeout: Duration::ZERO,
        public_random: random(3),
        filler: random(4),
    }
}

/// A new disk of format `oblivious` with so many levels open, level 0 first.
pub(crate) fn oblivious(
    medium: &Arc<dyn Medium>,
    params: &lacuna_oblivious::Params,
    levels: u8,
    budget: Budget,
) -> Result<Vec<Arc<dyn Disk>>> {
    let masters: Vec<Secret<32>> = (0..levels).map(master).collect();
    Oblivious::create(medium, params, &masters, &UUID, random(1), random(2))?;
    let disk = Arc::new(Oblivious::open(Arc::clone(medium), params, &masters, &UUID, options(budget))?);
    Ok(disk.levels().into_iter().map(|level| level as Arc<dyn Disk>).collect())
}

/// The levels of a new disk of format `deniable`, so many of them open, level 0 first.
pub(crate) fn deniable(
    medium: &Arc<dyn Medium>,
    params: &lacuna_deniable::Params,
    levels: u8,
    budget: Budget,
) -> Result<Vec<Arc<dyn Disk>>> {
    Ok(levels_of(&deniable_disk(medium, params, levels, budget)?))
}

/// The open levels of a disk, level 0 first.
pub(crate) fn levels_of(disk: &Arc<Deniable>) -> Vec<Arc<dyn Disk>> {
    disk.levels().into_iter().map(|level| level as Arc<dyn Disk>).collect()
}

/// A new disk of format `deniable` with so many levels open.
pub(crate) fn deniable_disk(
    medium: &Arc<dyn Medium>,
    params: &lacuna_deniable::Params,
    levels: u8,
    budget: Budget,
) -> Result<Arc<Deniable>> {
    let masters: Vec<Secret<32>> = (0..levels).map(master).collect();
    Deniable::create(medium, params, &masters, &UUID, random(1), random(2))?;
    Ok(Arc::new(Deniable::open(Arc::clone(medium), params, &masters, &UUID, options(budget))?))
}

/// A new disk of format `sealed`.
pub(crate) fn sealed(
    medium: &Arc<dyn Medium>,
    params: &lacuna_sealed::Params,
    budget: Budget,
) -> Result<Arc<dyn Disk>> {
    Sealed::create(&**medium, params, &master(0))?;
    let options = lacuna_sealed::OpenOptions {
        budget,
        read_only: false,
        write_through: false,
        background: false,
        random: random(3),
    };
    Ok(Arc::new(Sealed::open(Arc::clone(medium), params, &master(0), &UUID, options)?))
}

/// What the status of a disk says of `name`; 0 if it says nothing.
pub(crate) fn status(disk: &dyn Disk, name: &str) -> u64 {
    disk.status().items.iter().find(|item| item.name == name).map_or(0, |item| item.value)
}
