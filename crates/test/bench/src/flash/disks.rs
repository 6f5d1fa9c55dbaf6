//! Disks of format `flash` on a simulated NAND chip in the memory of this process: with a key for
//! each block, or without keys as the baseline.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, ManualClock, Result, Secret};
use lacuna_crypto::{RandomSource, SeededRandom};
use lacuna_flash::{FlashDisk, OpenOptions, Params};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_nand::{ChipGeometry, Flash, Mapping, SimulatedChip, WearModel};
use lacuna_sim::Rng;
use std::sync::Arc;

/// Spare nodes of a full disk, in thousandths of the nodes that the log has room for: the default
/// of `create`.
pub(crate) const SPARE: u32 = 70;

/// The keys of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyMode {
    /// A key of 32 bytes for each block.
    Long,
    /// A key of 16 bytes for each block.
    Short,
    /// One key for the disk: no key storage area, no key state map, no purge.
    Off,
}

impl KeyMode {
    /// The name for display.
    pub(crate) fn name(self) -> &'static str {
        match self {
            KeyMode::Long => "256-bit keys",
            KeyMode::Short => "128-bit keys",
            KeyMode::Off => "keys off",
        }
    }

    /// Bytes of a key.
    pub(crate) fn bytes(self) -> u8 {
        match self {
            KeyMode::Long => 32,
            KeyMode::Short => 16,
            KeyMode::Off => 0,
        }
    }
}

/// The key of every disk.
pub(crate) fn master() -> Secret<32> {
    Secret::copy_from(&[6; 32])
}

/// The options for opening every disk: it is only purged by calls.
pub(crate) fn options(budget: Budget, seed: u64) -> OpenOptions {
    let (clock, random) = (Arc::new(ManualClock::default()), Arc::new(SeededRandom::new(seed)));
    OpenOptions { budget, read_only: false, policy: None, clock, random, kept: None }
}

/// Logical erase blocks on a new chip, in a medium of zeros.
pub(crate) fn new_flash(medium: Arc<dyn Medium>, chip: ChipGeometry) -> Result<Arc<dyn Flash>> {
    SimulatedChip::create(&*medium, chip, WearModel::default(), 1)?;
    let chip = Arc::new(SimulatedChip::open(medium, 1)?);
    Mapping::create(&*chip, 1)?;
    Ok(Arc::new(Mapping::open(chip)?))
}

/// Creates a disk on this flash. Returns it with its parameters.
pub(crate) fn new_disk(flash: &Arc<dyn Flash>, keys: KeyMode, budget: Budget) -> Result<(FlashDisk, Params)> {
    let params = Params::fitting(flash.geometry(), keys.bytes(), SPARE)?;
    let random: Arc<dyn RandomSource> = Arc::new(SeededRandom::new(2));
    FlashDisk::create(flash, &params, &master(), &random)?;
    Ok((FlashDisk::open(flash.clone(), &params, &master(), &options(budget, 3))?, params))
}

/// Creates a disk on a chip in memory.
pub(crate) fn in_memory(chip: ChipGeometry, keys: KeyMode, budget: Budget) -> Result<FlashDisk> {
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(chip)));
    Ok(new_disk(&new_flash(medium, chip)?, keys, budget)?.0)
}

/// Writes two blocks at random places and flushes, `flushes` times.
pub(crate) fn overwrite(disk: &FlashDisk, flushes: u64) -> Result<()> {
    let mut rng = Rng::new(8);
    for number in 0..flushes {
        for _ in 0..2 {
            disk.write(BlockAddr(rng.below(disk.blocks())), &vec![number as u8; BLOCK_SIZE])?;
        }
        disk.flush()?;
    }
    Ok(())
}

/// The value of `name` in the status of a disk; 0 if it is absent.
pub(crate) fn status(disk: &FlashDisk, name: &str) -> u64 {
    disk.status().items.iter().find(|item| item.name == name).map_or(0, |item| item.value)
}
