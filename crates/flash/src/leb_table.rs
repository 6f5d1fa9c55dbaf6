//! What the log knows of each of its logical erase blocks: how many of its nodes are live, and whether it may be used.

use std::collections::BTreeSet;

/// Blocks with the fewest live nodes among which garbage collection chooses.
const CANDIDATES: usize = 64;

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LebUse {
    /// Nothing.
    Free,
    /// Written before the last checkpoint.
    Closed,
    /// Being written, or next to be, or written since the last checkpoint: replay needs it.
    Recent,
    /// It holds live nodes that cannot be read: never used again.
    Damaged,
}

#[derive(Clone, Copy)]
struct Info {
    live: u32,
    /// The sequence number of the last group that was written to it.
    written: u64,
    used: LebUse,
}

/// The table, by the number within the log.
pub(crate) struct LebTable {
    infos: Vec<Info>,
    free: BTreeSet<u32>,
    /// Closed blocks by live nodes.
    closed: BTreeSet<(u32, u32)>,
    recent: u32,
    /// The block that was taken last: the next free one after it is taken next, so that all take their turn.
    taken: u32,
}

impl LebTable {
    /// All free.
    pub(crate) fn new(lebs: u32) -> LebTable {
        let info = Info { live: 0, written: 0, used: LebUse::Free };
        LebTable {
            infos: vec![info; lebs as usize],
            free: (0..lebs).collect(),
            closed: BTreeSet::new(),
            recent: 0,
            taken: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.infos.len() as u32
    }

    pub(crate) fn live(&self, leb: u32) -> u32 {
        self.infos[leb as usize].live
    }

    pub(crate) fn used(&self, leb: u32) -> LebUse {
        self.infos[leb as usize].used
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Blocks that replay needs.
    pub(crate) fn recent(&self) -> u32 {
        self.recent
    }

    /// All live nodes.
    pub(crate) fn all_live(&self) -> u64 {
        self.infos.iter().map(|info| u64::from(info.live)).sum()
    }

    /// Changes what a block is used for.
    pub(crate) fn set_used(&mut self, leb: u32, used: LebUse) {
        let info = &mut self.infos[leb as usize];
        self.free.remove(&leb);
        self.closed.remove(&(info.live, leb));
        self.recent -= u32::from(info.used == LebUse::Recent);
        self.recent += u32::from(used == LebUse::Recent);
        info.used = used;
        match used {
            LebUse::Free => drop(self.free.insert(leb)),
            LebUse::Closed => drop(self.closed.insert((info.live, leb))),
            LebUse::Recent | LebUse::Damaged => {}
        }
    }

    /// Changes how many nodes of a block are live.
    pub(crate) fn set_live(&mut self, leb: u32, live: u32) {
        let info = &mut self.infos[leb as usize];
        if self.closed.remove(&(info.live, leb)) {
            self.closed.insert((live, leb));
        }
        info.live = live;
    }

    /// Notes a group.
    pub(crate) fn note_written(&mut self, leb: u32, sequence: u64) {
        self.infos[leb as usize].written = sequence;
    }

    /// Takes a free block.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let next = self.free.range(self.taken + 1..).next().or_else(|| self.free.first()).copied()?;
        self.set_used(next, LebUse::Recent);
        self.taken = next;
        Some(next)
    }

    /// Blocks that replay does not need any more, all but these, are closed.
    pub(crate) fn close_recent(&mut self, but: [u32; 2]) {
        for leb in 0..self.len() {
            if self.used(leb) == LebUse::Recent && !but.contains(&leb) {
                self.set_used(leb, if self.live(leb) == 0 { LebUse::Free } else { LebUse::Closed });
            }
        }
    }

    /// The closed block whose collection pays most: by the cost and benefit of log-structured file systems, the free part times
    /// the age, divided by what copying costs. `None` if none has room.
    pub(crate) fn victim(&self, nodes: u32, now: u64) -> Option<u32> {
        let score = |leb: u32| {
            let info = &self.infos[leb as usize];
            let live = f64::from(info.live) / f64::from(nodes);
            (1.0 - live) * (now - info.written.min(now) + 1) as f64 / (1.0 + live)
        };
        let candidates = self.closed.iter().take(CANDIDATES).filter(|(live, _)| *live < nodes);
        candidates.map(|(_, leb)| *leb).max_by(|a, b| score(*a).total_cmp(&score(*b)))
    }
}
