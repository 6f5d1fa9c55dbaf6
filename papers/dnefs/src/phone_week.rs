//! One week of the simulated phone on the real engine. A new chip is used until garbage collection
//! begins, as in the paper; the counted week starts at the end of that day. Time is virtual: the
//! simulation purges at the end of each period.

use crate::phone_chip::{ChipOps, CountingChip, CountingFlash};
use crate::phone_files::PhoneFiles;
use crate::phone_use::{HOUR, PhoneUse};
use lacuna_contracts::{Budget, ManualClock, Result, Secret};
use lacuna_crypto::{RandomSource, SeededRandom};
use lacuna_flash::{FlashDisk, OpenOptions, Params, header_lebs};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_nand::{ChipGeometry, Flash, Mapping, SimulatedChip, WearModel};
use std::sync::Arc;

/// Erase blocks of the data partition of the paper's phone (Table 2).
pub(crate) const BLOCKS: u32 = 1571;
/// Percentage of the blocks of the disk that are in use. It makes the wear inequality without
/// secure deletion equal to the paper's.
pub(crate) const FULL: u64 = 25;
/// The same percentage for a phone with little free space, for comparison.
pub(crate) const FULLER: u64 = 70;
/// Bytes of a page, and pages of an erase block.
pub(crate) const PAGE: u32 = 2048;
pub(crate) const PAGES: u32 = 64;
/// Bytes of a key, as in the paper.
pub(crate) const KEY_LEN: u8 = 16;
/// Spare nodes of a full disk, in thousandths of the nodes that the log has room for.
const SPARE: u32 = 70;
/// Memory for all caches while the phone is in use, a small part of the memory of a phone.
pub(crate) const BUDGET: u64 = 8 << 20;
const MASTER: [u8; 32] = [3; 32];

/// A chip of the phone's geometry with a disk on it.
pub(crate) struct PhoneDevice {
    medium: Arc<dyn Medium>,
    key_len: u8,
    pub chip: Arc<CountingChip>,
    pub flash: Arc<CountingFlash>,
    pub params: Params,
    seed: u64,
}

impl PhoneDevice {
    /// A new device with `blocks` erase blocks and keys of `key_len` bytes; 0 means no keys. The
    /// length of the disk does not depend on `key_len`.
    pub(crate) fn new(blocks: u32, key_len: u8, seed: u64) -> Result<PhoneDevice> {
        let geometry = ChipGeometry { page: PAGE, pages: PAGES, blocks };
        let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(geometry)));
        SimulatedChip::create(&*medium, geometry, WearModel::default(), seed)?;
        Mapping::create(&SimulatedChip::open(medium.clone(), seed)?, seed)?;
        let device = PhoneDevice::attach(medium, key_len, seed)?;
        let flash: Arc<dyn Flash> = device.flash.clone();
        let random: Arc<dyn RandomSource> = Arc::new(SeededRandom::new(seed));
        FlashDisk::create(&flash, &device.params, &Secret::copy_from(&MASTER), &random)?;
        Ok(device)
    }

    /// The same device after a power cycle: all state is read from the chip.
    pub(crate) fn reattach(&self) -> Result<PhoneDevice> {
        PhoneDevice::attach(self.medium.clone(), self.key_len, self.seed + 1)
    }

    fn attach(medium: Arc<dyn Medium>, key_len: u8, seed: u64) -> Result<PhoneDevice> {
        let chip = Arc::new(CountingChip::new(SimulatedChip::open(medium.clone(), seed)?));
        let mapping = Mapping::open(chip.clone())?;
        let with_keys = Params::fitting(mapping.geometry(), KEY_LEN, SPARE)?;
        let params = Params { key_len, ..with_keys };
        let first = header_lebs(params.flash);
        let keys = first..first + params.key_blocks();
        let flash = Arc::new(CountingFlash::new(mapping, chip.clone(), keys));
        Ok(PhoneDevice { medium, key_len, chip, flash, params, seed })
    }

    /// Opens the disk. Only the caller purges it.
    pub(crate) fn open(&self, budget: u64) -> Result<Arc<FlashDisk>> {
        let options = OpenOptions {
            budget: Budget::bytes(budget),
            read_only: false,
            policy: None,
            clock: Arc::new(ManualClock::default()),
            random: Arc::new(SeededRandom::new(self.seed + 1000)),
            kept: None,
        };
        FlashDisk::open(self.flash.clone(), &self.params, &Secret::copy_from(&MASTER), &options).map(Arc::new)
    }

    /// A number in the status of the disk.
    pub(crate) fn status(disk: &FlashDisk, name: &str) -> u64 {
        lacuna_bench::modelled::in_process::status(disk, name)
    }
}

/// Whether blocks have keys of their own, and when the disk is purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purging {
    /// One key for the whole disk; nothing is securely deleted. It corresponds to the paper's
    /// standard UBIFS.
    KeysOff,
    /// A key for each block; key blocks are replaced only when unused keys run out.
    Never,
    /// A purge at this interval in minutes.
    Every(u64),
}

/// A simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeekCase {
    /// Erase blocks of the chip.
    pub blocks: u32,
    /// Percentage of the blocks of the disk that are in use.
    pub full: u64,
    /// Counted hours.
    pub hours: u64,
    pub purging: Purging,
    pub seed: u64,
}

/// Work of one purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PurgeWork {
    pub key_blocks: u64,
    pub keys: u64,
    /// All operations on the chip, including erasures that were due before the purge.
    pub ops: ChipOps,
}

/// The results of a week.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Week {
    pub hours: u64,
    /// Erasures of each erase block in the week.
    pub erasures: Vec<u64>,
    pub purges: Vec<PurgeWork>,
    /// Key blocks that were replaced by purges or because unused keys ran out.
    pub key_updates: u64,
    pub checkpoint_updates: u64,
    pub moved: u64,
    /// Blocks that the file system wrote.
    pub written: u64,
    /// Nodes that garbage collection copied.
    pub copied: u64,
    pub ops: ChipOps,
    /// The maximum of the deleted blocks that were recoverable at the end of a minute.
    pub max_recoverable: u64,
}

impl Week {
    pub(crate) fn erasures_per_hour(&self) -> f64 {
        self.erasures.iter().sum::<u64>() as f64 / self.hours as f64
    }
}

/// The counters of a device since its creation.
struct DeviceCounters {
    erasures: Vec<u64>,
    key_updates: u64,
    checkpoint_updates: u64,
    moved: u64,
    written: u64,
    copied: u64,
    ops: ChipOps,
}

impl DeviceCounters {
    fn of(device: &PhoneDevice, disk: &FlashDisk, files: &PhoneFiles) -> DeviceCounters {
        DeviceCounters {
            erasures: device.chip.erasures(),
            key_updates: device.flash.key_updates(),
            checkpoint_updates: device.flash.checkpoint_updates(),
            moved: device.flash.moved_blocks(),
            written: files.writes(),
            copied: PhoneDevice::status(disk, "nodes_copied"),
            ops: device.chip.ops(),
        }
    }
}

/// Simulates a case. At the end every block is read and compared.
pub(crate) fn simulate(case: WeekCase) -> Result<Week> {
    let key_len = if case.purging == Purging::KeysOff { 0 } else { KEY_LEN };
    let device = PhoneDevice::new(case.blocks, key_len, case.seed)?;
    let disk = device.open(BUDGET)?;
    let mut files = PhoneFiles::new(disk.clone());
    let mut life = PhoneUse::new(case.seed, case.full, &mut files)?;
    while PhoneDevice::status(&disk, "erase_blocks_collected") == 0 || !life.now().is_multiple_of(24 * HOUR) {
        minute(&mut life, &mut files)?;
        purge(case, &device, &disk, life.now())?;
    }
    let before = DeviceCounters::of(&device, &disk, &files);
    let end = life.now() + case.hours * HOUR;
    let (mut purges, mut most_recoverable) = (vec![], 0);
    while life.now() < end {
        minute(&mut life, &mut files)?;
        most_recoverable = most_recoverable.max(disk.recoverable());
        purges.extend(purge(case, &device, &disk, life.now())?);
    }
    let after = DeviceCounters::of(&device, &disk, &files);
    files.write_back()?;
    files.verify()?;
    let erasures = after.erasures.iter().zip(&before.erasures).map(|(after, before)| after - before);
    Ok(Week {
        hours: case.hours,
        erasures: erasures.collect(),
        purges,
        key_updates: after.key_updates - before.key_updates,
        checkpoint_updates: after.checkpoint_updates - before.checkpoint_updates,
        moved: after.moved - before.moved,
        written: after.written - before.written,
        copied: after.copied - before.copied,
        ops: after.ops - before.ops,
        max_recoverable: most_recoverable,
    })
}

fn minute(life: &mut PhoneUse, files: &mut PhoneFiles) -> Result<()> {
    (0..60).try_for_each(|_| life.run_second(files))
}

/// Purges if the period is over and a deleted block is recoverable.
fn purge(case: WeekCase, device: &PhoneDevice, disk: &FlashDisk, now: u64) -> Result<Option<PurgeWork>> {
    let due = matches!(case.purging, Purging::Every(minutes) if now.is_multiple_of(minutes * 60));
    if !due || disk.recoverable() == 0 {
        return Ok(None);
    }
    let before = device.chip.ops();
    let purged = disk.purge()?;
    let asked = device.chip.ops() - before;
    Ok(Some(PurgeWork { key_blocks: purged.key_blocks, keys: purged.keys, ops: asked }))
}
