//! A disk that is open, whichever of the formats of this build it has, with what it needs to stay so.

use crate::cluster::Connection;
use lacuna_core::{BlockAddr, Disk, Error, Extent, Kind, Result, Status};
use lacuna_sealed::{BadBlock, CheckReport, ObjectDisk, SEGMENT_BLOCKS, Sealed};
use std::sync::OnceLock;

/// An open disk.
// One of these per process: the size of the largest variant costs nothing.
#[allow(clippy::large_enum_variant)]
pub enum OpenDisk {
    /// On a flat medium.
    Flat(Sealed),
    /// On objects.
    Objects(OnObjects),
}

/// A disk on objects.
pub struct OnObjects {
    // Goes before the lock on it does.
    disk: ObjectDisk,
    /// The prefix of the objects of its data.
    prefix: String,
    /// By which it was first seen that another client has taken the disk over. What fails afterwards fails for
    /// reasons that say less.
    fenced: OnceLock<Error>,
    connection: Connection,
}

impl OnObjects {
    /// A disk that is reached over a connection, which holds the lock on it.
    pub fn new(disk: ObjectDisk, prefix: String, connection: Connection) -> Self {
        OnObjects { disk, prefix, fenced: OnceLock::new(), connection }
    }
}

impl OpenDisk {
    /// Reads and verifies every block, telling `progress` how many are done and `bad` of each that fails.
    pub fn check(&self, progress: impl FnMut(u64), bad: impl FnMut(BadBlock)) -> Result<CheckReport> {
        match self {
            OpenDisk::Flat(disk) => disk.check(progress, bad),
            OpenDisk::Objects(on) => on.disk.check(progress, bad),
        }
    }

    /// The disk, if it is one on objects, which can keep snapshots.
    pub fn on_objects(&self) -> Result<&ObjectDisk> {
        match self {
            OpenDisk::Flat(_) => Err(Error::new(Kind::Usage, "the disk keeps no snapshots")),
            OpenDisk::Objects(on) => Ok(&on.disk),
        }
    }

    /// The name of the object that a block rests in, where there are objects.
    pub fn object_of(&self, block: BlockAddr) -> Option<String> {
        match self {
            OpenDisk::Flat(_) => None,
            OpenDisk::Objects(on) => Some(format!("{}.{:016x}", on.prefix, block.0 / SEGMENT_BLOCKS)),
        }
    }

    /// The error of a disk that is another client's now.
    pub fn taken_over(&self) -> Option<Error> {
        let OpenDisk::Objects(on) = self else { return None };
        on.fenced.get().cloned().or_else(|| on.connection.check_taken_over().err())
    }

    /// Remembers that the disk is another client's now, if that is what an error says.
    fn noting(&self, e: Error) -> Error {
        if let OpenDisk::Objects(on) = self
            && e.kind() == Kind::Fenced
        {
            on.fenced.get_or_init(|| e.clone());
        }
        e
    }

    fn inner(&self) -> &dyn Disk {
        match self {
            OpenDisk::Flat(disk) => disk,
            OpenDisk::Objects(on) => &on.disk,
        }
    }
}

impl Disk for OpenDisk {
    fn blocks(&self) -> u64 {
        self.inner().blocks()
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.inner().read(first, buf).map_err(|e| self.noting(e))
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.inner().write(first, data).map_err(|e| self.noting(e))
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.inner().discard(first, count).map_err(|e| self.noting(e))
    }

    fn flush(&self) -> Result<()> {
        self.inner().flush().map_err(|e| self.noting(e))
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.inner().extents(first, count)
    }

    fn status(&self) -> Status {
        self.inner().status()
    }

    fn close(&self) -> Result<()> {
        let closed = self.inner().close();
        if let OpenDisk::Objects(on) = self
            && closed.is_err()
        {
            // A write that failed may still arrive: not once another client writes.
            on.connection.abandon_lock();
        }
        self.taken_over().map_or(closed, Err)
    }

    fn read_only(&self) -> bool {
        self.inner().read_only()
    }
}
