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
        read_range(disk, first, buf, Tolerated::Damage, &mut |block, reading| {
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
/// Errors: those that are not `tolerated`, and an error of `each`.
fn read_range(
    disk: &dyn Disk,
    first: BlockAddr,
    buf: &mut [u8],
    tolerated: Tolerated,
    each: &mut dyn FnMut(BlockAddr, ReadOutcome<'_>) -> Result<()>,
) -> Result<()> {
    let count = (buf.len() / BLOCK_SIZE) as u64;
    let runs = match disk.extents(first, count) {
        Ok(runs) => runs,
        Err(e) => match tolerated.check(e)? {
            e if e.kind() == Kind::TimedOut => return lose(first.0..first.0 + count, &e, each),
            // The extents cannot be read: all blocks are tried.
            _ => vec![Extent { blocks: count, written: true }],
        },
    };
    let mut at = first.0;
    for run in runs {
        if run.written {
            read_run(disk, at, &mut buf[..run.blocks as usize * BLOCK_SIZE], tolerated, each)?;
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
    tolerated: Tolerated,
    each: &mut dyn FnMut(BlockAddr, ReadOutcome<'_>) -> Result<()>,
) -> Result<()> {
    let end = first + (buf.len() / BLOCK_SIZE) as u64;
    let Err(e) = disk.read(BlockAddr(first), buf) else {
        return each(BlockAddr(first), ReadOutcome::Good(buf));
    };
    let e = tolerated.check(e)?;
    if e.kind() == Kind::TimedOut {
        return lose(first..end, &e, each);
    }
    // One by one, to find the bad blocks.
    for block in first..end {
        let buf = &mut buf[..BLOCK_SIZE];
        let Err(e) = disk.read(BlockAddr(block), buf) else {
            each(BlockAddr(block), ReadOutcome::Good(buf))?;
            continue;
        };
        let e = tolerated.check(e)?;
        if e.kind() == Kind::TimedOut {
            return lose(block..end, &e, each);
        }
        each(BlockAddr(block), ReadOutcome::Bad(e))?;
    }
    Ok(())
}

/// Reports blocks of a place that did not answer as bad, without trying them one by one: each
/// attempt would take the whole timeout.
fn lose(
    blocks: Range<u64>,
    why: &Error,
    each: &mut dyn FnMut(BlockAddr, ReadOutcome<'_>) -> Result<()>,
) -> Result<()> {
    for block in blocks {
        each(BlockAddr(block), ReadOutcome::Bad(why.clone()))?;
    }
    Ok(())
}

/// The errors of a read that concern its blocks alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tolerated {
    /// Damage.
    Damage,
    /// Damage, and a place that does not answer in time: a part of a cluster, say.
    DamageAndSilence,
}

impl Tolerated {
    /// Returns an error that concerns blocks alone as `Ok`, and any other error as `Err`.
    fn check(self, e: Error) -> Result<Error> {
        match e.kind() {
            Kind::Corrupt | Kind::Io => Ok(e),
            Kind::TimedOut if self == Tolerated::DamageAndSilence => Ok(e),
            _ => Err(e),
        }
    }
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
/// A place that does not answer ([`Kind::TimedOut`]) loses the rest of at most 256 blocks, which do
/// not cross a segment; the blocks behind them are tried.
///
/// Errors: no error for such blocks and for damaged ones ([`Kind::Corrupt`], [`Kind::Io`]), which
/// are a [`ReadOutcome::Bad`]; any other error of a read, [`Kind::Memory`], and an error of `each`.
pub fn read_blocks(
    disk: &dyn Disk,
    blocks: Range<u64>,
    mut each: impl FnMut(BlockAddr, ReadOutcome<'_>) -> Result<()>,
) -> Result<()> {
    let mut buf = check_buffer()?;
    let Range { start: mut first, end } = blocks;
    while first < end {
        let count = (STEP - first % STEP).min(end - first);
        let buf = &mut buf[..count as usize * BLOCK_SIZE];
        read_range(disk, BlockAddr(first), buf, Tolerated::DamageAndSilence, &mut each)?;
        first += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use std::sync::Mutex;

    const BLOCKS: u64 = 3 * 1024;

    /// A disk of stamped blocks with a place that fails; it counts the calls for that place.
    struct FailingPlace {
        place: Range<u64>,
        kind: Kind,
        fails_for_extents: bool,
        failed_calls: Mutex<u64>,
    }

    impl FailingPlace {
        fn new(place: Range<u64>, kind: Kind, fails_for_extents: bool) -> FailingPlace {
            FailingPlace { place, kind, fails_for_extents, failed_calls: Mutex::new(0) }
        }

        fn call(&self, first: u64, count: u64) -> Result<()> {
            if first >= self.place.end || first + count <= self.place.start {
                return Ok(());
            }
            *self.failed_calls.lock().unwrap() += 1;
            Err(Error::new(self.kind, "no answer"))
        }
    }

    impl Disk for FailingPlace {
        fn blocks(&self) -> u64 {
            BLOCKS
        }
        fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
            self.call(first.0, (buf.len() / BLOCK_SIZE) as u64)?;
            for (block, out) in (first.0..).zip(buf.chunks_mut(BLOCK_SIZE)) {
                out.fill(block as u8);
            }
            Ok(())
        }
        fn write(&self, _: BlockAddr, _: &[u8]) -> Result<()> {
            Ok(())
        }
        fn discard(&self, _: BlockAddr, _: u64) -> Result<()> {
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
        fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
            if self.fails_for_extents {
                self.call(first.0, count)?;
            }
            Ok(vec![Extent { blocks: count, written: true }])
        }
        fn status(&self) -> Status {
            Status::default()
        }
        fn close(&self) -> Result<()> {
            Ok(())
        }
    }

    /// The blocks that a rescue of these blocks loses. All other blocks have their content.
    fn lost(disk: &FailingPlace, blocks: Range<u64>) -> Vec<u64> {
        let (mut lost, mut next) = (vec![], blocks.start);
        read_blocks(disk, blocks.clone(), |first, reading| {
            assert_eq!(first.0, next);
            next += match reading {
                ReadOutcome::Good(content) => {
                    for (block, data) in (first.0..).zip(content.chunks(BLOCK_SIZE)) {
                        assert!(data.iter().all(|byte| *byte == block as u8), "block {block}");
                    }
                    (content.len() / BLOCK_SIZE) as u64
                }
                ReadOutcome::Unwritten(blocks) => blocks,
                ReadOutcome::Bad(_) => {
                    lost.push(first.0);
                    1
                }
            };
            Ok(())
        })
        .unwrap();
        assert_eq!(next, blocks.end);
        lost
    }

    #[test]
    fn a_segment_without_an_answer_costs_a_rescue_only_its_own_blocks() {
        for fails_for_extents in [false, true] {
            for blocks in [0..BLOCKS, 1000..BLOCKS, 1030..2050] {
                let disk = FailingPlace::new(1024..2048, Kind::TimedOut, fails_for_extents);
                let silent: Vec<u64> = (1024.max(blocks.start)..2048).collect();
                assert_eq!(lost(&disk, blocks), silent);
                // Not one call for each block: each takes the whole timeout.
                assert_eq!(disk.failed_calls.into_inner().unwrap(), 4);
            }
        }
    }

    #[test]
    fn damage_costs_single_blocks_and_silence_ends_a_check() {
        for kind in [Kind::Corrupt, Kind::Io] {
            let disk = FailingPlace::new(1100..1102, kind, false);
            assert_eq!(lost(&disk, 0..BLOCKS), [1100, 1101]);
            assert_eq!(check_disk(&disk, |_| Ok(()), |_| ()).unwrap().bad, 2);
        }
        let disk = FailingPlace::new(1100..1102, Kind::TimedOut, false);
        let ended = check_disk(&disk, |_| Ok(()), |_| ());
        assert_eq!(ended.unwrap_err().kind(), Kind::TimedOut);
        let disk = FailingPlace::new(1100..1102, Kind::Fenced, false);
        let ended = read_blocks(&disk, 0..BLOCKS, |_, _| Ok(()));
        assert_eq!(ended.unwrap_err().kind(), Kind::Fenced);
    }
}
