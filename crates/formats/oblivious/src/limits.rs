//! What the format fixes: where the journal begins, how cells lie together, and how much a batch
//! can hold.
//!
//! Invariant: none of these numbers depends on a disk. What depends on one follows from them and
//! from its parameters (`params.rs`).

use lacuna_contracts::BLOCK_SIZE;

/// Bytes of a block.
pub(crate) const BLOCK: u64 = BLOCK_SIZE as u64;
/// Where the journal begins: what is before belongs to the header.
pub(crate) const JOURNAL_START: u64 = 1 << 20;
/// Bits of a place that name the cell, counted from 1.
pub(crate) const CELL_BITS: u32 = 40;
/// Neighbouring cells that are drawn together. Their blocks have a page each, and their metadata
/// one for all, which follows: one request reads or writes a group.
pub(crate) const GROUP: u64 = 8;
/// Bytes of a cell beside its block, in memory, in the ring and in the page of metadata.
pub(crate) const META_LEN: usize = 64;
/// Bytes of a cell in memory and in the ring.
pub(crate) const CELL_LEN: usize = BLOCK_SIZE + META_LEN;
/// Bytes of a group in place.
pub(crate) const GROUP_LEN: u64 = (GROUP + 1) * BLOCK;
/// Parts of the ring. Heads of a part call durable what ended two parts ago, and in place what
/// ended four parts ago; so a batch overwrites one whose place in its cells a durable head has
/// told.
pub(crate) const PARTS: u64 = 6;
/// Operations in a batch, if they need no more cells than a batch can list.
pub(crate) const MOST_OPERATIONS: usize = 32;
/// The most cells that a batch rewrites.
pub(crate) const MOST_CELLS: usize = 224;
/// Slots of the stash in the record of a batch. `bound.rs` says how seldom they are too few.
pub(crate) const STASH_SLOTS: usize = 48;
/// Discarded ranges that a level can record in a batch.
pub(crate) const MOST_TRIMS: usize = 4;
/// Hidden levels that a disk has room for.
pub(crate) const HIDDEN_LEVELS: usize = 3;

const _: () = assert!(BLOCK_SIZE == 4096 && GROUP * META_LEN as u64 <= BLOCK);
