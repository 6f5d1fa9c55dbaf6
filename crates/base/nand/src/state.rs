//! The state of the blocks of a chip, protected by the lock of the mapping.

use crate::chip::Peb;
use crate::flash::{Leb, Unerased};
use std::collections::{BTreeSet, VecDeque};

/// The use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockUse {
    /// Erased, with its erase header.
    Free,
    /// Holds a LEB.
    Mapped(Leb),
    /// In the erase queue.
    Superseded,
    /// Never used again.
    Bad,
}

/// A block in the erase queue.
pub(crate) struct QueuedBlock {
    pub(crate) peb: Peb,
    /// The LEB that it held, if known.
    pub(crate) held: Option<Leb>,
    /// Programming failed: the block becomes bad once it is erased.
    pub(crate) failing: bool,
}

/// The state of all blocks.
pub(crate) struct MappingState {
    /// The block of each LEB.
    pub(crate) map: Vec<Option<Peb>>,
    pub(crate) uses: Vec<BlockUse>,
    pub(crate) erasures: Vec<u64>,
    /// Erased blocks, ordered by erasures.
    pub(crate) free: BTreeSet<(u64, Peb)>,
    /// Mapped blocks, ordered by erasures.
    pub(crate) mapped: BTreeSet<(u64, Peb)>,
    pub(crate) queue: VecDeque<QueuedBlock>,
    pub(crate) unerased: Vec<Unerased>,
    pub(crate) sequence: u64,
    pub(crate) erased_since_levelling: u64,
    pub(crate) moved: u64,
}

impl MappingState {
    /// Maps a LEB to another block, or unmaps it, and returns its old block.
    pub(crate) fn map_to(&mut self, leb: Leb, to: Option<Peb>) -> Option<Peb> {
        let old = std::mem::replace(&mut self.map[leb.0 as usize], to);
        if let Some(old) = old {
            self.mapped.remove(&(self.erasures[old.0 as usize], old));
        }
        if let Some(peb) = to {
            self.uses[peb.0 as usize] = BlockUse::Mapped(leb);
            self.mapped.insert((self.erasures[peb.0 as usize], peb));
        }
        old
    }

    /// Puts a block into the erase queue.
    pub(crate) fn enqueue(&mut self, peb: Peb, held: Option<Leb>, failing: bool) {
        self.uses[peb.0 as usize] = BlockUse::Superseded;
        self.queue.push_back(QueuedBlock { peb, held, failing });
    }
}
