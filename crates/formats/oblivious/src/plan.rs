//! What a disk is to be like, as its owner wants it: what hides hidden operations, and what a batch
//! costs.

use crate::limits::MOST_OPERATIONS;

/// What hides the operations of hidden levels (HIVE, sections 4.2 and 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hiding {
    /// HIVE: every operation of every level, reads included, rewrites cells; a hidden one passes
    /// for a public read.
    Plausible,
    /// HIVE-B: hidden operations wait for public writes, which carry them along; reads write
    /// nothing.
    Opportunistic,
}

/// What a disk is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What hides the operations of hidden levels.
    pub hiding: Hiding,
    /// Cells that an operation rewrites, the paper's *k*: 2 to 16. With 2, a third of the cells of
    /// a region are used, with more a half.
    pub per_write: u8,
    /// Operations in a batch; fewer for tests of small disks.
    pub operations: u8,
    /// Milliseconds between two batches of the paced cover, 0 for none.
    pub cover_millis: u32,
}

impl Plan {
    /// HIVE-B with *k* = 2, as many operations in a batch as it can list.
    pub const DEFAULT: Plan = Plan {
        hiding: Hiding::Opportunistic,
        per_write: 2,
        operations: MOST_OPERATIONS as u8,
        cover_millis: 0,
    };
}
