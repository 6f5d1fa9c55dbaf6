//! Access to flash: a simulated chip in a file, which can also be made here, or a UBI volume of
//! Linux.

use crate::backing::file::ReadOnlyProbe;
use crate::backing::held_disk::{Backing, BackingKind, HeldDisk, ProbedDisk};
use crate::inspect::damaged_medium::DamagedMedium;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_crypto::{RandomSource, SystemRandom};
use lacuna_header::Location;
use lacuna_medium::{Access, FileMedium, LinkPolicy, Medium};
use lacuna_nand::{ChipGeometry, Flash, FlashGeometry, Mapping, SimulatedChip, UbiVolume, WearModel};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The place of the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashLocation<'l> {
    /// A simulated chip in a file.
    Nand(&'l Path),
    /// A UBI volume, by its character device.
    Ubi(&'l Path),
}

impl FlashLocation<'_> {
    /// Holds the flash. Errors: [`Kind::Busy`] while another process has it, [`Kind::NotFound`] if
    /// there is none.
    pub(crate) fn hold(self, access: Access) -> Result<HeldDisk> {
        let (flash, file) = self.open(access)?;
        Ok(HeldDisk::on_flash(flash, file))
    }

    /// Holds the flash. Returns it with its file or device, opened as a path only. Errors: those of
    /// [`FlashLocation::hold`].
    pub(crate) fn open(self, access: Access) -> Result<(Arc<dyn Flash>, OwnedFd)> {
        match self {
            FlashLocation::Nand(path) => {
                let medium = FileMedium::open(path, access)?;
                medium.forget_cached()?;
                let file = medium.path_only()?;
                Ok((attach(path, Arc::new(medium))?, file))
            }
            FlashLocation::Ubi(path) => {
                let volume = UbiVolume::open(path, access == Access::Read)?;
                let file = volume.path_only()?;
                let flash: Arc<dyn Flash> = Arc::new(volume);
                Ok((flash, file))
            }
        }
    }

    /// Holds possibly truncated flash for reading. Errors: the same.
    pub(crate) fn hold_to_rescue(self) -> Result<HeldDisk> {
        match self {
            FlashLocation::Nand(path) => {
                let medium = FileMedium::open(path, Access::Read)?;
                medium.forget_cached()?;
                let (file, medium) = (medium.path_only()?, Arc::new(medium));
                // If the length is unknown, `attach` reports why.
                let whole = SimulatedChip::whole_len(&*medium)?.unwrap_or(0);
                // The engine sees flash with garbage on it, as after a power cut.
                Ok(HeldDisk::on_flash(attach(path, Arc::new(DamagedMedium::new(medium, whole, true)))?, file))
            }
            FlashLocation::Ubi(_) => self.hold(Access::Read),
        }
    }

    /// Examines the flash without holding it: a process that has it open is not disturbed.
    pub(crate) fn probe(self) -> Result<ProbedDisk> {
        match self {
            FlashLocation::Nand(path) => {
                let look = ReadOnlyProbe::open(path, LinkPolicy::Followed)?;
                let (in_use, used) = (look.in_use, look.used);
                Ok(ProbedDisk { backing: Backing::Flash(attach(path, Arc::new(look))?), used, in_use })
            }
            FlashLocation::Ubi(path) => {
                let backing = Backing::Flash(Arc::new(UbiVolume::open(path, true)?));
                // The system allows one writer at a time.
                let in_use = UbiVolume::open(path, false).is_err_and(|e| e.kind() == Kind::Busy);
                Ok(ProbedDisk { backing, used: None, in_use })
            }
        }
    }
}

/// Refuses a location that cannot have a disk with purging. Errors: [`Kind::Usage`].
pub fn check_can_purge(location: &Location) -> Result<()> {
    if BackingKind::Flash.can_be_at(location) {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, format!("cannot purge {location}"))
        .found("a place that is not flash, and no flash disk of this user mounted there")
        .expected("a location ubi: or nand:, or the mount point of such a disk")
        .hint("give the location, or be the user that opened it; only flash disks can be purged"))
}

/// The logical erase blocks of a chip in a file.
pub(crate) fn attach(path: &Path, medium: Arc<dyn Medium>) -> Result<Arc<dyn Flash>> {
    let naming = |e: Error| e.context(format!("cannot use nand:{}", path.display()));
    // Random failures differ from one opening to the next.
    let chance = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    let chip = SimulatedChip::open(medium, chance.into()).map_err(naming)?;
    Ok(Arc::new(Mapping::open(Arc::new(chip)).map_err(naming)?))
}

/// The limit of the search for the number of erase blocks of a simulated chip.
const MAX_CHIP_BLOCKS: u32 = 1 << 24;

/// The parameters of a simulated chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChipShape {
    /// Bytes of a page, a power of two from 512 to 65536.
    pub page: u32,
    /// Pages of an erase block, 4 to 4096.
    pub pages: u32,
    /// Its wear and its failures.
    pub wearing: WearModel,
}

impl Default for ChipShape {
    /// Pages of 4 KiB, 64 per erase block; no failures.
    fn default() -> ChipShape {
        ChipShape { page: 4096, pages: 64, wearing: WearModel::default() }
    }
}

/// A chip to be made.
pub struct NewChip {
    geometry: ChipGeometry,
    wearing: WearModel,
    /// Determines the blocks that are bad from the factory.
    seed: u64,
}

impl NewChip {
    /// The smallest chip of this shape with enough space for a disk, according to `fits`; `None` if
    /// even the largest is too small.
    ///
    /// Errors: those of `fits`, and of a system without random bytes.
    pub fn smallest(
        shape: ChipShape,
        fits: impl Fn(FlashGeometry) -> Result<bool>,
    ) -> Result<Option<NewChip>> {
        let ChipShape { page, pages, wearing } = shape;
        let seed = random_number()?;
        let chip = |blocks: u32| NewChip { geometry: ChipGeometry { page, pages, blocks }, wearing, seed };
        let fits = |blocks: u32| fits(chip(blocks).flash());
        // Search upwards: a larger chip may fail where a smaller one fits, because not all its
        // blocks can be numbered.
        let mut most = 8;
        while !fits(most)? {
            if most >= MAX_CHIP_BLOCKS {
                return Ok(None);
            }
            most *= 2;
        }
        let mut least = (most / 2).max(8);
        while least < most {
            let middle = least + (most - least) / 2;
            if fits(middle)? { most = middle } else { least = middle + 1 }
        }
        Ok(Some(chip(most)))
    }

    /// The resulting logical erase blocks.
    pub fn flash(&self) -> FlashGeometry {
        // Counting the bad blocks of a large chip for each guess is slow, and without factory-bad
        // blocks there is nothing to count.
        let bad = match self.wearing.factory_bad {
            0 => 0,
            _ => SimulatedChip::factory_bad(self.geometry, self.wearing, self.seed),
        };
        Mapping::geometry_on(self.geometry, bad)
    }

    /// Makes the chip in a file, replacing its content, and creates the mapping.
    pub(crate) fn make(&self, medium: &Arc<FileMedium>) -> Result<()> {
        medium.release_allocation();
        medium.set_len(0)?;
        medium.set_len(SimulatedChip::medium_len(self.geometry))?;
        SimulatedChip::create(&**medium, self.geometry, self.wearing, self.seed)?;
        Mapping::create(&SimulatedChip::open(medium.clone(), self.seed)?, random_number()?)
    }
}

fn random_number() -> Result<u64> {
    let mut bytes = [0; 8];
    SystemRandom::new()?.fill(&mut bytes);
    Ok(u64::from_le_bytes(bytes))
}
