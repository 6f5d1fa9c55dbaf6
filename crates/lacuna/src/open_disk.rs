//! A disk that is open, whichever of the formats of this build it has, with what it needs to stay so.

use crate::claim::Claim;
use crate::cluster::Connection;
use crate::growing::{Growing, no_growth};
use crate::held_header::{HeaderLease, HeldHeader};
use crate::parameters::Parameters;
use crate::private_disk::PrivateDisk;
use lacuna_core::{
    BadBlock, BlockAddr, CheckReport, Disk, Error, Extent, Kind, Result, SEGMENT_BLOCKS, Status, check,
};
use lacuna_flash::FlashDisk;
use lacuna_header::{DiskId, Uuid};
use lacuna_levels::{LevelDisk, Levels, Pace, level_disks};
use lacuna_sealed_objects::ObjectDisk;
use std::sync::{Arc, OnceLock};

/// Why a hidden level has bad blocks, most likely.
pub const OVERWRITTEN: &str = "on a level from 1 on, most likely the disk was written to while that level was not open: \
    give the passphrase of the deepest level whenever it is opened for writing";

/// An open disk. Dropping it ends its claim on the disk; [`Disk::close`] comes before.
pub struct OpenDisk {
    uuid: Uuid,
    id: DiskId,
    engine: Engine,
    /// For changes while it is open.
    header: HeldHeader,
    /// Of a disk in a file that is open for writing. Goes after everything else.
    claim: Option<Arc<Claim>>,
}

// One of these per process: the size of the largest variant costs nothing.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Engine {
    /// On a flat medium.
    Flat(Growing),
    /// On objects.
    Objects(OnObjects),
    /// With levels, in whatever format.
    Levels(WithLevels),
    /// On flash.
    Flash(OnFlash),
}

/// A disk on flash.
pub(crate) struct OnFlash {
    pub(crate) disk: FlashDisk,
    /// Acknowledge writes when they are durable.
    pub(crate) write_through: bool,
}

/// A disk with levels.
pub(crate) struct WithLevels {
    disk: Arc<dyn Levels>,
    /// Those that are open.
    levels: Vec<Arc<LevelDisk>>,
}

/// A disk on objects.
pub(crate) struct OnObjects {
    // Goes before the lock on it does.
    disk: ObjectDisk,
    /// The prefix of the objects of its data.
    prefix: String,
    /// The first error that showed that another client has taken the disk over. Later errors are less clear.
    fenced: OnceLock<Error>,
    connection: Connection,
}

impl OnObjects {
    /// A disk that is reached over a connection, which holds the lock on it.
    pub(crate) fn new(disk: ObjectDisk, prefix: String, connection: Connection) -> Self {
        OnObjects { disk, prefix, fenced: OnceLock::new(), connection }
    }
}

impl Engine {
    /// A disk with levels.
    pub(crate) fn with_levels(disk: impl Levels + 'static) -> Self {
        let disk = Arc::new(disk);
        let levels = level_disks(&disk);
        Engine::Levels(WithLevels { disk, levels })
    }
}

impl OpenDisk {
    pub(crate) fn new(
        (uuid, id): (Uuid, DiskId),
        engine: Engine,
        header: HeldHeader,
        claim: Option<Arc<Claim>>,
    ) -> Self {
        OpenDisk { uuid, id, engine, header, claim }
    }

    /// The name of the disk for programs.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// By which its owner knows the disk again, whichever levels are open.
    pub fn id(&self) -> DiskId {
        self.id
    }

    /// What front ends serve: a disk for each open level, the public one first.
    pub fn levels(self: &Arc<Self>) -> Vec<Arc<dyn Disk>> {
        match &self.engine {
            Engine::Flat(_) | Engine::Objects(_) | Engine::Flash(_) => {
                vec![Arc::clone(self) as Arc<dyn Disk>]
            }
            Engine::Levels(on) => {
                let private = |level: &Arc<LevelDisk>| {
                    Arc::new(PrivateDisk::new(Arc::clone(level), self.claim.clone()))
                };
                on.levels.iter().map(|level| private(level) as Arc<dyn Disk>).collect()
            }
        }
    }

    /// Reads and verifies every block, telling `progress` how many are done and `bad` of each that fails, with its
    /// level where there are levels. The disk is in nobody's use.
    ///
    /// Errors: what stops reading, and what `progress` says, which ends the check.
    pub fn check(
        &self,
        progress: impl FnMut(u64) -> Result<()>,
        bad: impl FnMut(Option<u8>, BadBlock),
    ) -> Result<CheckReport> {
        let report = self.check_in_use(progress, bad)?;
        if let Engine::Flash(on) = &self.engine {
            check_keys(&on.disk)?;
        }
        Ok(report)
    }

    /// The same of a disk that is in use. What is written meanwhile is read as it is before or after, and what memory still holds
    /// of it counts as good. Of a disk on flash the state of its keys is not compared, which changes with every write.
    pub fn check_in_use(
        &self,
        mut progress: impl FnMut(u64) -> Result<()>,
        mut bad: impl FnMut(Option<u8>, BadBlock),
    ) -> Result<CheckReport> {
        match &self.engine {
            Engine::Flat(disk) => check(disk, progress, |found| bad(None, found)),
            Engine::Objects(on) => on.disk.check(progress, |found| bad(None, found)),
            Engine::Flash(on) => check(&on.disk, progress, |found| bad(None, found)),
            Engine::Levels(on) => {
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

    /// The header, for one at a time who changes passphrases while the disk is open.
    ///
    /// Errors: [`Kind::Busy`] while another has it, and of a disk that is open for reading alone.
    pub fn lease_header(&self) -> Result<HeaderLease<'_>> {
        self.header.lease()
    }

    /// Makes the disk larger while it is open, to `size` bytes or, without a size, to all of its block device; requests wait
    /// meanwhile. What the disk is then, whether or not that is a change.
    ///
    /// Errors: those of [`resize`](crate::resize()), and [`Kind::Busy`] for a disk that can grow only while it is closed.
    pub fn grow(&self, size: Option<u64>) -> Result<Parameters> {
        match &self.engine {
            Engine::Flat(disk) => disk.grow(&self.header.lease()?, size),
            Engine::Levels(_) => Err(Error::new(Kind::Usage, "cannot resize the disk")
                .found("a disk with levels, which keeps its size")
                .expected("a disk of the format sealed")
                .remedy("create a larger one and copy what you need")),
            Engine::Objects(_) | Engine::Flash(_) => Err(no_growth()),
        }
    }

    /// Whether a disk that was opened to rescue what there is has a damaged journal: blocks that were written last may be older than
    /// they should be.
    pub fn is_journal_damaged(&self) -> bool {
        matches!(&self.engine, Engine::Flat(disk) if disk.is_journal_damaged())
    }

    /// What a person should know who has just opened it.
    pub fn note(&self) -> Option<&'static str> {
        match &self.engine {
            Engine::Flat(disk) if disk.is_medium_full() => Some(
                "the host has no space left for this disk: what was written last stays in its reserve, and little more fits \
                 there. Free space on the host, or delete something on the disk and trim it (fstrim)",
            ),
            _ => None,
        }
    }

    /// Whether the disk is of a format with levels, however many are open.
    pub fn has_levels(&self) -> bool {
        matches!(self.engine, Engine::Levels(_))
    }

    /// Writes the cover that closing a disk with levels takes, at an even pace, while what is mounted of it is being unmounted;
    /// [`Disk::close`] does not write it once more then. Of other disks nothing.
    pub fn cover_closing(&self) -> Result<()> {
        match &self.engine {
            Engine::Levels(on) => on.disk.cover_closing(Pace::Even).map_err(Error::private),
            Engine::Flat(_) | Engine::Objects(_) | Engine::Flash(_) => Ok(()),
        }
    }

    /// Whether nothing of a level waits for cover from now on: what waits is refused. Level 0 never waits.
    pub fn give_up(&self, level: u64, gives_up: bool) {
        if let Engine::Levels(on) = &self.engine
            && let Some(level) =
                on.levels.iter().skip(1).map(|open| open.level()).find(|open| u64::from(*open) == level)
        {
            on.disk.give_up(level, gives_up);
        }
    }

    /// How many levels are open; 1 of a disk that has none.
    pub fn open_levels(&self) -> usize {
        match &self.engine {
            Engine::Levels(on) => on.levels.len(),
            Engine::Flat(_) | Engine::Objects(_) | Engine::Flash(_) => 1,
        }
    }

    /// Blocks of all open levels together.
    pub fn all_blocks(&self) -> u64 {
        match &self.engine {
            Engine::Flat(_) | Engine::Objects(_) | Engine::Flash(_) => self.blocks(),
            Engine::Levels(on) => on.levels.iter().map(|level| level.blocks()).sum(),
        }
    }

    /// The disk, if it is one on flash, which forgets what was deleted.
    pub fn on_flash(&self) -> Option<&FlashDisk> {
        match &self.engine {
            Engine::Flash(on) => Some(&on.disk),
            Engine::Flat(_) | Engine::Objects(_) | Engine::Levels(_) => None,
        }
    }

    /// The disk, if it is one on objects, which can keep snapshots.
    pub fn on_objects(&self) -> Result<&ObjectDisk> {
        match &self.engine {
            Engine::Flat(_) | Engine::Levels(_) | Engine::Flash(_) => {
                Err(Error::new(Kind::Usage, "the disk keeps no snapshots"))
            }
            Engine::Objects(on) => Ok(&on.disk),
        }
    }

    /// The name of the object that a block rests in, where there are objects.
    pub fn object_of(&self, block: BlockAddr) -> Option<String> {
        match &self.engine {
            Engine::Flat(_) | Engine::Levels(_) | Engine::Flash(_) => None,
            Engine::Objects(on) => Some(format!("{}.{:016x}", on.prefix, block.0 / SEGMENT_BLOCKS)),
        }
    }

    /// The error of a disk that is another client's now.
    pub fn taken_over(&self) -> Option<Error> {
        let Engine::Objects(on) = &self.engine else { return None };
        on.fenced.get().cloned().or_else(|| on.connection.check_taken_over().err())
    }

    /// Remembers that the disk is another client's now, if that is what an error says.
    fn noting(&self, e: Error) -> Error {
        if self.has_levels() {
            return e.private();
        }
        if let Engine::Objects(on) = &self.engine
            && e.kind() == Kind::Fenced
        {
            on.fenced.get_or_init(|| e.clone());
        }
        e
    }

    fn inner(&self) -> &dyn Disk {
        match &self.engine {
            Engine::Flat(disk) => disk,
            Engine::Objects(on) => &on.disk,
            Engine::Levels(on) => &*on.levels[0],
            Engine::Flash(on) => &on.disk,
        }
    }
}

/// Refuses a disk of which a key is not what the index says (paper 003, section 3.2).
fn check_keys(disk: &FlashDisk) -> Result<()> {
    let wrong = disk.check_keys()?;
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, "the key state map is not what the disk holds")
        .found(format!("{} keys whose state is wrong", wrong.len()))
        .expected("a used key for each block that was written, and for nothing else")
        .remedy("copy what is on the disk to another one, and destroy this one: what was deleted may be recoverable"))
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
        self.inner().write(first, data).map_err(|e| self.noting(e))?;
        match &self.engine {
            Engine::Flash(on) if on.write_through => on.disk.flush(),
            _ => Ok(()),
        }
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

    fn purge(&self) -> Result<Status> {
        self.inner().purge()
    }

    fn status(&self) -> Status {
        self.inner().status()
    }

    fn close(&self) -> Result<()> {
        if let Engine::Levels(on) = &self.engine {
            return on.disk.close().map_err(Error::private);
        }
        let closed = self.inner().close();
        if let Engine::Objects(on) = &self.engine
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
