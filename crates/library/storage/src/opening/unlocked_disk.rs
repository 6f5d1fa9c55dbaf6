//! Opens an unlocked disk: the second step, in the process that survives a fork.

use crate::backing::Backing;
use crate::backing::rados::ReconnectInfo;
use crate::format::{OpenContext, Params};
use crate::header::header_lease::OpenDiskHeader;
use crate::opening::claim::DiskClaim;
use crate::opening::close_marks::{CloseMark, CloseMarks};
use crate::opening::disk::{OpenDisk, mark_confidential};
use crate::opening::open_disk_options::{OpenDiskOptions, write_through_refused};
use lacuna_contracts::{Error, Kind, Result, Secret};
use lacuna_header::{DiskId, FormatId, Location, Uuid};
use lacuna_kept_memory::MemoryKeeper;
use lacuna_levels::DiskKeys;
use std::sync::Arc;

/// An unlocked disk, ready to be opened. May cross a fork, together with the lock on a file.
pub struct UnlockedDisk {
    pub(crate) access: DiskAccess,
    pub(crate) parameters: Box<dyn Params>,
    /// Open a damaged disk, for reading.
    pub(crate) rescue: bool,
    pub(crate) identity: UnlockedIdentity,
}

/// The part of an unlocked disk that needs neither its medium nor its present parameters, so that
/// all servers of a keeper have it in common.
#[derive(Clone)]
pub(crate) struct UnlockedIdentity {
    /// The keys of the opened levels, from 0 up; formats without levels have one.
    pub(crate) masters: Vec<Secret<32>>,
    pub(crate) id: DiskId,
    pub(crate) uuid: Uuid,
    /// Whether the disk is on a block device.
    pub(crate) on_device: bool,
    pub(crate) claim: Option<Arc<DiskClaim>>,
    /// Where to mark the disk when it was closed well.
    pub(crate) marks: Option<Arc<CloseMarks>>,
    /// For error messages.
    pub(crate) location: Location,
}

/// Access to the disk.
pub(crate) enum DiskAccess {
    /// It is held.
    Held(Backing),
    /// A fork will follow, which no connection survives.
    AfterFork(Box<ReconnectInfo>),
}

impl UnlockedDisk {
    /// Whether the format has levels, regardless of the number of open ones.
    pub fn has_levels(&self) -> bool {
        self.parameters.has_levels()
    }

    /// The format of the disk.
    pub fn format(&self) -> FormatId {
        self.parameters.format().info().id
    }

    /// Whether the disk keeps large blocks of memory while it is open: a disk with levels, for its
    /// stripes and batches.
    pub fn uses_large_memory(&self) -> bool {
        self.parameters.format().info().uses_large_memory
    }

    /// Whether the disk is in a pool of a cluster, where the client library allocates memory for
    /// the data of each request.
    pub fn is_in_pool(&self) -> bool {
        self.parameters.format().info().is_in_pool()
    }

    /// The number of levels to open; 1 for a format without levels.
    pub fn levels(&self) -> usize {
        self.identity.masters.len()
    }

    /// The identity that lets the owner recognise the disk.
    pub fn id(&self) -> DiskId {
        self.identity.id
    }

    /// Opens the disk, after finishing operations that a crash interrupted.
    ///
    /// Errors: [`Kind::Corrupt`], also for another disk than the expected one, before anything is
    /// written; and all errors of the medium.
    pub fn open(self, opening: OpenDiskOptions) -> Result<OpenDisk> {
        self.open_kept(opening, None)
    }

    /// The same; `keeper` holds acknowledged writes beyond the death of this process, if the format
    /// keeps any ([`FormatInfo::keeps_writes`](crate::FormatInfo::keeps_writes)). It also stays the
    /// named holder of the claim.
    pub fn open_kept(
        self,
        opening: OpenDiskOptions,
        keeper: Option<&Arc<dyn MemoryKeeper>>,
    ) -> Result<OpenDisk> {
        let UnlockedDisk { access: reach, parameters, rescue, identity } = self;
        let UnlockedIdentity { masters, id, uuid, on_device, claim, marks, location } = identity;
        id.check(opening.expect).map_err(|e| e.context(&location))?;
        claim.iter().filter(|_| keeper.is_none()).for_each(|claim| claim.adopt_after_fork());
        // Memory locks do not survive a fork: this copy is locked in the surviving process.
        let masters: Vec<Secret<32>> = masters.clone();
        if masters.is_empty() {
            return Err(Error::new(Kind::Other, "the header gave no key"));
        }
        if opening.write_through && parameters.has_levels() {
            return Err(write_through_refused());
        }
        let backing = match reach {
            DiskAccess::Held(backing) => backing,
            DiskAccess::AfterFork(disk) => Backing::Pool(disk.connect()?),
        };
        let read_only = opening.read_only || rescue || backing.is_snapshot();
        let header = OpenDiskHeader::new(backing.header()?, read_only, on_device);
        if let (Backing::File(medium), false) = (&backing, rescue) {
            parameters.check_length(medium.len(), &location)?;
        }
        let keys = DiskKeys { keys: &masters, uuid: &uuid.0 };
        let info = parameters.format().info();
        // Deniability contract: a disk with levels has no mark, and its cached pages never stay.
        let mark = match (&backing, marks) {
            (Backing::File(medium), Some(marks)) if !rescue && !info.has_levels() => {
                Some(CloseMark { marks, medium: Arc::clone(medium), uuid })
            }
            _ => None,
        };
        let keeps_cached = mark.as_ref().map_or(Ok(false), |mark| mark.consume(read_only));
        let keeps_cached = keeps_cached.map_err(|e| e.context(&location))?;
        let options = OpenDiskOptions { read_only, ..opening };
        let with = OpenContext { keys, options, rescue, keeper, keeps_cached };
        let opened = parameters.open(&backing, &with);
        let format = opened.map_err(|e| mark_confidential(e, info.has_levels()).context(&location))?;
        if info.has_levels() == format.levels().is_empty() {
            return Err(wrong_levels_error(info.has_levels()).context(&location));
        }
        let mark = mark.filter(|_| !read_only && format.can_stay_cached());
        Ok(OpenDisk { uuid, id, info, format, header, mark, keeper: keeper.cloned(), claim })
    }
}

/// The error for a format with an open disk that contradicts the format number about levels.
fn wrong_levels_error(expected: bool) -> Error {
    let (with, without) = ("a disk with levels", "a disk without levels");
    let (found, expected) = if expected { (without, with) } else { (with, without) };
    Error::new(Kind::Usage, "cannot use the format of the disk")
        .found(found)
        .expected(format!("{expected}, according to the number of the format"))
        .hint("report it to the author of the format")
}
