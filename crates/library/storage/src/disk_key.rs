//! Opens an unlocked disk: the second step, in the process that survives a fork.

use crate::backing::Backing;
use crate::backing::rados::Reconnect;
use crate::claim::Claim;
use crate::format::{OpenWith, Params};
use crate::held_header::HeldHeader;
use crate::open_disk::{OpenDisk, guarded};
use crate::opening::{Opening, no_write_through};
use lacuna_contracts::{Error, Kind, Result, Secret};
use lacuna_header::{DiskId, FormatId, Location, Uuid};
use lacuna_levels::Masters;
use std::sync::Arc;

/// An unlocked disk, ready to be opened. May cross a fork, together with the lock on a file.
pub struct Key {
    pub(crate) reach: Reach,
    pub(crate) parameters: Box<dyn Params>,
    pub(crate) claim: Option<Arc<Claim>>,
    /// The keys of the opened levels, from 0 up; formats without levels have one.
    pub(crate) masters: Vec<Secret<32>>,
    pub(crate) id: DiskId,
    pub(crate) uuid: Uuid,
    /// Whether the disk is on a block device.
    pub(crate) on_device: bool,
    /// Open a damaged disk, for reading.
    pub(crate) rescue: bool,
    /// For error messages.
    pub(crate) location: Location,
}

/// Access to the disk.
pub(crate) enum Reach {
    /// It is held.
    Held(Backing),
    /// A fork will follow, which no connection survives.
    Anew(Box<Reconnect>),
}

impl Key {
    /// Whether the format has levels, regardless of the number of open ones.
    pub fn has_levels(&self) -> bool {
        self.parameters.has_levels()
    }

    /// The format of the disk.
    pub fn format(&self) -> FormatId {
        self.parameters.format().info().id
    }

    /// Whether the disk uses large blocks of memory while it is open: a disk with levels, for its
    /// stripes and batches, and one in RADOS, where the client library copies all written data.
    pub fn keeps_large_memory(&self) -> bool {
        self.parameters.format().info().large_memory
    }

    /// The number of levels to open; 1 for a format without levels.
    pub fn levels(&self) -> usize {
        self.masters.len()
    }

    /// The identity that lets the owner recognise the disk.
    pub fn id(&self) -> DiskId {
        self.id
    }

    /// Opens the disk, after finishing operations that a crash interrupted.
    ///
    /// Errors: [`Kind::Corrupt`], also for another disk than the expected one, before anything is
    /// written; and all errors of the medium.
    pub fn open(self, opening: Opening) -> Result<OpenDisk> {
        let Key { reach, parameters, claim, masters, id, uuid, on_device, rescue, location } = self;
        id.check(opening.expect).map_err(|e| e.context(&location))?;
        claim.iter().for_each(|claim| claim.renew());
        // Memory locks do not survive a fork: this copy is locked in the surviving process.
        let masters: Vec<Secret<32>> = masters.clone();
        if masters.is_empty() {
            return Err(Error::new(Kind::Other, "the header gave no key"));
        }
        if opening.write_through && parameters.has_levels() {
            return Err(no_write_through());
        }
        let backing = match reach {
            Reach::Held(backing) => backing,
            Reach::Anew(disk) => Backing::Pool(disk.connect()?),
        };
        let read_only = opening.read_only || rescue || backing.is_snapshot();
        let header = HeldHeader::new(backing.header()?, read_only, on_device);
        if let (Backing::File(medium), false) = (&backing, rescue) {
            parameters.check_length(medium.len(), &location)?;
        }
        let keys = Masters { keys: &masters, uuid: &uuid.0 };
        let with = OpenWith { keys, opening: Opening { read_only, ..opening }, rescue };
        let info = parameters.format().info();
        let opened = parameters.open(&backing, &with);
        let format = opened.map_err(|e| guarded(e, info.has_levels()).context(&location))?;
        if info.has_levels() == format.levels().is_empty() {
            return Err(wrong_levels(info.has_levels()).context(&location));
        }
        Ok(OpenDisk { uuid, id, info, format, header, claim })
    }
}

/// The error for a format with an open disk that contradicts the format number about levels.
fn wrong_levels(expected: bool) -> Error {
    let (with, without) = ("a disk with levels", "a disk without levels");
    let (found, expected) = if expected { (without, with) } else { (with, without) };
    Error::new(Kind::Usage, "cannot use the format of the disk")
        .found(found)
        .expected(format!("{expected}, as the number of the format says"))
        .remedy("the program that brings the format along needs to be mended")
}
