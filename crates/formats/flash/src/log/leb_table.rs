//! The table of the log's erase blocks: the number of live nodes of each, and its use.

use std::collections::BTreeSet;

/// One in this many closed blocks is selected when the table is searched for blocks to collect.
const VICTIM_SHARE: usize = 512;

/// The use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LebUse {
    /// Holds nothing that is needed.
    Free,
    /// Written before the last checkpoint.
    Closed,
    /// Being written, next to be written, or written since the last checkpoint: replay needs it.
    Recent,
    /// Holds live nodes that cannot be read: never used again.
    Damaged,
}

#[derive(Clone, Copy)]
struct LebInfo {
    live: u32,
    /// The sequence number of the last group that was written to it.
    written: u64,
    usage: LebUse,
}

/// The table, indexed by the number within the log.
pub(crate) struct LebTable {
    infos: Vec<LebInfo>,
    free: BTreeSet<u32>,
    recent: u32,
    /// The block that was taken last. The next free one after it is taken next, so that all take
    /// turns.
    taken: u32,
}

impl LebTable {
    /// A table of free blocks.
    pub(crate) fn new(lebs: u32) -> LebTable {
        let info = LebInfo { live: 0, written: 0, usage: LebUse::Free };
        LebTable { infos: vec![info; lebs as usize], free: (0..lebs).collect(), recent: 0, taken: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.infos.len() as u32
    }

    pub(crate) fn live(&self, leb: u32) -> u32 {
        self.infos[leb as usize].live
    }

    pub(crate) fn usage(&self, leb: u32) -> LebUse {
        self.infos[leb as usize].usage
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// The number of blocks that replay needs.
    pub(crate) fn recent(&self) -> u32 {
        self.recent
    }

    /// The number of live nodes of all blocks.
    pub(crate) fn all_live(&self) -> u64 {
        self.infos.iter().map(|info| u64::from(info.live)).sum()
    }

    /// Sets the use of a block.
    pub(crate) fn set_usage(&mut self, leb: u32, used: LebUse) {
        let info = &mut self.infos[leb as usize];
        self.free.remove(&leb);
        self.recent -= u32::from(info.usage == LebUse::Recent);
        self.recent += u32::from(used == LebUse::Recent);
        info.usage = used;
        if used == LebUse::Free {
            self.free.insert(leb);
        }
    }

    /// Sets the number of live nodes of a block.
    pub(crate) fn set_live(&mut self, leb: u32, live: u32) {
        self.infos[leb as usize].live = live;
    }

    /// Notes the last group of a block.
    pub(crate) fn note_written(&mut self, leb: u32, sequence: u64) {
        self.infos[leb as usize].written = sequence;
    }

    /// The sequence number of the last group of a block.
    pub(crate) fn written(&self, leb: u32) -> u64 {
        self.infos[leb as usize].written
    }

    /// Makes this block the next to be taken, if it is free.
    pub(crate) fn take_next(&mut self, leb: u32) {
        self.taken = leb.wrapping_sub(1);
    }

    /// Takes a free block.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let next =
            self.free.range(self.taken.wrapping_add(1)..).next().or_else(|| self.free.first()).copied()?;
        self.set_usage(next, LebUse::Recent);
        self.taken = next;
        Some(next)
    }

    /// Closes or frees all blocks that replay needed, except these two.
    pub(crate) fn close_recent(&mut self, but: [u32; 2]) {
        for leb in 0..self.len() {
            if self.usage(leb) == LebUse::Recent && !but.contains(&leb) {
                self.set_usage(leb, if self.live(leb) == 0 { LebUse::Free } else { LebUse::Closed });
            }
        }
    }

    /// The closed blocks that pay most to collect, the best one last. The score is cost-benefit as
    /// in log-structured file systems: the free part times the age, divided by the cost of reading
    /// the block and writing its live nodes. Blocks with less free space than the average are left
    /// out, however old they are: copying them would gain next to nothing or lose space, since
    /// groups that do not fill a block have more headers.
    pub(crate) fn victims(&self, nodes: u32, now: u64) -> Vec<u32> {
        let score = |info: &LebInfo| {
            let live = f64::from(info.live) / f64::from(nodes);
            (1.0 - live) * (now - info.written.min(now) + 1) as f64 / (1.0 + live)
        };
        let closed =
            (0..).zip(&self.infos).filter(|(_, info)| info.usage == LebUse::Closed && info.live < nodes);
        let free = |info: &LebInfo| u64::from(nodes - info.live);
        let (count, all_free) =
            closed.clone().fold((0, 0), |(count, sum), (_, info)| (count + 1, sum + free(info)));
        let closed = closed.filter(|(_, info)| count * free(info) >= all_free);
        let mut scored: Vec<(f64, u32)> = closed.map(|(leb, info)| (score(info), leb)).collect();
        let named = (scored.len() / VICTIM_SHARE).max(1).min(scored.len());
        let worse = scored.len() - named;
        if worse > 0 {
            scored.select_nth_unstable_by(worse, |a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        }
        let mut best = scored.split_off(worse);
        best.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        best.into_iter().map(|(_, leb)| leb).collect()
    }
}
