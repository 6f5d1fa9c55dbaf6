//! The pages of a map that are to be written out, and the cycle that writes them: leaves first,
//! then the pages that point at them, up to the top.
//!
//! Invariant: a page that changes while a cycle runs is written once more, in this cycle if the
//! cycle has not passed its depth, in the next one otherwise; it is never forgotten.

use crate::map_size::FANOUT;
use std::collections::BTreeSet;

/// A running cycle: the depth that it writes, the pages left there, and the write to the medium
/// that it began with.
struct Cycle {
    depth: usize,
    queue: BTreeSet<u64>,
    first_write: u64,
}

/// The pages of a map that wait to be written.
pub(crate) struct DirtyPages {
    /// Pages changed since they were last written, for each depth. At the depth of a running cycle:
    /// pages changed since this cycle wrote them.
    dirty: Vec<BTreeSet<u64>>,
    cycle: Option<Cycle>,
    last_start: u64,
    /// Writes to the medium between the beginnings of two cycles.
    cycle_len: u64,
    /// The most leaves that may wait to be written.
    max_dirty: usize,
}

/// The next step of a cycle.
pub(crate) enum CycleStep {
    /// Write the page of this depth and index.
    Page(usize, u64),
    /// None: the cycle has written everything, and all changes up to this write are in pages.
    Done(u64),
    /// None: no cycle runs.
    Idle,
}

impl DirtyPages {
    /// For a map of `depths` depths.
    pub(crate) fn new(depths: usize, cycle_len: u64, most_dirty: usize) -> DirtyPages {
        DirtyPages {
            dirty: vec![BTreeSet::new(); depths],
            cycle: None,
            last_start: 0,
            cycle_len,
            max_dirty: most_dirty,
        }
    }

    /// Lets at least `most_dirty` leaves wait to be written.
    pub(crate) fn raise_max_dirty(&mut self, most_dirty: usize) {
        self.max_dirty = most_dirty.max(self.max_dirty);
    }

    fn is_queued(&self, depth: usize, index: u64) -> bool {
        self.cycle.as_ref().is_some_and(|cycle| cycle.depth == depth && cycle.queue.contains(&index))
    }

    /// Whether a page is to be written.
    pub(crate) fn is_dirty(&self, depth: usize, index: u64) -> bool {
        self.dirty[depth].contains(&index) || self.is_queued(depth, index)
    }

    /// Records that a page has changed.
    pub(crate) fn mark_dirty(&mut self, depth: usize, index: u64) {
        if !self.is_queued(depth, index) {
            self.dirty[depth].insert(index);
        }
    }

    /// Records that a page has a new place: the page above it, if there is one, has changed.
    pub(crate) fn mark_parent_dirty(&mut self, depth: usize, index: u64) {
        if depth + 1 < self.dirty.len() {
            self.mark_dirty(depth + 1, index / FANOUT);
        }
    }

    /// Pages that wait to be written.
    pub(crate) fn dirty_count(&self) -> u64 {
        let queued = self.cycle.as_ref().map_or(0, |cycle| cycle.queue.len());
        (queued + self.dirty.iter().map(BTreeSet::len).sum::<usize>()) as u64
    }

    /// Whether too many leaves wait to be written to change more for the moment.
    pub(crate) fn is_over_limit(&self) -> bool {
        let leaves = self.cycle.as_ref().filter(|cycle| cycle.depth == 0);
        self.dirty[0].len() + leaves.map_or(0, |cycle| cycle.queue.len()) > self.max_dirty
    }

    /// The write that began the running cycle; 0 if none runs.
    pub(crate) fn cycle_start(&self) -> u64 {
        self.cycle.as_ref().map_or(0, |cycle| cycle.first_write)
    }

    /// Makes the next cycle due one cycle length after this write.
    pub(crate) fn schedule_after(&mut self, write: u64) {
        self.last_start = write;
    }

    /// Resumes a cycle that began with an earlier write: it still has to write the leaves that are
    /// `early`.
    pub(crate) fn resume(&mut self, began: u64, early: impl Fn(u64) -> bool) {
        let queue = self.dirty[0].iter().copied().filter(|leaf| early(*leaf)).collect::<BTreeSet<u64>>();
        self.dirty[0].retain(|leaf| !queue.contains(leaf));
        self.last_start = began;
        self.cycle = Some(Cycle { depth: 0, queue, first_write: began });
    }

    /// The number of pages that write `seq` should take so that the cycle ends in time and the
    /// changed leaves fit the cache; none if every change is in a page already. Begins a cycle when
    /// one is due. `above` has the number of pages at each depth above the leaves.
    pub(crate) fn pages_due(&mut self, seq: u64, above: impl Iterator<Item = usize>) -> Option<usize> {
        if self.cycle.is_none() {
            if self.dirty.iter().all(BTreeSet::is_empty) {
                self.last_start = seq;
                return None;
            }
            let crowded = self.dirty[0].len() > self.max_dirty;
            if seq < self.last_start + self.cycle_len && !crowded {
                return Some(0);
            }
            self.last_start = seq;
            let queue = std::mem::take(&mut self.dirty[0]);
            self.cycle = Some(Cycle { depth: 0, queue, first_write: seq });
        }
        let cycle = self.cycle.as_ref().expect("one was just begun");
        let above: usize = above.map(|pages| pages.min(cycle.queue.len() + 1)).sum();
        let left = (cycle.first_write + self.cycle_len / 2).saturating_sub(seq).max(1);
        let paced = (cycle.queue.len() + above).div_ceil(left as usize);
        let crowd = (cycle.queue.len() + self.dirty[0].len()).saturating_sub(self.max_dirty);
        // At least one: a cycle ends only when a page is asked for and none is left.
        Some(paced.max(crowd.min(usize::from(u8::MAX))).max(1))
    }

    /// Takes out the next page of the cycle. Ends a cycle that has none left.
    pub(crate) fn next(&mut self) -> CycleStep {
        loop {
            let Some(cycle) = &mut self.cycle else { return CycleStep::Idle };
            if let Some(index) = cycle.queue.pop_first() {
                return CycleStep::Page(cycle.depth, index);
            }
            if cycle.depth + 1 == self.dirty.len() {
                let covered = cycle.first_write - 1;
                self.cycle = None;
                return CycleStep::Done(covered);
            }
            cycle.depth += 1;
            cycle.queue = std::mem::take(&mut self.dirty[cycle.depth]);
        }
    }

    /// Puts back the page that was taken out last, because it could not be written: it is the next
    /// again.
    pub(crate) fn put_back(&mut self, index: u64) {
        self.cycle.as_mut().expect("the cycle of a page that was taken out").queue.insert(index);
    }
}
