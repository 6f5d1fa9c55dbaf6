//! Reading and verifying every block of a disk.

use crate::{BLOCK_SIZE, BlockAddr, Disk, Error, Extent, Kind, Result, WipeOnDrop};
use std::ops::Range;

/// Blocks read at a time.
const STEP: u64 = 256;

/// A block that cannot be read.
pub struct BadBlock {
    /// Its number.
    pub block: BlockAddr,
    /// The error of the read.
    pub error: Error,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCheckReport {
    /// Blocks that were written and were read without error.
    pub good: u64,
    /// Blocks never written, or discarded.
    pub unwritten: u64,
    /// Blocks that could not be read or did not verify.
    pub bad: u64,
}

impl DiskCheckReport {
    /// Adds the counts of another report.
    pub fn add(&mut self, other: DiskCheckReport) {
        self.good += other.good;
        self.unwritten += other.unwritten;
        self.bad += other.bad;
    }

    /// Reads the written blocks of a range and calls `bad` with each that cannot be read. The range
    /// is as long as `buf`, a whole number of blocks; the content of `buf` is unspecified
    /// afterwards.
    ///
    /// Errors: no error for damaged blocks ([`Kind::Corrupt`], [`Kind::Io`]), which go to `bad`;
    /// any other error ends the check.
    pub fn read_range(
        &mut self,
        disk: &dyn Disk,
        first: BlockAddr,
        buf: &mut [u8],
        bad: &mut dyn FnMut(BadBlock),
    ) -> Result<()> {
        read_range(disk, first, buf, &mut |block, reading| {
            self.count(&reading);
            if let ReadOutcome::Bad(error) = reading {
                bad(BadBlock { block, error });
            }
            Ok(())
        })
    }

    /// Counts a reading.
    pub fn count(&mut self, reading: &ReadOutcome<'_>) {
        match reading {
            ReadOutcome::Good(content) => self.good += (content.len() / BLOCK_SIZE) as u64,
            ReadOutcome::Unwritten(blocks) => self.unwritten += blocks,
            ReadOutcome::Bad(_) => self.bad += 1,
        }
    }
}

/// Result of reading one block, or a run of adjacent blocks with the same result.
pub enum ReadOutcome<'b> {
    /// The blocks were written, and this is their content, verified as far as the cipher permits.
    Good(&'b [u8]),
    /// This number of blocks was never written, or was discarded; they read as zeros.
    Unwritten(u64),
    /// One block that cannot be read or does not verify.
    Bad(Error),
}

/// Reads a range and calls `each` for every run of adjacent blocks with the same result, with its
/// first block, in order. The range is as long as `buf`, a whole number of blocks.
///
/// Errors: those of [`read_blocks`], except [`Kind::Memory`].
fn read_range(
    disk: &dyn Disk,
    first: BlockAddr,
    buf: &mut [u8],
    each: &mut dyn FnMut(BlockAddr, ReadOutcome<'_>) -> Result<()>,
) -> Result<()> {
    let count = (buf.len() / BLOCK_SIZE) as u64;
    // If the extents cannot be read, all blocks are tried.
    let unknown = |e| damage(e).map(|_| vec![Extent { blocks: count, written: true }]);
    let mut at = first.0;
    for run in disk.extents(first, count).or_else(unknown)? {
        if run.written {
            read_run(disk, at, &mut buf[..run.blocks as usize * BLOCK_SIZE], each)?;
        } else {
            each(BlockAddr(at), ReadOutcome::Unwritten(run.blocks))?;
        }
        at += run.blocks;
    }
    Ok(())
}

fn read_run(
    disk: &dyn Disk,
    first: u64,
    buf: &mut [u8],
    each: &mut dyn FnMut(BlockAddr, ReadOutcome<'_>) -> Result<()>,
) -> Result<()> {
    let count = (buf.len() / BLOCK_SIZE) as u64;
    let Err(e) = disk.read(BlockAddr(first), buf) else {
        return each(BlockAddr(first), ReadOutcome::Good(buf));
    };
    damage(e)?;
    // One by one, to find the bad blocks.
    for block in (first..first + count).map(BlockAddr) {
        let buf = &mut buf[..BLOCK_SIZE];
        let read = disk.read(block, buf);
        each(block, read.map_or_else(ReadOutcome::Bad, |()| ReadOutcome::Good(buf)))?;
    }
    Ok(())
}

/// Returns an error that concerns blocks as `Ok`, and any other error as `Err`.
fn damage(e: Error) -> Result<Error> {
    if matches!(e.kind(), Kind::Corrupt | Kind::Io) { Ok(e) } else { Err(e) }
}

/// A buffer to check blocks with, wiped on drop. Errors: [`Kind::Memory`].
pub fn check_buffer() -> Result<WipeOnDrop<Vec<u8>>> {
    let mut buf = Vec::new();
    buf.try_reserve_exact(STEP as usize * BLOCK_SIZE)
        .map_err(|_| Error::new(Kind::Memory, "no memory to check the disk"))?;
    buf.resize(STEP as usize * BLOCK_SIZE, 0);
    Ok(WipeOnDrop::new(buf))
}

/// Reads every written block of a disk. Calls `progress` with the number of blocks done, and `bad`
/// with each block that fails. The cipher limits the verification: one that authenticates verifies
/// every bit, any other verifies only that the block can be read.
///
/// Errors: as [`DiskCheckReport::read_range`], [`Kind::Memory`], and an error of `progress`, which
/// ends the check.
pub fn check_disk(
    disk: &dyn Disk,
    mut progress: impl FnMut(u64) -> Result<()>,
    mut bad: impl FnMut(BadBlock),
) -> Result<DiskCheckReport> {
    let mut report = DiskCheckReport::default();
    let mut buf = check_buffer()?;
    for first in (0..disk.blocks()).step_by(STEP as usize) {
        let count = STEP.min(disk.blocks() - first);
        report.read_range(disk, BlockAddr(first), &mut buf[..count as usize * BLOCK_SIZE], &mut bad)?;
        progress(first + count)?;
    }
    Ok(report)
}

/// Reads these blocks, which must lie on the disk, and calls `each` for every run of adjacent
/// blocks with the same result, with its first block, in order.
///
/// Errors: no error for damaged blocks ([`Kind::Corrupt`], [`Kind::Io`]), which are a
/// [`ReadOutcome::Bad`]; any other error of a read, [`Kind::Memory`], and an error of `each`.
pub fn read_blocks(
    disk: &dyn Disk,
    blocks: Range<u64>,
    mut each: impl FnMut(BlockAddr, ReadOutcome<'_>) -> Result<()>,
) -> Result<()> {
    let mut buf = check_buffer()?;
    let end = blocks.end;
    for first in blocks.step_by(STEP as usize) {
        let count = STEP.min(end - first);
        read_range(disk, BlockAddr(first), &mut buf[..count as usize * BLOCK_SIZE], &mut each)?;
    }
    Ok(())
}
