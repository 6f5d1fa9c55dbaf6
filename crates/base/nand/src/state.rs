//! What a mapping knows of the blocks of its chip, under its lock.

use crate::chip::Peb;
use crate::flash::{Leb, Unerased};
use std::collections::{BTreeSet, VecDeque};

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Erased, with its first header.
    Free,
    /// Holds a LEB.
    Mapped(Leb),
    /// In the erase queue.
    Superseded,
    /// Never used again.
    Bad,
}

/// A block in the erase queue.
pub(crate) struct Queued {
    pub(crate) peb: Peb,
    /// What it held, if that is known.
    pub(crate) held: Option<Leb>,
    /// It could not be programmed: it becomes bad once it is erased.
    pub(crate) failing: bool,
}

/// The blocks.
pub(crate) struct State {
    /// Of each LEB, where it lies.
    pub(crate) map: Vec<Option<Peb>>,
    pub(crate) uses: Vec<Use>,
    pub(crate) erasures: Vec<u64>,
    /// By erasures, least first.
    pub(crate) free: BTreeSet<(u64, Peb)>,
    /// The same of blocks that hold something.
    pub(crate) mapped: BTreeSet<(u64, Peb)>,
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) unerased: Vec<Unerased>,
    pub(crate) sequence: u64,
    pub(crate) erased_since_levelling: u64,
    pub(crate) moved: u64,
}

impl State {
    /// Changes where a LEB lies and gives where it lay.
    pub(crate) fn map_to(&mut self, leb: Leb, to: Option<Peb>) -> Option<Peb> {
        let old = std::mem::replace(&mut self.map[leb.0 as usize], to);
        if let Some(old) = old {
            self.mapped.remove(&(self.erasures[old.0 as usize], old));
        }
        if let Some(peb) = to {
            self.uses[peb.0 as usize] = Use::Mapped(leb);
            self.mapped.insert((self.erasures[peb.0 as usize], peb));
        }
        old
    }

    /// Puts a block into the erase queue.
    pub(crate) fn enqueue(&mut self, peb: Peb, held: Option<Leb>, failing: bool) {
        self.uses[peb.0 as usize] = Use::Superseded;
        self.queue.push_back(Queued { peb, held, failing });
    }
}
