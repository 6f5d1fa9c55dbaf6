//! Writing a map out: which pages were changed, and the cycle that writes them, leaves first.

use super::{PageSource, Tree};
use crate::entry::Entry;
use crate::map_size::FANOUT;
use lacuna_core::Result;
use std::collections::BTreeSet;

/// Where a cycle stands: which depth it writes, what of it is left, and where it began.
pub(super) struct Cycle {
    pub(super) depth: usize,
    pub(super) queue: BTreeSet<u64>,
    pub(super) started: u64,
}

impl Tree {
    fn is_queued(&self, depth: usize, index: u64) -> bool {
        is_queued(self.cycle.as_ref(), depth, index)
    }

    pub(super) fn mark_dirty(&mut self, depth: usize, index: u64) {
        if !self.is_queued(depth, index) {
            self.dirty[depth].insert(index);
        }
    }

    /// Marks the page that says where this one is, if there is one.
    pub(super) fn mark_above(&mut self, depth: usize, index: u64) {
        if depth + 1 < self.depths() {
            self.mark_dirty(depth + 1, index / FANOUT);
        }
    }

    /// How many pages stripe `seq` should take so that the cycle ends in time and the changed leaves fit the cache.
    /// Begins a cycle when one is due.
    pub fn due(&mut self, seq: u64) -> usize {
        if self.cycle.is_none() {
            if self.dirty.iter().all(BTreeSet::is_empty) {
                // Whatever was changed before this stripe is in pages that were written before it.
                self.state.covered = seq - 1;
                self.last_start = seq;
                return 0;
            }
            let crowded = self.dirty[0].len() > self.most_dirty;
            if seq < self.last_start + self.cycle_len && !crowded {
                return 0;
            }
            self.last_start = seq;
            let queue = std::mem::take(&mut self.dirty[0]);
            self.cycle = Some(Cycle { depth: 0, queue, started: seq });
        }
        let cycle = self.cycle.as_ref().expect("one was just begun");
        let above: usize = self.pages[1..].iter().map(|pages| pages.len().min(cycle.queue.len() + 1)).sum();
        let left = (cycle.started + self.cycle_len / 2).saturating_sub(seq).max(1);
        let paced = (cycle.queue.len() + above).div_ceil(left as usize);
        let crowd = (cycle.queue.len() + self.dirty[0].len()).saturating_sub(self.most_dirty);
        // At least one, for it is asking for a page that finds out that there are no more.
        paced.max(crowd.min(usize::from(u8::MAX))).max(1)
    }

    /// Writes the next page of the cycle, to lie at `place`. None if the cycle has none left, which ends it.
    pub fn emit(&mut self, place: u64, source: &dyn PageSource, block: &mut [u8]) -> Result<Option<Entry>> {
        let top = self.depths() - 1;
        loop {
            let Some(cycle) = &mut self.cycle else { return Ok(None) };
            let depth = cycle.depth;
            let Some(index) = cycle.queue.pop_first() else {
                if depth == top {
                    self.state.covered = cycle.started - 1;
                    self.cycle = None;
                    return Ok(None);
                }
                cycle.depth += 1;
                cycle.queue = std::mem::take(&mut self.dirty[depth + 1]);
                continue;
            };
            let empty = match self.encode(depth, index, source, block) {
                Ok(empty) => empty,
                Err(e) => {
                    self.cycle.as_mut().expect("it goes on").queue.insert(index);
                    return Err(e);
                }
            };
            let listed = &mut self.pages[depth][index as usize];
            if empty && *listed == 0 {
                continue;
            }
            // A page that has become empty is written all the same: a crash must not find the one before it.
            self.state.pages = self.state.pages.saturating_add(u64::from(*listed == 0));
            *listed = place;
            self.mark_above(depth, index);
            return Ok(Some(Entry::Page { depth: depth as u8, index }));
        }
    }

    /// Serialises a page. Returns whether it is empty.
    fn encode(
        &mut self,
        depth: usize,
        index: u64,
        source: &dyn PageSource,
        block: &mut [u8],
    ) -> Result<bool> {
        let write = |places: &mut dyn Iterator<Item = u64>, block: &mut [u8]| {
            block.fill(0);
            let mut empty = true;
            for (out, packed) in block.chunks_exact_mut(8).zip(places) {
                out.copy_from_slice(&packed.to_le_bytes());
                empty &= packed == 0;
            }
            empty
        };
        if depth == 0 {
            self.cache(index, source)?;
            let empty = write(&mut self.leaves.places(index).iter().copied(), block);
            self.leaves.written(index);
            return Ok(empty);
        }
        let below = &self.pages[depth - 1];
        let first = (index * FANOUT) as usize;
        let end = below.len().min(first + FANOUT as usize);
        Ok(write(&mut below[first..end].iter().copied(), block))
    }
}

/// Whether a running cycle is going to write a page.
fn is_queued(cycle: Option<&Cycle>, depth: usize, index: u64) -> bool {
    cycle.is_some_and(|cycle| cycle.depth == depth && cycle.queue.contains(&index))
}

/// Whether a page is to be written.
pub(super) fn is_dirty(dirty: &[BTreeSet<u64>], cycle: Option<&Cycle>, depth: usize, index: u64) -> bool {
    dirty[depth].contains(&index) || is_queued(cycle, depth, index)
}
