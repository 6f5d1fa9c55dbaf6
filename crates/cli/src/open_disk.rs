//! A disk that is open, whichever of the formats of this build it has, with what it needs to stay so.

use crate::cluster::Connection;
use crate::private_disk::PrivateDisk;
use lacuna_core::{
    BadBlock, BlockAddr, CheckReport, Disk, Error, Extent, Kind, Result, SEGMENT_BLOCKS, Status, check,
};
use lacuna_levels::{LevelDisk, Levels, level_disks};
use lacuna_sealed::Sealed;
use lacuna_sealed_objects::ObjectDisk;
use std::sync::{Arc, OnceLock};

/// Why a hidden level has bad blocks, most likely.
pub const OVERWRITTEN: &str = "on a level from 1 on, most likely the disk was written to while that level was not open: \
    give the passphrase of the deepest level whenever it is opened for writing";

/// An open disk.
// One of these per process: the size of the largest variant costs nothing.
#[allow(clippy::large_enum_variant)]
pub enum OpenDisk {
    /// On a flat medium.
    Flat(Sealed),
    /// On objects.
    Objects(OnObjects),
    /// With levels, in whatever format.
    Levels(WithLevels),
}

/// A disk with levels.
pub struct WithLevels {
    disk: Arc<dyn Levels>,
    /// Those that are open.
    levels: Vec<Arc<LevelDisk>>,
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
    /// A disk with levels.
    pub fn with_levels(disk: impl Levels + 'static) -> Self {
        let disk: Arc<dyn Levels> = Arc::new(disk);
        let levels = level_disks(&disk);
        OpenDisk::Levels(WithLevels { disk, levels })
    }

    /// What front ends serve: a disk for each open level, the public one first.
    pub fn levels(self: &Arc<Self>) -> Vec<Arc<dyn Disk>> {
        match &**self {
            OpenDisk::Flat(_) | OpenDisk::Objects(_) => vec![Arc::clone(self) as Arc<dyn Disk>],
            OpenDisk::Levels(on) => {
                let private = |level: &Arc<LevelDisk>| Arc::new(PrivateDisk::new(Arc::clone(level)));
                on.levels.iter().map(|level| private(level) as Arc<dyn Disk>).collect()
            }
        }
    }

    /// Reads and verifies every block, telling `progress` how many are done and `bad` of each that fails, with its
    /// level where there are levels.
    pub fn check(
        &self,
        mut progress: impl FnMut(u64),
        mut bad: impl FnMut(Option<u8>, BadBlock),
    ) -> Result<CheckReport> {
        match self {
            OpenDisk::Flat(disk) => check(disk, progress, |found| bad(None, found)),
            OpenDisk::Objects(on) => on.disk.check(progress, |found| bad(None, found)),
            OpenDisk::Levels(on) => {
                let (mut total, mut before) = (CheckReport::default(), 0);
                for level in &on.levels {
                    let found = |found| bad(Some(level.level()), found);
                    let report = check(&**level, |done| progress(before + done), found)
                        .map_err(|e| level_error(level.level(), e).private())?;
                    before += level.blocks();
                    total.add(report);
                }
                Ok(total)
            }
        }
    }

    /// What a person should know who has just opened it.
    pub fn note(&self) -> Option<&'static str> {
        match self {
            OpenDisk::Flat(disk) if disk.is_medium_full() => Some(
                "the host has no space left for this disk: what was written last stays in its reserve, and little more fits \
                 there. Free space on the host, or delete something on the disk and trim it (fstrim)",
            ),
            _ => None,
        }
    }

    /// Whether the disk is of a format with levels, however many are open.
    pub fn has_levels(&self) -> bool {
        matches!(self, OpenDisk::Levels(_))
    }

    /// Blocks of all open levels together.
    pub fn all_blocks(&self) -> u64 {
        match self {
            OpenDisk::Flat(_) | OpenDisk::Objects(_) => self.blocks(),
            OpenDisk::Levels(on) => on.levels.iter().map(|level| level.blocks()).sum(),
        }
    }

    /// The disk, if it is one on objects, which can keep snapshots.
    pub fn on_objects(&self) -> Result<&ObjectDisk> {
        match self {
            OpenDisk::Flat(_) | OpenDisk::Levels(_) => {
                Err(Error::new(Kind::Usage, "the disk keeps no snapshots"))
            }
            OpenDisk::Objects(on) => Ok(&on.disk),
        }
    }

    /// The name of the object that a block rests in, where there are objects.
    pub fn object_of(&self, block: BlockAddr) -> Option<String> {
        match self {
            OpenDisk::Flat(_) | OpenDisk::Levels(_) => None,
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
        if self.has_levels() {
            return e.private();
        }
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
            OpenDisk::Levels(on) => &*on.levels[0],
        }
    }
}

/// The error of a check that ended within a level.
fn level_error(level: u8, e: Error) -> Error {
    let corrupt = e.kind() == Kind::Corrupt;
    let e = e.context(format!("cannot check level {level}"));
    if corrupt && level > 0 { e.remedy(OVERWRITTEN) } else { e }
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
        if let OpenDisk::Levels(on) = self {
            return on.disk.close().map_err(Error::private);
        }
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
