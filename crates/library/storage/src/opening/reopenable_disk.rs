//! What a process keeps of an unlocked disk so that each server that it starts can open it: the
//! keys, the file, and the claim, but neither the medium nor its lock.

use crate::backing::{Backing, FileLocation};
use crate::format::Params;
use crate::formats::table;
use crate::opening::claim::DiskClaim;
use crate::opening::close_marks::{CloseMarks, forget_cached_header};
use crate::opening::unlocked_disk::{DiskAccess, UnlockedDisk};
use lacuna_contracts::{Error, Result, Secret};
use lacuna_header::{DiskId, Location, Uuid, open_by_key};
use lacuna_medium::{Access, Medium};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// A disk in a file or on a block device that can be opened again and again, each time in another
/// process.
///
/// The claim stays with this process, so no other program opens the disk between two servers. Each
/// server takes the lock of the file itself: it gets the lock when the last request of its
/// predecessor has ended.
pub struct ReopenableDisk {
    /// Opened as a path only. It neither reads nor locks.
    file: OwnedFd,
    masters: Vec<Secret<32>>,
    id: DiskId,
    uuid: Uuid,
    on_device: bool,
    claim: Option<Arc<DiskClaim>>,
    /// The first server takes the mark of the disk, if there is one; a server that follows a dead
    /// one finds none.
    marks: Option<Arc<CloseMarks>>,
    location: Location,
}

impl UnlockedDisk {
    /// Whether servers of this disk keep acknowledged writes in memory that outlives them.
    pub fn keeps_writes(&self) -> bool {
        let in_file = matches!(self.access, DiskAccess::Held(Backing::File(_)));
        in_file && !self.rescue && self.parameters.format().info().keeps_writes
    }

    /// Gives up the medium, and keeps the keys, the file and the claim. `file` is the one that was
    /// unlocked.
    pub fn into_reopenable(self, file: OwnedFd) -> ReopenableDisk {
        let UnlockedDisk { masters, id, uuid, on_device, claim, marks, location, .. } = self;
        ReopenableDisk { file, masters, id, uuid, on_device, claim, marks, location }
    }
}

impl ReopenableDisk {
    /// Makes this process the keeper of the disk after a fork: locks the keys in memory, since no
    /// lock survives a fork, and has the system name this process as the holder of the claim.
    pub fn adopt_after_fork(&self) {
        // The first allocation of a secret in this process locks the pages of all secrets.
        std::hint::black_box(self.masters.clone());
        (self.claim_adopter())();
    }

    /// A function that makes the process that calls it the named holder of the claim: a server, if
    /// its keeper died.
    pub fn claim_adopter(&self) -> impl Fn() + Send + 'static + use<> {
        let claim = self.claim.clone();
        move || claim.iter().for_each(|claim| claim.adopt_after_fork())
    }

    /// The file or device of the disk, opened as a path only.
    pub fn file(&self) -> Result<OwnedFd> {
        self.file.try_clone().map_err(|e| Error::io("cannot copy the descriptor of the disk", &e))
    }

    /// Holds the medium, and reads the parameters of the disk as they are now.
    ///
    /// Errors: [`lacuna_contracts::Kind::Busy`] while another process holds the medium,
    /// [`lacuna_contracts::Kind::Corrupt`] for another disk, and all errors of the medium.
    pub fn unlock_again(&self, access: Access) -> Result<UnlockedDisk> {
        let naming = |e: Error| e.context(&self.location);
        // The path may lead to another file by now.
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let medium: Arc<dyn Medium> = Arc::new(FileLocation::Named(&path).hold(access).map_err(naming)?);
        forget_cached_header(&*medium, self.marks.as_deref()).map_err(naming)?;
        let header = open_by_key(&*medium, self.uuid, &self.masters[0]).map_err(naming)?;
        let parameters: Box<dyn Params> = table::parse(&header.header, &self.location).map_err(naming)?;
        Ok(UnlockedDisk {
            access: DiskAccess::Held(Backing::File(medium)),
            parameters,
            claim: self.claim.clone(),
            masters: self.masters.clone(),
            id: self.id,
            uuid: self.uuid,
            on_device: self.on_device,
            rescue: false,
            marks: self.marks.clone(),
            location: self.location.clone(),
        })
    }
}
