//! Reading and verifying everything, block by block.

use crate::disk::Sealed;
use crate::geometry::SEGMENT_BLOCKS;
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk, Error, Kind, Result};

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

impl Sealed {
    /// Reads every block, calling `progress` with blocks done and `bad` with each block that fails. What can be
    /// verified is what the cipher protects: every bit with `gcm`, readability alone with the others.
    ///
    /// Errors: only [`Kind::Memory`]; everything else is a verdict on a block.
    pub fn check(&self, mut progress: impl FnMut(u64), mut bad: impl FnMut(BadBlock)) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        let mut buf = Vec::new();
        buf.try_reserve_exact(STEP as usize * BLOCK_SIZE)
            .map_err(|_| Error::new(Kind::Memory, "no memory to check the disk"))?;
        buf.resize(STEP as usize * BLOCK_SIZE, 0);
        let mut at = 0;
        while at < self.blocks() {
            let in_segment = (SEGMENT_BLOCKS - at % SEGMENT_BLOCKS).min(self.blocks() - at);
            if let Ok(true) = self.core().is_untouched(at / SEGMENT_BLOCKS) {
                report.unwritten += in_segment;
                at += in_segment;
            } else {
                let count = in_segment.min(STEP);
                self.check_run(at, &mut buf[..count as usize * BLOCK_SIZE], &mut report, &mut bad);
                at += count;
            }
            progress(at);
        }
        Ok(report)
    }

    fn check_run(
        &self,
        first: u64,
        buf: &mut [u8],
        report: &mut CheckReport,
        bad: &mut impl FnMut(BadBlock),
    ) {
        let count = (buf.len() / BLOCK_SIZE) as u64;
        let written = self.core().written(first, count).unwrap_or_else(|_| vec![true; count as usize]);
        let whole = self.read(BlockAddr(first), buf).is_ok();
        for (block, (written, buf)) in
            (first..).zip(written.into_iter().zip(buf.chunks_exact_mut(BLOCK_SIZE)))
        {
            let verdict = if whole { Ok(()) } else { self.read(BlockAddr(block), buf) };
            match verdict {
                Ok(()) if written => report.good += 1,
                Ok(()) => report.unwritten += 1,
                Err(error) => {
                    report.bad += 1;
                    bad(BadBlock { block: BlockAddr(block), error });
                }
            }
        }
    }
}
