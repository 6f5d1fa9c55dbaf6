//! Creates and opens disks with levels for tests: any format, with seeded randomness and fixed
//! keys.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Kind, Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_levels::{DiskKeys, LevelDisk, LevelFormat, Levels, OpenOptions, Randomness, level_disks};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::versions::{DiskModel, stamp_of};
use std::sync::Arc;

/// The UUID of every disk here.
pub const UUID: [u8; 16] = [6; 16];

/// The activity of the levels above the adversary's depth in a run of the game.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpperLevels {
    /// They do not exist.
    Absent,
    /// They exist and get no requests.
    Idle,
    /// They are written, read, discarded and flushed.
    Busy,
    /// They were filled before, and are busy.
    Full,
    /// They are busy, on a defective disk that makes an extra write when hidden data is queued.
    Leaky,
}

/// A new disk in memory, opened.
pub struct FreshDisk<D> {
    /// Its medium.
    pub memory: Arc<MemoryMedium>,
    /// The disk.
    pub disk: Arc<D>,
    /// Its levels, starting at 0.
    pub levels: Vec<Arc<LevelDisk>>,
}

/// Creates a disk with `levels` levels and opens it, each with its own seed.
///
/// # Panics
///
/// If it cannot be created.
pub fn fresh_disk<F: LevelFormat>(params: &F, levels: usize, [made, opened]: [u64; 2]) -> FreshDisk<F::Disk> {
    let memory = Arc::new(MemoryMedium::new(params.end()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, params, levels, made).unwrap();
    let disk = open(&medium, params, levels, opened).unwrap();
    let levels = level_disks(&disk);
    FreshDisk { memory, disk, levels }
}

/// The keys of `levels` levels, starting at 0.
pub fn master_keys(levels: usize) -> Vec<Secret<32>> {
    (0..levels as u8).map(|level| Secret::copy_from(&[level + 5; 32])).collect()
}

/// Randomness that is determined by two seeds.
pub fn seeded_randomness(public: u64, filler: u64) -> Randomness {
    Randomness { public: Arc::new(SeededRandom::new(public)), filler: Arc::new(SeededRandom::new(filler)) }
}

/// Options that make everything a function of the seeds and the calls.
pub fn options(public_seed: u64, filler_seed: u64) -> OpenOptions {
    OpenOptions::foreground(Budget::bytes(16 << 20), seeded_randomness(public_seed, filler_seed))
}

/// Creates a disk with `levels` levels.
pub fn create<F: LevelFormat>(medium: &Arc<dyn Medium>, params: &F, levels: usize, seed: u64) -> Result<()> {
    create_with(medium, params, levels, seeded_randomness(seed, seed + (1 << 40)))
}

/// Like [`create`], with other randomness.
pub fn create_with<F: LevelFormat>(
    medium: &Arc<dyn Medium>,
    params: &F,
    levels: usize,
    random: Randomness,
) -> Result<()> {
    params.create(medium, DiskKeys { keys: &master_keys(levels), uuid: &UUID }, random)
}

/// Opens `levels` levels of a disk.
pub fn open<F: LevelFormat>(
    medium: &Arc<dyn Medium>,
    params: &F,
    levels: usize,
    seed: u64,
) -> Result<Arc<F::Disk>> {
    open_with(medium, params, levels, options(seed, seed + (1 << 40)))
}

/// Like [`open`], with other options.
pub fn open_with<F: LevelFormat>(
    medium: &Arc<dyn Medium>,
    params: &F,
    levels: usize,
    options: OpenOptions,
) -> Result<Arc<F::Disk>> {
    let keys = master_keys(levels);
    params.open(Arc::clone(medium), DiskKeys { keys: &keys, uuid: &UUID }, options).map(Arc::new)
}

/// A model for every open level of a new disk.
pub fn models<D: Levels>(disk: &D) -> Vec<DiskModel> {
    let model = |level: usize| DiskModel::new(format!("level {level}"), disk.blocks(level as u8));
    (0..disk.open_levels()).map(model).collect()
}

/// Flushes a hidden level, with a beat of the paced clock before each try.
///
/// # Panics
///
/// If `beats` tries are not enough.
pub fn flush_hidden<D: Levels>(disk: &D, level: &LevelDisk, beats: u64) -> Result<()> {
    for _ in 0..beats {
        disk.refresh()?;
        match level.flush() {
            Err(e) if e.kind() == Kind::NoCover => {}
            done => return done,
        }
    }
    panic!("{beats} beats of cover did not flush the hidden level");
}

/// One of the counters of a level.
///
/// # Panics
///
/// If there is none of this name.
pub fn counter(level: &LevelDisk, name: &str) -> u64 {
    level.status().items.iter().find(|item| item.name == name).expect("a counter of this name").value
}

/// Checks all blocks of a level: `contents` lists the written blocks with their stamps, and the
/// remaining ones are zeros.
///
/// # Panics
///
/// If a block differs.
pub fn assert_contents(level: &LevelDisk, contents: &[(u64, u64)]) {
    for block in 0..level.blocks() {
        let mut data = vec![0; BLOCK_SIZE];
        level.read(BlockAddr(block), &mut data).unwrap();
        let expected = contents.iter().find(|(at, _)| *at == block).map_or(0, |(_, stamp)| *stamp);
        assert_eq!(stamp_of(block, &data), Some(expected), "level {}, block {block}", level.level());
    }
}
