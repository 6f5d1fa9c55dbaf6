//! The constants of the format: the start of the journal, the layout of cells, and the limits of a
//! batch.
//!
//! Invariant: none of these numbers depends on a disk. Numbers that do follow from these and from
//! the disk's parameters (`params.rs`).

use lacuna_contracts::BLOCK_SIZE;

/// Bytes of a block.
pub(crate) const BLOCK: u64 = BLOCK_SIZE as u64;
/// Offset of the journal; the bytes before it belong to the header.
pub(crate) const JOURNAL_START: u64 = 1 << 20;
/// Bits of a place that hold the number of the cell, counted from 1.
pub(crate) const CELL_BITS: u32 = 40;
/// Neighbouring cells that are drawn together. Each block has a page of its own, followed by one
/// page with the metadata of all: one request reads or writes a group.
pub(crate) const GROUP: u64 = 8;
/// Bytes of a cell beside its block, in memory, in the ring and in the page of metadata.
pub(crate) const META_LEN: usize = 64;
/// Bytes of a cell in memory and in the ring.
pub(crate) const CELL_LEN: usize = BLOCK_SIZE + META_LEN;
/// Bytes of a group in place.
pub(crate) const GROUP_LEN: u64 = (GROUP + 1) * BLOCK;
/// Parts of the ring. The heads of a part call the second part before it durable, and the fourth
/// part before it durable in place. A batch therefore overwrites only a batch that a durable head
/// calls durable in place.
pub(crate) const PARTS: u64 = 6;
/// The most operations in a batch, if they need no more cells than a batch can list.
pub(crate) const MAX_OPERATIONS: usize = 32;
/// The most cells that a batch rewrites.
pub(crate) const MAX_CELLS: usize = 224;
/// Slots of the stash in the record of a batch. `bound.rs` bounds how often they are too few.
pub(crate) const STASH_SLOTS: usize = 48;
/// Discarded ranges of a level that a batch can record.
pub(crate) const MAX_TRIMS: usize = 4;
/// Hidden levels that a disk has room for.
pub(crate) const HIDDEN_LEVELS: usize = 3;

const _: () = assert!(BLOCK_SIZE == 4096 && GROUP * META_LEN as u64 <= BLOCK);
