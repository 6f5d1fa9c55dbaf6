//! Reads and verifies everything, many objects at a time.

use crate::segment::Segment;
use crate::versions::table::VersionTable;
use lacuna_contracts::{
    BLOCK_SIZE, BadBlock, BlockAddr, Disk, DiskCheckReport, Kind, Result, SEGMENT_BLOCKS, WipeOnDrop,
    check_buffer,
};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects read at a time.
const THREADS: u64 = 16;
/// Objects between two calls of the progress callback: it bounds the bad blocks held in memory.
const WINDOW: u64 = 64;

/// The result for one object.
type SegmentVerdict = Result<(DiskCheckReport, Vec<BadBlock>)>;

/// A disk to be checked, with its version table if it has one.
pub(crate) struct ObjectCheck<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) version_table: Option<&'a VersionTable>,
}

impl ObjectCheck<'_> {
    /// Reads every block.
    pub(crate) fn run(
        &self,
        mut progress: impl FnMut(u64) -> Result<()>,
        mut bad: impl FnMut(BadBlock),
    ) -> Result<DiskCheckReport> {
        let blocks = self.disk.blocks();
        let segments = blocks.div_ceil(SEGMENT_BLOCKS);
        let mut buffers = (0..THREADS.min(segments)).map(|_| check_buffer()).collect::<Result<Vec<_>>>()?;
        let mut report = DiskCheckReport::default();
        for first in (0..segments).step_by(WINDOW as usize) {
            let end = (first + WINDOW).min(segments);
            for verdict in self.check_window(first, end, &mut buffers) {
                let (found, blocks) = verdict?;
                report.add(found);
                blocks.into_iter().for_each(&mut bad);
            }
            progress((end * SEGMENT_BLOCKS).min(blocks))?;
        }
        Ok(report)
    }

    /// Checks some segments, one thread per buffer.
    fn check_window(&self, first: u64, end: u64, buffers: &mut [WipeOnDrop<Vec<u8>>]) -> Vec<SegmentVerdict> {
        let verdicts: Vec<SegmentVerdict> = (first..end).map(|_| Ok(<_>::default())).collect();
        let (next, verdicts) = (AtomicU64::new(first), Mutex::new(verdicts));
        let work = |buf: &mut WipeOnDrop<Vec<u8>>| {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return;
                }
                let verdict = self.check_segment(Segment(number), buf);
                verdicts.lock()[(number - first) as usize] = verdict;
            }
        };
        std::thread::scope(|scope| {
            let (own, others) = buffers.split_first_mut().expect("one buffer at least");
            for buf in others {
                scope.spawn(|| work(buf));
            }
            work(own);
        });
        verdicts.into_inner()
    }

    fn check_segment(&self, segment: Segment, buf: &mut [u8]) -> SegmentVerdict {
        let (mut report, mut bad) = (DiskCheckReport::default(), vec![]);
        let first = segment.block(0).0;
        let end = first + segment.blocks_on(self.disk.blocks());
        if let Some(Err(error)) = self.version_table.map(|version_table| version_table.verify_object(segment))
        {
            if !matches!(error.kind(), Kind::Corrupt | Kind::Io) {
                return Err(error);
            }
            // The object is not trusted as a whole: there is no need to try every block.
            report.bad = end - first;
            bad.extend((first..end).map(|block| BadBlock { block: BlockAddr(block), error: error.clone() }));
            return Ok((report, bad));
        }
        let steps = buf.len() / BLOCK_SIZE;
        for at in (first..end).step_by(steps) {
            let count = (end - at).min(steps as u64) as usize;
            report.read_range(self.disk, BlockAddr(at), &mut buf[..count * BLOCK_SIZE], &mut |block| {
                let error = block.error.context(segment);
                bad.push(BadBlock { error, ..block });
            })?;
        }
        Ok((report, bad))
    }
}
