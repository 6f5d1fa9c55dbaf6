//! The backing of a disk, held by this process or only examined.

use crate::backing::flash_header::HeaderMedium;
use crate::backing::rados::PoolConnection;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::Location;
use lacuna_medium::Medium;
use lacuna_nand::Flash;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The kinds of backings of disks and vaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackingKind {
    /// A file or block device, with the header at its beginning and end.
    File,
    /// A directory, with the header in a file of its own.
    Directory,
    /// Flash, with the header in erase blocks of its own.
    Flash,
    /// A pool of Ceph RADOS, with the header in objects of its own.
    Pool,
}

impl BackingKind {
    /// Whether a location of this form can lead to it. A path can lead to a file or a directory:
    /// the location does not distinguish them.
    pub fn can_be_at(self, location: &Location) -> bool {
        match location {
            Location::Path(_) => matches!(self, BackingKind::File | BackingKind::Directory),
            Location::Nand(_) | Location::Ubi(_) => self == BackingKind::Flash,
            Location::Rados { .. } => self == BackingKind::Pool,
        }
    }

    /// The place of such a disk, in words that follow those for the disk.
    pub(crate) fn place_phrase(self) -> &'static str {
        match self {
            BackingKind::File => "in a file or on a block device",
            BackingKind::Directory => "in a directory",
            BackingKind::Flash => "on flash",
            BackingKind::Pool => "in a pool",
        }
    }

    /// An example of a location of this kind, in words.
    pub(crate) fn example_location(self) -> &'static str {
        match self {
            BackingKind::File => "the path of a file or block device",
            BackingKind::Directory => "the path of a directory",
            BackingKind::Flash => {
                "flash that can be erased: ubi:/dev/ubi0_0, or a simulated chip, nand:chip.img"
            }
            BackingKind::Pool => "a name in a pool: rados:POOL/NAME",
        }
    }
}

/// The backing of a disk.
#[derive(Clone)]
pub enum Backing {
    /// A file or block device.
    File(Arc<dyn Medium>),
    /// Flash.
    Flash(Arc<dyn Flash>),
    /// Objects of a pool.
    Pool(Arc<PoolConnection>),
}

impl Backing {
    /// The file or block device. Errors: [`Kind::Usage`] for another backing.
    pub fn medium(&self) -> Result<&Arc<dyn Medium>> {
        let Backing::File(medium) = self else { return Err(wrong_backing("a file or block device")) };
        Ok(medium)
    }

    /// The flash. Errors: [`Kind::Usage`] for another backing.
    pub fn flash(&self) -> Result<&Arc<dyn Flash>> {
        let Backing::Flash(flash) = self else { return Err(wrong_backing("flash")) };
        Ok(flash)
    }

    /// The connection to the pool. Errors: [`Kind::Usage`] for another backing.
    pub fn pool(&self) -> Result<&Arc<PoolConnection>> {
        let Backing::Pool(connection) = self else { return Err(wrong_backing("a pool")) };
        Ok(connection)
    }

    /// The medium of the header.
    pub(crate) fn header(&self) -> Result<Arc<dyn Medium>> {
        match self {
            Backing::File(medium) => Ok(Arc::clone(medium)),
            Backing::Flash(flash) => Ok(Arc::new(HeaderMedium::new(Arc::clone(flash)))),
            Backing::Pool(connection) => connection.header(),
        }
    }

    /// Whether it is a snapshot, and so immutable.
    pub(crate) fn is_snapshot(&self) -> bool {
        matches!(self, Backing::Pool(connection) if connection.location().snapshot().is_some())
    }
}

/// The error of a format for a backing that none of its disks has.
fn wrong_backing(expected: &str) -> Error {
    Error::new(Kind::Usage, "cannot use the backing of the disk")
        .found("another kind of backing than that of the format")
        .expected(expected)
}

/// A disk that is examined without being held.
pub(crate) struct ProbedDisk {
    /// Read-only.
    pub(crate) backing: Backing,
    /// Allocated bytes of a file on its file system.
    pub(crate) used: Option<u64>,
    /// Whether another process holds the disk. Unknown for a disk in a pool.
    pub(crate) in_use: bool,
}

/// A disk that is held, before its header is opened.
pub(crate) struct HeldDisk {
    /// The medium of the header.
    pub(crate) header: Arc<dyn Medium>,
    /// `None` for a disk that another process has open; that process reads and writes the header
    /// for this one.
    pub(crate) backing: Option<Backing>,
    /// The file or device that is held.
    pub(crate) file: Option<OwnedFd>,
    /// Whether `file` is a block device.
    pub(crate) on_device: bool,
    /// Whether reads change the access time.
    pub(crate) updates_atime: bool,
}

impl HeldDisk {
    /// The header of a disk that another process has open.
    pub(crate) fn of_leased_header(header: Arc<dyn Medium>) -> HeldDisk {
        HeldDisk { header, backing: None, file: None, on_device: false, updates_atime: false }
    }

    /// A disk on flash; `file` is the held file or device.
    pub(crate) fn on_flash(flash: Arc<dyn Flash>, file: OwnedFd) -> HeldDisk {
        let header = Arc::new(HeaderMedium::new(Arc::clone(&flash)));
        let backing = Some(Backing::Flash(flash));
        HeldDisk { header, backing, file: Some(file), on_device: false, updates_atime: false }
    }

    /// The connection of a disk in a pool.
    pub(crate) fn connection(&self) -> Option<&Arc<PoolConnection>> {
        match &self.backing {
            Some(Backing::Pool(connection)) => Some(connection),
            _ => None,
        }
    }
}
