//! Reading and verifying every block of a disk.

use crate::{BLOCK_SIZE, BlockAddr, Disk, Error, Extent, Kind, Plain, Result};
use std::ops::Range;

/// Blocks read at a time.
const STEP: u64 = 256;

/// A block that cannot be read.
pub struct BadBlock {
    /// Which.
    pub block: BlockAddr,
    /// Why.
    pub error: Error,
}

/// What a check found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Blocks that were written and read well.
    pub good: u64,
    /// Blocks never written, or discarded.
    pub unwritten: u64,
    /// Blocks that cannot be read or do not verify.
    pub bad: u64,
}

impl CheckReport {
    /// Adds what was found elsewhere.
    pub fn add(&mut self, other: CheckReport) {
        self.good += other.good;
        self.unwritten += other.unwritten;
        self.bad += other.bad;
    }

    /// Reads the written blocks of a range and calls `bad` with each that cannot be read. The range
    /// is as long as `buf`, a whole number of blocks, whose content is of no use afterwards.
    ///
    /// Errors: none for what is damaged ([`Kind::Corrupt`], [`Kind::Io`]), which is a verdict on a
    /// block; anything else that stops reading.
    pub fn read_range(
        &mut self,
        disk: &dyn Disk,
        first: BlockAddr,
        buf: &mut [u8],
        bad: &mut dyn FnMut(BadBlock),
    ) -> Result<()> {
        read_range(disk, first, buf, &mut |block, reading| {
            self.count(&reading);
            if let Reading::Bad(error) = reading {
                bad(BadBlock { block, error });
            }
            Ok(())
        })
    }

    /// Counts what was read.
    pub fn count(&mut self, reading: &Reading<'_>) {
        match reading {
            Reading::Good(content) => self.good += (content.len() / BLOCK_SIZE) as u64,
            Reading::Unwritten(blocks) => self.unwritten += blocks,
            Reading::Bad(_) => self.bad += 1,
        }
    }
}

/// What came of reading a block, or neighbours of which the same is true.
pub enum Reading<'b> {
    /// They were written, and this is their content: verified as far as the cipher lets it be.
    Good(&'b [u8]),
    /// So many were never written, or were discarded, and read as zeros.
    Unwritten(u64),
    /// One that cannot be read or does not verify.
    Bad(Error),
}

/// Reads a range and calls `each` with the first block and the reading of every run of neighbours,
/// in order. The range is as long as `buf`, a whole number of blocks.
///
/// Errors: those of [`read_blocks`], for want of memory apart.
fn read_range(
    disk: &dyn Disk,
    first: BlockAddr,
    buf: &mut [u8],
    each: &mut dyn FnMut(BlockAddr, Reading<'_>) -> Result<()>,
) -> Result<()> {
    let count = (buf.len() / BLOCK_SIZE) as u64;
    // Where it cannot be read which blocks are written, all of them are tried.
    let unknown = |e| damage(e).map(|_| vec![Extent { blocks: count, written: true }]);
    let mut at = first.0;
    for run in disk.extents(first, count).or_else(unknown)? {
        if run.written {
            read_run(disk, at, &mut buf[..run.blocks as usize * BLOCK_SIZE], each)?;
        } else {
            each(BlockAddr(at), Reading::Unwritten(run.blocks))?;
        }
        at += run.blocks;
    }
    Ok(())
}

fn read_run(
    disk: &dyn Disk,
    first: u64,
    buf: &mut [u8],
    each: &mut dyn FnMut(BlockAddr, Reading<'_>) -> Result<()>,
) -> Result<()> {
    let count = (buf.len() / BLOCK_SIZE) as u64;
    let Err(e) = disk.read(BlockAddr(first), buf) else { return each(BlockAddr(first), Reading::Good(buf)) };
    damage(e)?;
    // One by one, to know which.
    for block in (first..first + count).map(BlockAddr) {
        let buf = &mut buf[..BLOCK_SIZE];
        let read = disk.read(block, buf);
        each(block, read.map_or_else(Reading::Bad, |()| Reading::Good(buf)))?;
    }
    Ok(())
}

/// An error that says something about blocks; any other is given back.
fn damage(e: Error) -> Result<Error> {
    if matches!(e.kind(), Kind::Corrupt | Kind::Io) { Ok(e) } else { Err(e) }
}

/// Memory for reading blocks of a check, wiped on drop. Errors: [`Kind::Memory`].
pub fn check_buffer() -> Result<Plain<Vec<u8>>> {
    let mut buf = Vec::new();
    buf.try_reserve_exact(STEP as usize * BLOCK_SIZE)
        .map_err(|_| Error::new(Kind::Memory, "no memory to check the disk"))?;
    buf.resize(STEP as usize * BLOCK_SIZE, 0);
    Ok(Plain::new(buf))
}

/// Reads every written block of a disk, calling `progress` with blocks done and `bad` with each
/// block that fails. What can be verified is what the cipher protects: every bit with one that
/// authenticates, readability alone with others.
///
/// Errors: as [`CheckReport::read_range`], [`Kind::Memory`], and what `progress` says, which ends
/// the check.
pub fn check(
    disk: &dyn Disk,
    mut progress: impl FnMut(u64) -> Result<()>,
    mut bad: impl FnMut(BadBlock),
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let mut buf = check_buffer()?;
    for first in (0..disk.blocks()).step_by(STEP as usize) {
        let count = STEP.min(disk.blocks() - first);
        report.read_range(disk, BlockAddr(first), &mut buf[..count as usize * BLOCK_SIZE], &mut bad)?;
        progress(first + count)?;
    }
    Ok(report)
}

/// Reads these blocks of a disk, which has them, and calls `each` with the first block and the
/// reading of every run of neighbours, in order.
///
/// Errors: none for what is damaged ([`Kind::Corrupt`], [`Kind::Io`]), which is a reading of a
/// block; anything else that stops reading, [`Kind::Memory`], and what `each` says.
pub fn read_blocks(
    disk: &dyn Disk,
    blocks: Range<u64>,
    mut each: impl FnMut(BlockAddr, Reading<'_>) -> Result<()>,
) -> Result<()> {
    let mut buf = check_buffer()?;
    let end = blocks.end;
    for first in blocks.step_by(STEP as usize) {
        let count = STEP.min(end - first);
        read_range(disk, BlockAddr(first), &mut buf[..count as usize * BLOCK_SIZE], &mut each)?;
    }
    Ok(())
}
