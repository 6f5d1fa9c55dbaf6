//! Flash as it is reached: a simulated chip in a file, or a UBI volume of Linux.

use crate::look::Look;
use crate::remains::Remains;
use lacuna_core::{Error, Kind, Result};
use lacuna_header::Location;
use lacuna_medium::{Access, FileMedium, Links, Medium};
use lacuna_nand::{Flash, FlashGeometry, Mapping, SimulatedChip, UbiVolume};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where flash is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashPlace<'l> {
    /// A simulated chip in a file.
    Nand(&'l Path),
    /// A UBI volume, by its character device.
    Ubi(&'l Path),
}

impl<'l> FlashPlace<'l> {
    /// The flash that a location leads to, if it leads to some.
    pub(crate) fn of(location: &'l Location) -> Option<Self> {
        match location {
            Location::Nand(path) => Some(FlashPlace::Nand(path)),
            Location::Ubi(path) => Some(FlashPlace::Ubi(path)),
            Location::Path(_) | Location::Rados { .. } => None,
        }
    }

    /// Takes hold of the flash. The second value is the file or device that is held, as a path alone.
    ///
    /// Errors: [`Kind::Busy`] while another process has it, [`Kind::NotFound`] if there is none.
    pub(crate) fn open(self, access: Access) -> Result<(Arc<dyn Flash>, OwnedFd)> {
        match self {
            FlashPlace::Nand(path) => {
                let medium = FileMedium::open(path, access)?;
                medium.forget_cached()?;
                let file = medium.path_only()?;
                Ok((attach(path, Arc::new(medium))?, file))
            }
            FlashPlace::Ubi(path) => {
                let volume = UbiVolume::open(path, access == Access::Read)?;
                let file = volume.path_only()?;
                Ok((Arc::new(volume), file))
            }
        }
    }

    /// Takes hold, for reading, of flash of which not all may be left.
    ///
    /// Errors: those of [`FlashPlace::open`].
    pub(crate) fn open_to_rescue(self) -> Result<(Arc<dyn Flash>, OwnedFd)> {
        match self {
            FlashPlace::Nand(path) => {
                let medium = FileMedium::open(path, Access::Read)?;
                medium.forget_cached()?;
                let (file, medium) = (medium.path_only()?, Arc::new(medium));
                // Where that cannot be told, `attach` says why.
                let whole = SimulatedChip::whole_len(&*medium)?.unwrap_or(0);
                // To the engine it is flash with rubbish on it, as a power cut leaves it.
                Ok((attach(path, Arc::new(Remains::of(medium, whole, true)))?, file))
            }
            FlashPlace::Ubi(_) => self.open(Access::Read),
        }
    }

    /// Looks at the flash without taking hold of it: a process that has it open goes on.
    pub(crate) fn look(self) -> Result<AboutFlash> {
        match self {
            FlashPlace::Nand(path) => {
                let look = Look::at(path, Links::Followed)?;
                let (in_use, used) = (look.in_use, look.used);
                let flash = attach(path, Arc::new(look))?;
                Ok(AboutFlash { flash, in_use, used })
            }
            FlashPlace::Ubi(path) => {
                let flash = Arc::new(UbiVolume::open(path, true)?);
                // The system lets one process write at a time.
                let in_use = UbiVolume::open(path, false).is_err_and(|e| e.kind() == Kind::Busy);
                Ok(AboutFlash { flash, in_use, used: None })
            }
        }
    }
}

/// Refuses a location at which no disk can be that forgets what was deleted.
///
/// Errors: [`Kind::Usage`].
pub fn check_forgets(location: &Location) -> Result<()> {
    if FlashPlace::of(location).is_some() {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, format!("cannot purge {location}"))
        .found("a place that is not flash, and no disk of this user on flash mounted there")
        .expected("a location ubi: or nand:, or the mount point of such a disk")
        .remedy("give the location, or be the user who opened it; a disk on other media cannot forget"))
}

/// Flash that is looked at.
pub(crate) struct AboutFlash {
    pub(crate) flash: Arc<dyn Flash>,
    /// Whether another process writes to it.
    pub(crate) in_use: bool,
    /// Bytes that the file of a simulated chip takes on its file system.
    pub(crate) used: Option<u64>,
}

impl AboutFlash {
    pub(crate) fn geometry(&self) -> FlashGeometry {
        self.flash.geometry()
    }
}

/// The logical erase blocks of a chip in a file.
pub(crate) fn attach(path: &Path, medium: Arc<dyn Medium>) -> Result<Arc<dyn Flash>> {
    let naming = |e: Error| e.context(format!("cannot use nand:{}", path.display()));
    // What fails by chance fails differently each time.
    let chance = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    let chip = SimulatedChip::open(medium, chance.into()).map_err(naming)?;
    Ok(Arc::new(Mapping::open(Arc::new(chip)).map_err(naming)?))
}
