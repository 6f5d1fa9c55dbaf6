//! BLOCK_STATUS: which parts of a range are written, with byte precision.

use crate::wire::STATE_HOLE_ZERO;
use lacuna_contracts::{BLOCK_SIZE, ByteDisk, Error, Kind, Result};

/// Range of one query to the disk; it bounds the answer to 256 KiB.
const WINDOW: u64 = 64 << 20;
/// Maximum number of extents in one reply.
const MAX_EXTENTS: usize = 4096;
const BLOCK: u64 = BLOCK_SIZE as u64;

pub(crate) fn in_range(disk: &ByteDisk, offset: u64, length: u64) -> bool {
    offset.checked_add(length).is_some_and(|end| end <= disk.len())
}

/// Descriptors that begin exactly at `offset`, with equal neighbours merged, and never go past
/// `offset + length`. A reply that would be too long ends early; the client asks again from there.
pub(crate) fn block_status(disk: &ByteDisk, offset: u64, length: u64, only_one: bool) -> Result<Vec<u8>> {
    if !in_range(disk, offset, length) {
        return Err(Error::new(Kind::Usage, "request outside the disk"));
    }
    let mut runs = StatusRuns { runs: Vec::new(), limit: if only_one { 1 } else { MAX_EXTENTS } };
    let (mut at, end) = (offset, offset + length);
    while at < end {
        let window_end = end.min(at + WINDOW);
        let found = match disk.extents(at, window_end - at) {
            Ok(found) => found,
            Err(error) if runs.runs.is_empty() => return Err(error),
            // The extents found so far are a valid answer; a query for the rest may fail again.
            Err(_) => break,
        };
        let mut run_end = at / BLOCK * BLOCK;
        for extent in found {
            run_end = run_end.saturating_add(extent.blocks.saturating_mul(BLOCK));
            let len = run_end.min(window_end).saturating_sub(at);
            if !runs.push(len, extent.written) {
                return Ok(runs.bytes());
            }
            at += len;
        }
        // A range without an answer from the disk may hold data.
        if !runs.push(window_end - at, true) {
            break;
        }
        at = window_end;
    }
    Ok(runs.bytes())
}

struct StatusRuns {
    runs: Vec<(u64, bool)>,
    limit: usize,
}

impl StatusRuns {
    /// Returns `false` when there is no room for another run.
    fn push(&mut self, len: u64, written: bool) -> bool {
        if len == 0 {
            return true;
        }
        let full = self.runs.len() == self.limit;
        match self.runs.last_mut() {
            Some((last, state)) if *state == written => *last += len,
            _ if full => return false,
            _ => self.runs.push((len, written)),
        }
        true
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.runs.len() * 8);
        for (len, written) in &self.runs {
            // A request is shorter than 4 GiB, and so is every run within it.
            bytes.extend((*len as u32).to_be_bytes());
            bytes.extend(if *written { 0 } else { STATE_HOLE_ZERO }.to_be_bytes());
        }
        bytes
    }
}
