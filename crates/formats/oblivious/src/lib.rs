//! `oblivious`: HIVE, hidden levels in a write-only ORAM. The disk stays deniable to an adversary
//! with many snapshots of the medium, and hides from every adversary which blocks are written. A
//! power cut loses no flushed block.
//!
//! The medium has *cells* ([`Params`], `docs/format/oblivious.md`), two or three for each block of
//! the levels. Every level has a *region* of cells, whether it exists or not: the paper's generic
//! construction, one write-only ORAM for each volume, with every operation touching all of them.
//! Every operation rewrites *k* distinct cells of the region of level 0, drawn uniformly in groups
//! of neighbours, and a fixed number in every other region. A cell that holds the latest version of
//! a block keeps it, encrypted anew; the other cells take pending blocks; the rest get filler. An
//! adversary with snapshots sees random cells change, whatever was written. Operations go to the
//! medium in *batches*: first to a ring, one after another, with a head in the journal; later in
//! place.
//!
//! The map of a level is a tree with pages that are blocks of the same ORAM (the recursion of the
//! paper). The heads of the last batches have the changes that the pages do not have yet. An
//! operation therefore needs no operations on maps, only a constant share of them for pages.
//!
//! The parts of an open disk, each in the file of its name. Each calls only the parts below it:
//!
//! - `disk`: [`ObliviousDisk`] creates, recovers (`recovery`) and closes a disk, and has its levels
//!   for front ends.
//! - `threads`: runs the background work of the parts.
//! - `public_level`: the turns of operations, which decide when batches are written.
//! - `batch::writer`: writes one batch after another; `batch`: fills the cells of one.
//! - `batch::prepared_queue`: batches drawn and read by a thread (`batch::prepared`);
//!   `leaf_loader`: the leaves that they need.
//! - `open_levels`: map and queue of every open level, level 0 included; `level_cells`: the blocks
//!   of a level in cells.
//! - `batch_store`: writes batches to the ring and, later, in place.
//! - `cell_store`: cells at their latest version; `journal`: records and heads; `durability`:
//!   progress and syncs.
//! - the medium.
//!
//! Invariants:
//! 1. Number, cells, order and size of all writes to the medium, those of opening and closing
//!    included, are a function of the number of public operations, public randomness and the paced
//!    clock; on a plausible disk, of the number of operations of all levels, flushes apart. (A
//!    discard counts for a quarter of a batch. Two exceptions depend on the contents of level 0: a
//!    discard that changes more pages of its map than the cache should keep causes batches until
//!    they are written; and blocks that find no room in the stash, which invariant 6 makes rare,
//!    cause one batch.)
//! 2. The data that the keys of levels 0 to *d* open is a function of the operations on these
//!    levels, public randomness and the clock: no two levels share a cell, a lock, a queue or
//!    memory. The progress of batches that level 0 can read follows from their numbers, never from
//!    speed (`Claims::on_schedule`).
//! 3. All cells of a batch cost the same reading and encryption whatever levels exist
//!    (`batch/prepared.rs`, `batch.rs`).
//! 4. Everything that is not public is uniform without its key: cells, slots of the stash and
//!    records of levels in heads are random bytes, or sealed under a throwaway key, wherever no
//!    open level put ciphertext.
//! 5. Every flushed block is in its cell or, for level 0, in the stash, and in no other cell that
//!    counts. A flush returns when that is durable; no flushed block is in memory alone.
//! 6. The free share of a region stays at or above the bound in `cells/regions.rs`, so the
//!    probability that the stash of level 0 is longer than *m* falls exponentially in *m*
//!    (`bound.rs`).
//! 7. A cell is overwritten in place only with bytes that are durable in the ring. A batch in the
//!    ring is overwritten only when a durable head claims that its cells are durable in place.
//! 8. A nonce is drawn for every cell that is written, and a salt for every head, and both are
//!    hedged: if the source of randomness repeats, they repeat only with the same content.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod batch_store;
#[cfg(any(test, feature = "simulator"))]
mod bound;
mod cells;
mod disk;
mod durability;
mod journal;
mod keys;
mod leaf_loader;
mod limits;
mod open_levels;
mod params;
mod plan;
mod progress;
mod public_level;
mod recovery;
#[cfg(any(test, feature = "simulator"))]
mod stash_simulation;
mod threads;

#[cfg(any(test, feature = "simulator"))]
pub use bound::tail_base;
pub use disk::ObliviousDisk;
pub use lacuna_levels::{LevelDisk, Levels, OpenOptions, Randomness};
pub use params::{Params, VERSION};
pub use plan::{HidingMode, Plan};
#[cfg(any(test, feature = "simulator"))]
pub use stash_simulation::StashSimulation;
