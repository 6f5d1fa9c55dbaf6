//! A disk that is open, whichever of the formats of this build it has, with what it needs to stay
//! so.

use crate::claim::Claim;
use crate::format::{FormatInfo, OpenFormat, Params};
use crate::held_header::{HeaderLease, HeldHeader};
use crate::private_disk::PrivateDisk;
use crate::snapshots::Snapshots;
use lacuna_contracts::{BadBlock, BlockAddr, CheckReport, Disk, Error, Extent, Result, Status};
use lacuna_header::{DiskId, Uuid};
use lacuna_levels::Pace;
use std::ops::Range;
use std::sync::Arc;

/// An open disk. Dropping it ends its claim on the disk; [`Disk::close`] comes before.
pub struct OpenDisk {
    pub(crate) uuid: Uuid,
    pub(crate) id: DiskId,
    pub(crate) info: FormatInfo,
    pub(crate) format: Box<dyn OpenFormat>,
    /// For changes while it is open.
    pub(crate) header: HeldHeader,
    /// Of a disk in a file that is open for writing. Goes after everything else.
    pub(crate) claim: Option<Arc<Claim>>,
}

impl OpenDisk {
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
        if !self.has_levels() {
            return vec![Arc::clone(self) as Arc<dyn Disk>];
        }
        let private = |level: &Arc<dyn Disk>| {
            Arc::new(PrivateDisk::new(Arc::clone(level), self.claim.clone())) as Arc<dyn Disk>
        };
        self.format.levels().iter().map(private).collect()
    }

    /// Reads and verifies every block, telling `progress` how many are done and `bad` of each that
    /// fails, with its level where there are levels. The disk is in nobody's use.
    ///
    /// Errors: what stops reading, and what `progress` says, which ends the check.
    pub fn check(
        &self,
        progress: impl FnMut(u64) -> Result<()>,
        bad: impl FnMut(Option<u8>, BadBlock),
    ) -> Result<CheckReport> {
        let report = self.check_in_use(progress, bad)?;
        self.format.check_unused().map_err(|e| self.guarded(e))?;
        Ok(report)
    }

    /// The same of a disk that is in use. What is written meanwhile is read as it is before or
    /// after, and what memory still holds of it counts as good. Of a disk on flash the state of its
    /// keys is not compared, which changes with every write.
    pub fn check_in_use(
        &self,
        mut progress: impl FnMut(u64) -> Result<()>,
        mut bad: impl FnMut(Option<u8>, BadBlock),
    ) -> Result<CheckReport> {
        self.format.check(&mut progress, &mut bad).map_err(|e| self.guarded(e))
    }

    /// The header, for one at a time who changes passphrases while the disk is open.
    ///
    /// Errors: [`Kind::Busy`](lacuna_contracts::Kind::Busy) while another has it, and of a disk
    /// that is open for reading alone.
    pub fn lease_header(&self) -> Result<HeaderLease<'_>> {
        self.header.lease()
    }

    /// Makes the disk larger while it is open, to `size` bytes or, without a size, to all of its
    /// block device; requests wait meanwhile. What the disk is then, whether or not that is a
    /// change.
    ///
    /// Errors: those of [`resize`](crate::resize()), and
    /// [`Kind::Busy`](lacuna_contracts::Kind::Busy) for a disk that can grow only while it is
    /// closed.
    pub fn grow(&self, size: Option<u64>) -> Result<Box<dyn Params>> {
        self.format.grow(&self.header, size)
    }

    /// Whether a disk that was opened to rescue what there is has a damaged journal: blocks that
    /// were written last may be older than they should be.
    pub fn is_journal_damaged(&self) -> bool {
        self.format.is_journal_damaged()
    }

    /// What a person should know who has just opened it.
    pub fn note(&self) -> Option<&'static str> {
        self.format.note()
    }

    /// Whether the disk is of a format with levels, however many are open.
    pub fn has_levels(&self) -> bool {
        self.info.has_levels()
    }

    /// Writes the cover that closing a disk with levels takes, at an even pace while a file system
    /// on it is being unmounted; [`Disk::close`] does not write it once more then. Of other disks
    /// nothing.
    pub fn cover_closing(&self, pace: Pace) -> Result<()> {
        self.format.cover_closing(pace).map_err(|e| self.guarded(e))
    }

    /// Sets whether a level gives up what waits for cover: from then on requests that would wait
    /// are refused. Level 0 never waits. A number that no open level has changes nothing.
    pub fn give_up(&self, level: u64, gives_up: bool) {
        if level < self.format.levels().len() as u64 {
            self.format.give_up(level as u8, gives_up);
        }
    }

    /// How many levels are open; 1 of a disk that has none.
    pub fn open_levels(&self) -> usize {
        self.format.levels().len().max(1)
    }

    /// Blocks of all open levels together.
    pub fn all_blocks(&self) -> u64 {
        match self.format.levels() {
            [] => self.blocks(),
            levels => levels.iter().map(|level| level.blocks()).sum(),
        }
    }

    /// Whether the disk forgets what was deleted, when it is purged ([`Disk::purge`]).
    pub fn forgets(&self) -> bool {
        self.info.forgets
    }

    /// From now on, whatever is deleted among these blocks of a disk that forgets is purged before
    /// the call that deletes it returns.
    pub fn mark_sensitive(&self, blocks: Range<u64>) {
        self.format.mark_sensitive(blocks);
    }

    /// The snapshots of the disk. Errors: [`Kind::Usage`](lacuna_contracts::Kind::Usage) if it
    /// keeps none.
    pub fn snapshots(&self) -> Result<&dyn Snapshots> {
        self.format.snapshots()
    }

    /// The name of the object that a block rests in, where there are objects.
    pub fn object_of(&self, block: BlockAddr) -> Option<String> {
        self.format.object_of(block)
    }

    /// Whether another client of a cluster can take the disk over.
    pub fn is_shared(&self) -> bool {
        self.info.is_shared()
    }

    /// The error of a disk that is another client's now.
    pub fn taken_over(&self) -> Option<Error> {
        self.format.taken_over()
    }

    /// An error of the disk as others may hear of it.
    fn guarded(&self, e: Error) -> Error {
        guarded(e, self.has_levels())
    }

    /// The same of a request, of which the format takes note.
    fn noted(&self, e: Error) -> Error {
        self.guarded(self.format.noting(e))
    }

    /// Makes durable what a request has changed before it is acknowledged, if every write is to be.
    fn acknowledged(&self) -> Result<()> {
        if self.format.flushes_writes() { self.flush() } else { Ok(()) }
    }
}

/// An error of opening a disk, or of using it, as others may hear of it.
///
/// Deniability contract: those of a disk with levels are private, whatever its format does and
/// whichever level they are of. If only those of hidden levels were, the sentence that stands for
/// them in a log would tell.
pub(crate) fn guarded(e: Error, has_levels: bool) -> Error {
    if has_levels { e.private() } else { e }
}

impl Disk for OpenDisk {
    fn blocks(&self) -> u64 {
        self.format.disk().blocks()
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.format.disk().read(first, buf).map_err(|e| self.noted(e))
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.format.disk().write(first, data).map_err(|e| self.noted(e))?;
        self.acknowledged()
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.format.disk().discard(first, count).map_err(|e| self.noted(e))?;
        self.acknowledged()
    }

    fn flush(&self) -> Result<()> {
        self.format.disk().flush().map_err(|e| self.noted(e))
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.format.disk().extents(first, count).map_err(|e| self.guarded(e))
    }

    fn purge(&self) -> Result<Status> {
        self.format.disk().purge()
    }

    fn status(&self) -> Status {
        self.format.disk().status()
    }

    fn close(&self) -> Result<()> {
        self.format.close().map_err(|e| self.guarded(e))
    }

    fn read_only(&self) -> bool {
        self.format.disk().read_only()
    }
}
