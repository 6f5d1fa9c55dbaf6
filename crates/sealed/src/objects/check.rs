//! Reading and verifying everything, block by block, many objects at a time.

use super::disk::{Core, ObjectDisk};
use crate::SEGMENT_BLOCKS;
use crate::check::{BadBlock, CheckReport};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Error, Kind, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Objects read at a time.
const THREADS: u64 = 16;
/// Objects between two calls of the progress callback: what bad blocks may pile up in memory.
const WINDOW: u64 = 64;
/// Blocks read at a time.
const STEP: u64 = 256;

/// What was found in one object.
#[derive(Default)]
struct Verdict {
    report: CheckReport,
    bad: Vec<BadBlock>,
}

impl ObjectDisk {
    /// Reads every block, calling `progress` with blocks done and `bad`, in ascending order, with each block that
    /// fails and the object that it lies in. What can be verified is what the cipher protects: every bit of every
    /// object, and that it is there and not an older one, with `gcm`; readability alone with the others.
    ///
    /// Errors: only [`Kind::Memory`]; everything else is a verdict on a block.
    pub fn check(&self, mut progress: impl FnMut(u64), mut bad: impl FnMut(BadBlock)) -> Result<CheckReport> {
        let core = self.core();
        let segments = core.params.segments();
        let mut buffers = (0..THREADS.min(segments)).map(|_| buffer()).collect::<Result<Vec<_>>>()?;
        let mut report = CheckReport::default();
        for first in (0..segments).step_by(WINDOW as usize) {
            let end = (first + WINDOW).min(segments);
            for verdict in check_window(core, first, end, &mut buffers) {
                report.good += verdict.report.good;
                report.unwritten += verdict.report.unwritten;
                report.bad += verdict.report.bad;
                verdict.bad.into_iter().for_each(&mut bad);
            }
            progress((end * SEGMENT_BLOCKS).min(core.params.blocks));
        }
        Ok(report)
    }
}

fn buffer() -> Result<Vec<u8>> {
    let mut buf = Vec::new();
    buf.try_reserve_exact(STEP as usize * BLOCK_SIZE)
        .map_err(|_| Error::new(Kind::Memory, "no memory to check the disk"))?;
    buf.resize(STEP as usize * BLOCK_SIZE, 0);
    Ok(buf)
}

/// Checks some segments, one thread per buffer.
fn check_window(core: &Core, first: u64, end: u64, buffers: &mut [Vec<u8>]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    verdicts.resize_with((end - first) as usize, Verdict::default);
    let (next, verdicts) = (AtomicU64::new(first), Mutex::new(verdicts));
    let work = |buf: &mut Vec<u8>| {
        loop {
            let segment = next.fetch_add(1, Ordering::Relaxed);
            if segment >= end {
                return;
            }
            let verdict = check_segment(core, segment, buf);
            verdicts.lock().unwrap_or_else(PoisonError::into_inner)[(segment - first) as usize] = verdict;
        }
    };
    std::thread::scope(|scope| {
        let (own, others) = buffers.split_first_mut().expect("one buffer at least");
        for buf in others {
            scope.spawn(|| work(buf));
        }
        work(own);
    });
    verdicts.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn check_segment(core: &Core, segment: u64, buf: &mut [u8]) -> Verdict {
    let mut verdict = Verdict::default();
    let first = segment * SEGMENT_BLOCKS;
    let end = (first + SEGMENT_BLOCKS).min(core.params.blocks);
    if let Some(Err(error)) = core.ledger.as_ref().map(|ledger| ledger.touch(segment)) {
        // Nothing of the object is believed: there is no need to try every block.
        (first..end).for_each(|block| verdict.add_bad(block, error.clone()));
        return verdict;
    }
    let mut at = first;
    while at < end {
        if core.is_absent(segment) {
            verdict.report.unwritten += end - at;
            return verdict;
        }
        let count = (end - at).min(STEP);
        verdict.add_run(core, at, &mut buf[..count as usize * BLOCK_SIZE]);
        at += count;
    }
    verdict
}

impl Verdict {
    fn add_bad(&mut self, block: u64, error: Error) {
        self.report.bad += 1;
        self.bad.push(BadBlock { block: BlockAddr(block), error });
    }

    fn add_run(&mut self, core: &Core, first: u64, buf: &mut [u8]) {
        let count = (buf.len() / BLOCK_SIZE) as u64;
        let object = first / SEGMENT_BLOCKS;
        let written = core.written(first, count).unwrap_or_else(|_| vec![true; count as usize]);
        let whole = core.read(first, buf).is_ok();
        for (block, (written, buf)) in
            (first..).zip(written.into_iter().zip(buf.chunks_exact_mut(BLOCK_SIZE)))
        {
            let read = if whole { Ok(()) } else { core.read(block, buf) };
            match read {
                Ok(()) if written => self.report.good += 1,
                Ok(()) => self.report.unwritten += 1,
                Err(error) => self.add_bad(block, error.context(format!("object {object:016x}"))),
            }
        }
    }
}
