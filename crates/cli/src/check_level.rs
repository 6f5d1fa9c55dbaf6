//! Reading every block of one level of a disk that verifies what it reads.

use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk, Error, Extent, Kind, Result};
use lacuna_sealed::{BadBlock, CheckReport};

/// Blocks read at a time.
const STEP: u64 = 256;

/// Reads and verifies every written block, telling `progress` how many blocks are done and `bad` of each that fails.
pub fn run(
    disk: &dyn Disk,
    mut progress: impl FnMut(u64),
    mut bad: impl FnMut(BadBlock),
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let mut buf = vec![0; STEP as usize * BLOCK_SIZE];
    let mut at = 0;
    while at < disk.blocks() {
        let step = STEP.min(disk.blocks() - at);
        let mut first = at;
        // Where a page of the map cannot be read nobody knows which blocks are written: all of them are tried.
        let unknown = |e: Error| match e.kind() {
            Kind::Corrupt | Kind::Io => Ok(vec![Extent { blocks: step, written: true }]),
            _ => Err(e),
        };
        for run in disk.extents(BlockAddr(at), step).or_else(unknown)? {
            if run.written {
                run_of(disk, first, run.blocks, &mut buf, &mut report, &mut bad)?;
            } else {
                report.unwritten += run.blocks;
            }
            first += run.blocks;
        }
        at += step;
        progress(at);
    }
    Ok(report)
}

fn run_of(
    disk: &dyn Disk,
    first: u64,
    count: u64,
    buf: &mut [u8],
    report: &mut CheckReport,
    bad: &mut impl FnMut(BadBlock),
) -> Result<()> {
    let buf = &mut buf[..count as usize * BLOCK_SIZE];
    match disk.read(BlockAddr(first), buf) {
        Ok(()) => report.good += count,
        Err(e) if !matches!(e.kind(), Kind::Corrupt | Kind::Io) => return Err(e),
        // One by one, to know which.
        Err(_) => {
            for block in first..first + count {
                match disk.read(BlockAddr(block), &mut buf[..BLOCK_SIZE]) {
                    Ok(()) => report.good += 1,
                    Err(error) => {
                        report.bad += 1;
                        bad(BadBlock { block: BlockAddr(block), error });
                    }
                }
            }
        }
    }
    Ok(())
}
