//! What a process keeps of an unlocked disk so that each server that it starts can open it: the
//! keys, the place, and the claim, but neither the medium, a connection nor a lock.

use crate::backing::rados::ReconnectInfo;
use crate::backing::{Backing, FileLocation, FlashLocation};
use crate::format::Params;
use crate::formats::table;
use crate::opening::close_marks::forget_cached_header;
use crate::opening::unlocked_disk::{DiskAccess, UnlockedDisk, UnlockedIdentity};
use crate::rados::WriterSeries;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_crypto::{RandomSource, SystemRandom};
use lacuna_header::{Location, open_by_key};
use lacuna_medium::Access;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// A disk that can be opened again and again, each time in another process.
///
/// The claim on a disk in a file, on a block device or on flash stays with this process, so no
/// other program opens the disk between two servers. Each server takes the lock of the file itself,
/// or opens the UBI volume for writing, which the system allows one process at a time: it gets it
/// when the last request of its predecessor has ended.
///
/// In a pool each server connects and takes the lock from its dead predecessor, which the cluster
/// then shuts out. Another client may take it first. A server that continues is refused then.
pub struct ReopenableDisk {
    place: ReopenablePlace,
    /// The first server takes the mark of the disk, if there is one; a server that follows a dead
    /// one finds none.
    identity: UnlockedIdentity,
}

/// The place of the disk.
enum ReopenablePlace {
    /// The file or device, opened as a path only: it neither reads nor locks.
    File(OwnedFd),
    /// A disk in a pool, and the identity that its servers have in common there.
    Pool(Box<ReconnectInfo>, [u8; 16]),
}

impl UnlockedDisk {
    /// Whether servers of this disk keep acknowledged writes in memory that outlives them.
    pub fn keeps_writes(&self) -> bool {
        let can_reopen = match &self.access {
            DiskAccess::Held(backing) => matches!(backing, Backing::File(_) | Backing::Flash(_)),
            DiskAccess::AfterFork(disk) => disk.pool_location.snapshot().is_none(),
        };
        can_reopen && !self.rescue && self.parameters.format().info().keeps_writes
    }

    /// Gives up the medium, and keeps the keys, the place and the claim. `file` is the unlocked
    /// file. A disk in a pool must have been prepared for a fork
    /// ([`UnlockedHeader::into_disk`](crate::UnlockedHeader::into_disk)).
    ///
    /// Errors: [`Kind::Usage`] for a disk without a file that was not prepared.
    pub fn into_reopenable(self, file: Option<OwnedFd>) -> Result<ReopenableDisk> {
        let UnlockedDisk { access, identity, .. } = self;
        let place = match (access, file) {
            (DiskAccess::AfterFork(disk), _) => {
                let mut series = [0; 16];
                SystemRandom::new()?.fill(&mut series);
                ReopenablePlace::Pool(disk, series)
            }
            (DiskAccess::Held(_), Some(file)) => ReopenablePlace::File(file),
            (DiskAccess::Held(_), None) => {
                let what = format!("cannot open {} again and again", identity.location);
                return Err(Error::new(Kind::Usage, what)
                    .found("a disk without a file, and with a connection that no fork survives")
                    .expected("a disk that was prepared for a fork"));
            }
        };
        Ok(ReopenableDisk { place, identity })
    }
}

impl ReopenableDisk {
    /// Makes this process the keeper of the disk after a fork: locks the keys in memory, since no
    /// lock survives a fork, and has the system name this process as the holder of the claim.
    pub fn adopt_after_fork(&self) {
        // The first allocation of a secret in this process locks the pages of all secrets.
        std::hint::black_box(self.identity.masters.clone());
        (self.claim_adopter())();
    }

    /// A function that makes the process that calls it the named holder of the claim: a server, if
    /// its keeper died.
    pub fn claim_adopter(&self) -> impl Fn() + Send + 'static + use<> {
        let claim = self.identity.claim.clone();
        move || claim.iter().for_each(|claim| claim.adopt_after_fork())
    }

    /// The file or device of the disk, opened as a path only. `None` in a pool.
    pub fn file(&self) -> Result<Option<OwnedFd>> {
        let ReopenablePlace::File(file) = &self.place else { return Ok(None) };
        file.try_clone().map(Some).map_err(|e| Error::io("cannot copy the descriptor of the disk", &e))
    }

    /// Holds the file, device or flash behind this descriptor: the path may lead to another file by
    /// now.
    fn hold(&self, file: &OwnedFd, access: Access) -> Result<Backing> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let flash = match &self.identity.location {
            Location::Nand(_) => FlashLocation::Nand(&path),
            Location::Ubi(_) => FlashLocation::Ubi(&path),
            Location::Path(_) | Location::Rados { .. } => {
                return Ok(Backing::File(Arc::new(FileLocation::Named(&path).hold(access)?)));
            }
        };
        flash.open(access).map(|(flash, _)| Backing::Flash(flash))
    }

    /// Holds the medium, and reads the parameters of the disk as they are now. `continues`: an
    /// earlier server of the disk has died and left writes.
    ///
    /// Errors: [`Kind::Busy`] while another process or client holds the medium, [`Kind::Fenced`] if
    /// another client has had it since that server, [`Kind::Corrupt`] for another disk, and all
    /// errors of the medium.
    pub fn unlock_again(&self, access: Access, continues: bool) -> Result<UnlockedDisk> {
        let UnlockedIdentity { masters, uuid, marks, location, .. } = &self.identity;
        let naming = |e: Error| e.context(location);
        let backing = match &self.place {
            ReopenablePlace::File(file) => self.hold(file, access).map_err(naming)?,
            // Its errors name the location.
            ReopenablePlace::Pool(disk, id) => {
                Backing::Pool(disk.connect_in_series(WriterSeries { id: *id, continues })?)
            }
        };
        let medium = backing.header().map_err(naming)?;
        if let Backing::File(file) = &backing {
            forget_cached_header(&**file, marks.as_deref()).map_err(naming)?;
        }
        let header = open_by_key(&*medium, *uuid, &masters[0]).map_err(naming)?;
        let parameters: Box<dyn Params> = table::parse(&header.header, location).map_err(naming)?;
        let (access, identity) = (DiskAccess::Held(backing), self.identity.clone());
        Ok(UnlockedDisk { access, parameters, rescue: false, identity })
    }
}
