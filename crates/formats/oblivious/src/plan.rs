//! The choices of a disk's owner: how hidden operations are hidden, and the cost of a batch.

use crate::limits::MAX_OPERATIONS;

/// How the operations of hidden levels are hidden (HIVE, sections 4.2 and 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HidingMode {
    /// HIVE: every operation of every level, reads included, rewrites cells; a hidden operation
    /// passes for a public read.
    Plausible,
    /// HIVE-B: hidden operations are pending until public writes take them; reads write nothing.
    Opportunistic,
}

/// The choices of a disk's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How the operations of hidden levels are hidden.
    pub hiding: HidingMode,
    /// Cells that an operation rewrites, the paper's *k*: 2 to 16. With 2, a third of the cells of
    /// a region are used, with more a half.
    pub per_write: u8,
    /// Operations in a batch; fewer for tests of small disks.
    pub operations: u8,
    /// Milliseconds between two batches of the paced cover, 0 for none.
    pub cover_millis: u32,
}

impl Plan {
    /// HIVE-B with *k* = 2, and the most operations that a batch can list.
    pub const DEFAULT: Plan = Plan {
        hiding: HidingMode::Opportunistic,
        per_write: 2,
        operations: MAX_OPERATIONS as u8,
        cover_millis: 0,
    };
}
