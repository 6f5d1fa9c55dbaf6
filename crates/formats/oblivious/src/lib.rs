//! `oblivious`: HIVE, hidden levels in a write-only ORAM, that stay deniable to someone who images
//! the medium many times and hide from everybody which blocks are written (HIVE); loses nothing in
//! a power cut.
//!
//! The medium has *cells* ([`Params`], `docs/format/oblivious.md`), two or three times as many as
//! the levels have blocks, and every level has a *region* of them, whether it exists or not: the
//! paper's generic construction, one write-only ORAM for each volume, every operation touching all
//! of them. Every operation rewrites *k* distinct cells of the region of level 0, drawn uniformly
//! in groups of neighbours, and a fixed number in every other region. What a cell held and still is
//! the latest version of its block stays there, encrypted anew; the others take blocks that wait;
//! what is left over takes filler. Someone who images the medium sees random cells change, whatever
//! was written. Operations go to the medium by the *batch*: first to a ring, one after another,
//! with a head in the journal; later in place.
//!
//! The map of a level is a tree whose pages are blocks of the same ORAM (the recursion of the
//! paper); the heads of the last batches say what pages do not yet. So an operation needs no
//! operations on maps, only a constant share of them for pages.
//!
//! The parts of an open disk, each in the file of its name. Each calls only those below it:
//!
//! - `disk`: [`Oblivious`] creates, recovers (`recovery`) and closes a disk, and has its levels as
//!   front ends see them.
//! - `threads`: runs what parts do in the background.
//! - `public`: the turns of operations, which decide when batches are written.
//! - `batch_writer`: one batch after another; `batch`: what each cell of one takes.
//! - `ahead`: batches drawn and read by a thread (`prepared`); `leaf_loader`: the leaves that they
//!   need.
//! - `open_levels`: map and queue of every open level, level 0 among them; `level_cells`: what a
//!   level has in cells.
//! - `store`: batches into the ring and, later, in place.
//! - `cell_store`: cells, where their latest version is; `journal`: records and heads;
//!   `durability`: progress and syncs.
//! - the medium.
//!
//! Invariants:
//! 1. Number, cells, order and size of all writes to the medium, those of opening and closing
//!    included, are a function of the number of public operations, public randomness and the paced
//!    clock; on a plausible disk, of the number of operations of all levels, flushes apart. (A
//!    discard counts for a quarter of a batch. Exceptions that depend on what level 0 holds: a
//!    discard that changes more pages of its map than the cache should keep causes batches until
//!    they are written; and what finds no room in the stash, which invariant 6 says is rare, causes
//!    one.)
//! 2. What the keys of levels 0 to *d* open is a function of the operations on these levels, public
//!    randomness and the clock: no level has a cell, a lock, a queue or a share of memory in common
//!    with another. What level 0 opens of how far batches had come follows from their numbers,
//!    never from speed (`Claims::on_schedule`).
//! 3. All cells of a batch cost the same reading and ciphering whatever levels exist
//!    (`prepared.rs`, `batch.rs`).
//! 4. What is not public is uniform without its key: cells, slots of the stash and what heads say
//!    of levels are random bytes or sealed under a key that is thrown away, wherever no open level
//!    put ciphertext.
//! 5. Every block that was flushed is in its cell, or in the stash if it is of level 0, and in no
//!    other cell that counts. A flush returns when that is durable; nothing that was flushed is in
//!    memory alone.
//! 6. As many cells of a region stay free as `regions.rs` says, so the stash of level 0 is longer
//!    than *m* with a probability that falls exponentially in *m* (`bound.rs`).
//! 7. A cell is overwritten in place only with what is durable in the ring; a batch in the ring
//!    only when a durable head says that its cells are durable in place.
//! 8. A nonce is drawn for every cell that is ever written, and a salt for every head, and both are
//!    hedged: where the source repeats, they repeat with the content alone.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ahead;
mod batch;
mod batch_writer;
#[cfg(any(test, feature = "simulator"))]
mod bound;
mod cell;
mod cell_store;
mod disk;
mod draw;
mod durability;
mod head;
mod journal;
mod keys;
mod leaf_loader;
mod level_cells;
mod limits;
mod open_levels;
mod params;
mod place;
mod plan;
mod prepared;
mod progress;
mod public;
mod recovery;
mod regions;
mod store;
mod threads;
#[cfg(any(test, feature = "simulator"))]
mod world;

#[cfg(any(test, feature = "simulator"))]
pub use bound::tail_base;
pub use disk::Oblivious;
pub use lacuna_levels::{LevelDisk, Levels, OpenOptions, Randomness};
pub use params::{Params, VERSION};
pub use plan::{Hiding, Plan};
#[cfg(any(test, feature = "simulator"))]
pub use world::World;
