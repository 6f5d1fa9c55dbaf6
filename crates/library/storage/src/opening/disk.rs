//! An open disk of any format, with its claim and header.

use crate::format::{FormatInfo, OpenFormat, Params};
use crate::header::header_lease::{HeaderLease, OpenDiskHeader};
use crate::opening::claim::DiskClaim;
use crate::opening::close_marks::CloseMark;
use crate::opening::confidential_disk::ConfidentialDisk;
use crate::snapshots::Snapshots;
use lacuna_contracts::{BadBlock, BlockAddr, Disk, DiskCheckReport, Error, Extent, Result, Status};
use lacuna_header::{DiskId, Uuid};
use lacuna_kept_memory::MemoryKeeper;
use lacuna_levels::Pace;
use std::ops::Range;
use std::sync::Arc;

/// An open disk. Dropping it ends its claim on the disk; call [`Disk::close`] first.
pub struct OpenDisk {
    pub(crate) uuid: Uuid,
    pub(crate) id: DiskId,
    pub(crate) info: FormatInfo,
    pub(crate) format: Box<dyn OpenFormat>,
    /// For changes while the disk is open.
    pub(crate) header: OpenDiskHeader,
    /// The mark that the disk gets when it was closed well.
    pub(crate) mark: Option<CloseMark>,
    /// Holds memory with acknowledged writes until the disk was closed well.
    pub(crate) keeper: Option<Arc<dyn MemoryKeeper>>,
    /// The claim of a disk in a file that is open for writing. The last field, so that it is
    /// dropped last.
    pub(crate) claim: Option<Arc<DiskClaim>>,
}

impl OpenDisk {
    /// The UUID of the disk.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The identity that lets the owner recognise the disk, regardless of the open levels.
    pub fn id(&self) -> DiskId {
        self.id
    }

    /// The disks for front ends: one for each open level, the public one first.
    pub fn levels(self: &Arc<Self>) -> Vec<Arc<dyn Disk>> {
        if !self.has_levels() {
            return vec![Arc::clone(self) as Arc<dyn Disk>];
        }
        let private = |level: &Arc<dyn Disk>| {
            Arc::new(ConfidentialDisk::new(Arc::clone(level), self.claim.clone())) as Arc<dyn Disk>
        };
        self.format.levels().iter().map(private).collect()
    }

    /// Reads and verifies every block. Calls `progress` with the number of blocks done, and `bad`
    /// with each block that fails and its level, if there are levels. The disk must not be in use.
    ///
    /// Errors: errors that prevent further reading, and errors of `progress`, which end the check.
    pub fn check(
        &self,
        progress: impl FnMut(u64) -> Result<()>,
        bad: impl FnMut(Option<u8>, BadBlock),
    ) -> Result<DiskCheckReport> {
        let report = self.check_in_use(progress, bad)?;
        self.format.check_while_idle().map_err(|e| self.mark_confidential(e))?;
        Ok(report)
    }

    /// As [`OpenDisk::check`], for a disk in use. Blocks written meanwhile are read before or after
    /// the write, and blocks that are still in memory count as good. On flash, the state of the
    /// keys is not compared, because it changes with every write.
    pub fn check_in_use(
        &self,
        mut progress: impl FnMut(u64) -> Result<()>,
        mut bad: impl FnMut(Option<u8>, BadBlock),
    ) -> Result<DiskCheckReport> {
        self.format.check(&mut progress, &mut bad).map_err(|e| self.mark_confidential(e))
    }

    /// The header, for one command at a time that changes passphrases while the disk is open.
    ///
    /// Errors: [`Kind::Busy`](lacuna_contracts::Kind::Busy) while another command has it, and for a
    /// disk that is open read-only.
    pub fn lease_header(&self) -> Result<HeaderLease<'_>> {
        self.header.lease()
    }

    /// Enlarges the disk while it is open, to `size` bytes or, without a size, to all of its block
    /// device; requests wait meanwhile. Returns the resulting parameters, even if nothing changed.
    ///
    /// Errors: those of [`resize`](crate::resize()), and
    /// [`Kind::Busy`](lacuna_contracts::Kind::Busy) for a disk that can grow only while it is
    /// closed.
    pub fn grow(&self, size: Option<u64>) -> Result<Box<dyn Params>> {
        self.format.grow(&self.header, size)
    }

    /// Whether a disk that was opened for rescue has a damaged journal: the last written blocks may
    /// then have older content.
    pub fn is_journal_damaged(&self) -> bool {
        self.format.is_journal_damaged()
    }

    /// The snapshot with an interrupted rollback to it, on a disk that was opened for rescue: each
    /// segment is then as before the rollback, or as at the snapshot.
    pub fn unfinished_rollback(&self) -> Option<&str> {
        self.format.unfinished_rollback()
    }

    /// The error of the table of snapshots, on a disk that was opened for rescue without it: its
    /// snapshots are lost, and a rollback may have been interrupted.
    pub fn table_error(&self) -> Option<&Error> {
        self.format.table_error()
    }

    /// A message for the user after opening.
    pub fn note(&self) -> Option<&'static str> {
        self.format.note()
    }

    /// Whether the format has levels, regardless of the number of open ones.
    pub fn has_levels(&self) -> bool {
        self.info.has_levels()
    }

    /// Writes the cover traffic of closing a disk with levels, at an even pace while a file system
    /// on it is being unmounted; [`Disk::close`] then does not repeat it. Does nothing for other
    /// disks.
    pub fn cover_closing(&self, pace: Pace) -> Result<()> {
        self.format.cover_closing(pace).map_err(|e| self.mark_confidential(e))
    }

    /// Sets whether a level stops waiting for cover: requests that would wait are then refused.
    /// Level 0 never waits. No effect on a level that is not open.
    pub fn give_up(&self, level: u64, gives_up: bool) {
        if level < self.format.levels().len() as u64 {
            self.format.give_up(level as u8, gives_up);
        }
    }

    /// The number of open levels; 1 for a format without levels.
    pub fn open_level_count(&self) -> usize {
        self.format.levels().len().max(1)
    }

    /// Blocks of all open levels together.
    pub fn total_blocks(&self) -> u64 {
        match self.format.levels() {
            [] => self.blocks(),
            levels => levels.iter().map(|level| level.blocks()).sum(),
        }
    }

    /// Whether the disk erases deleted data when it is purged ([`Disk::purge`]).
    pub fn can_purge(&self) -> bool {
        self.info.can_purge
    }

    /// Marks blocks as sensitive: on a disk with purging, data deleted among them is purged before
    /// the deleting call returns.
    pub fn mark_sensitive(&self, blocks: Range<u64>) {
        self.format.mark_sensitive(blocks);
    }

    /// The snapshots of the disk. Errors: [`Kind::Usage`](lacuna_contracts::Kind::Usage) if it has
    /// none.
    pub fn snapshots(&self) -> Result<&dyn Snapshots> {
        self.format.snapshots()
    }

    /// The name of the object with a block, for a disk on objects.
    pub fn object_name(&self, block: BlockAddr) -> Option<String> {
        self.format.object_name(block)
    }

    /// Whether another client of a cluster can take over the disk.
    pub fn can_be_taken_over(&self) -> bool {
        self.info.can_be_taken_over()
    }

    /// The error for a disk that another client has taken over.
    pub fn takeover_error(&self) -> Option<Error> {
        self.format.takeover_error()
    }

    /// Marks an error of the disk as private if necessary.
    fn mark_confidential(&self, e: Error) -> Error {
        mark_confidential(e, self.has_levels())
    }

    /// The same for the error of a request; the format records it first.
    fn record_error(&self, e: Error) -> Error {
        self.mark_confidential(self.format.record_error(e))
    }

    /// Makes a request durable before it is acknowledged, if writes must be.
    fn flush_if_required(&self) -> Result<()> {
        if self.format.needs_flush_per_write() { self.flush() } else { Ok(()) }
    }
}

/// Marks an error of opening or using a disk as private if necessary.
///
/// Deniability contract: all errors of a disk with levels are private, regardless of the format and
/// of the level. If only errors of hidden levels were private, the text that replaces them in a log
/// would reveal the level.
pub(crate) fn mark_confidential(e: Error, has_levels: bool) -> Error {
    if has_levels { e.confidential() } else { e }
}

impl Disk for OpenDisk {
    fn blocks(&self) -> u64 {
        self.format.disk().blocks()
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.format.disk().read(first, buf).map_err(|e| self.record_error(e))
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.format.disk().write(first, data).map_err(|e| self.record_error(e))?;
        self.flush_if_required()
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.format.disk().discard(first, count).map_err(|e| self.record_error(e))?;
        self.flush_if_required()
    }

    fn flush(&self) -> Result<()> {
        self.format.disk().flush().map_err(|e| self.record_error(e))
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.format.disk().extents(first, count).map_err(|e| self.mark_confidential(e))
    }

    fn purge(&self) -> Result<Status> {
        self.format.disk().purge()
    }

    fn status(&self) -> Status {
        self.format.disk().status()
    }

    fn close(&self) -> Result<()> {
        self.format.close().map_err(|e| self.mark_confidential(e))?;
        // All writes are durable, whatever becomes of the mark.
        let released = self.keeper.as_ref().map_or(Ok(()), |keeper| keeper.release());
        released.and(self.mark.as_ref().map_or(Ok(()), CloseMark::make))
    }

    fn is_read_only(&self) -> bool {
        self.format.disk().is_read_only()
    }
}
