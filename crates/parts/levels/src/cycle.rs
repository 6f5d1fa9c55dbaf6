//! Which pages of a map are to be written out, and the cycle that writes them: leaves first, then
//! what points at them, up to the top.
//!
//! Invariant: a page that changes while a cycle runs is written in it once more if the cycle has
//! not come past its depth, and in the next one otherwise; it is never forgotten.

use crate::map_size::FANOUT;
use std::collections::BTreeSet;

/// Where a cycle stands: which depth it writes, what of it is left, and with which write to the
/// medium it began.
struct Cycle {
    depth: usize,
    queue: BTreeSet<u64>,
    began: u64,
}

/// The pages of a map that wait to be written.
pub(crate) struct WriteOut {
    /// Pages changed since they were last written, for each depth; for that of a running cycle
    /// those changed since they were written in it.
    dirty: Vec<BTreeSet<u64>>,
    cycle: Option<Cycle>,
    last_start: u64,
    /// How many writes to the medium lie between the beginnings of two cycles.
    cycle_len: u64,
    /// Leaves that may wait to be written.
    most_dirty: usize,
}

/// What a cycle does next.
pub(crate) enum Next {
    /// It writes the page of this depth and number.
    Page(usize, u64),
    /// Nothing: it has written everything, and all that changed up to this write is in pages.
    Done(u64),
    /// Nothing, for no cycle runs.
    Idle,
}

impl WriteOut {
    /// Of a map of so many depths.
    pub(crate) fn new(depths: usize, cycle_len: u64, most_dirty: usize) -> WriteOut {
        WriteOut { dirty: vec![BTreeSet::new(); depths], cycle: None, last_start: 0, cycle_len, most_dirty }
    }

    /// At least so many leaves may wait to be written.
    pub(crate) fn allow(&mut self, most_dirty: usize) {
        self.most_dirty = most_dirty.max(self.most_dirty);
    }

    fn is_queued(&self, depth: usize, index: u64) -> bool {
        self.cycle.as_ref().is_some_and(|cycle| cycle.depth == depth && cycle.queue.contains(&index))
    }

    /// Whether a page is to be written.
    pub(crate) fn is_dirty(&self, depth: usize, index: u64) -> bool {
        self.dirty[depth].contains(&index) || self.is_queued(depth, index)
    }

    /// A page has changed.
    pub(crate) fn mark(&mut self, depth: usize, index: u64) {
        if !self.is_queued(depth, index) {
            self.dirty[depth].insert(index);
        }
    }

    /// A page lies elsewhere now: the page that says where it is, if there is one, has changed.
    pub(crate) fn mark_above(&mut self, depth: usize, index: u64) {
        if depth + 1 < self.dirty.len() {
            self.mark(depth + 1, index / FANOUT);
        }
    }

    /// Pages that wait to be written.
    pub(crate) fn waiting(&self) -> u64 {
        let queued = self.cycle.as_ref().map_or(0, |cycle| cycle.queue.len());
        (queued + self.dirty.iter().map(BTreeSet::len).sum::<usize>()) as u64
    }

    /// Whether so many leaves wait to be written that no more should be changed for the moment.
    pub(crate) fn is_crowded(&self) -> bool {
        let leaves = self.cycle.as_ref().filter(|cycle| cycle.depth == 0);
        self.dirty[0].len() + leaves.map_or(0, |cycle| cycle.queue.len()) > self.most_dirty
    }

    /// The write with which the running cycle began; 0 if none runs.
    pub(crate) fn began(&self) -> u64 {
        self.cycle.as_ref().map_or(0, |cycle| cycle.began)
    }

    /// The next cycle is due a cycle's length after this write.
    pub(crate) fn begin_after(&mut self, write: u64) {
        self.last_start = write;
    }

    /// Goes on with a cycle that began with an earlier write: it still has to write the leaves that
    /// are `early`.
    pub(crate) fn resume(&mut self, began: u64, early: impl Fn(u64) -> bool) {
        let queue = self.dirty[0].iter().copied().filter(|leaf| early(*leaf)).collect::<BTreeSet<u64>>();
        self.dirty[0].retain(|leaf| !queue.contains(leaf));
        self.last_start = began;
        self.cycle = Some(Cycle { depth: 0, queue, began });
    }

    /// How many pages write `seq` should take so that the cycle ends in time and the changed leaves
    /// fit the cache; none if every change is in a page already. Begins a cycle when one is due.
    /// `above` are the pages of the depths above the leaves.
    pub(crate) fn due(&mut self, seq: u64, above: impl Iterator<Item = usize>) -> Option<usize> {
        if self.cycle.is_none() {
            if self.dirty.iter().all(BTreeSet::is_empty) {
                self.last_start = seq;
                return None;
            }
            let crowded = self.dirty[0].len() > self.most_dirty;
            if seq < self.last_start + self.cycle_len && !crowded {
                return Some(0);
            }
            self.last_start = seq;
            let queue = std::mem::take(&mut self.dirty[0]);
            self.cycle = Some(Cycle { depth: 0, queue, began: seq });
        }
        let cycle = self.cycle.as_ref().expect("one was just begun");
        let above: usize = above.map(|pages| pages.min(cycle.queue.len() + 1)).sum();
        let left = (cycle.began + self.cycle_len / 2).saturating_sub(seq).max(1);
        let paced = (cycle.queue.len() + above).div_ceil(left as usize);
        let crowd = (cycle.queue.len() + self.dirty[0].len()).saturating_sub(self.most_dirty);
        // At least one, for it is asking for a page that finds out that there are no more.
        Some(paced.max(crowd.min(usize::from(u8::MAX))).max(1))
    }

    /// Takes out the next page of the cycle. A cycle that has none left ends.
    pub(crate) fn next(&mut self) -> Next {
        loop {
            let Some(cycle) = &mut self.cycle else { return Next::Idle };
            if let Some(index) = cycle.queue.pop_first() {
                return Next::Page(cycle.depth, index);
            }
            if cycle.depth + 1 == self.dirty.len() {
                let covered = cycle.began - 1;
                self.cycle = None;
                return Next::Done(covered);
            }
            cycle.depth += 1;
            cycle.queue = std::mem::take(&mut self.dirty[cycle.depth]);
        }
    }

    /// The page that was taken out last could not be written: it comes next again.
    pub(crate) fn put_back(&mut self, index: u64) {
        self.cycle.as_mut().expect("the cycle of a page that was taken out").queue.insert(index);
    }
}
