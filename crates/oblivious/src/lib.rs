//! `oblivious`: HIVE, hidden levels in a write-only ORAM, that stay deniable to someone who images the medium many times
//! and hide from everybody which blocks are written (paper 001); loses nothing in a power cut.
//!
//! The medium has *cells* ([`Params`], `docs/format/oblivious.md`), twice as many as the levels have blocks. Every operation
//! rewrites *k* distinct cells, drawn uniformly from all. What a cell held and still is the latest version of its block
//! stays there, encrypted anew; the others take blocks that wait, those of level 0 first; what is left over takes random
//! bytes. Whoever images the medium sees *k* random cells change, whatever was written. Operations go to the medium by the
//! *batch*: first to a ring, one after another, with a head in the journal; later in place.
//!
//! The map of a level is a tree whose pages are blocks of the same ORAM (the recursion of the paper); the heads of the last
//! batches say what pages do not yet. So an operation needs no operations on maps, only a constant share of them for pages.
//!
//! Invariants:
//! 1. Number, cells, order and size of all writes to the medium, those of opening and closing included, are a function of
//!    the number of public operations, public randomness and the paced clock; on a plausible disk, of the number of
//!    operations of all levels. (A discard counts for a quarter of a batch. Exceptions that depend on what level 0 holds: a
//!    discard that changes more pages of its map than the cache should keep causes batches until they are written; and what
//!    finds no room in the stash, which invariant 5 says is all but impossible, causes one.)
//! 2. What a level's key shows is a function of the operations on that level and those below it: a lower level takes the
//!    cell of a higher one as if it were empty, and the block that lay there goes back to its stash. (Algorithm 6 reads all
//!    *k* cells into the stashes; to leave a block where it lies, if nobody below wants the place, shows the same and changes
//!    fewer maps.)
//! 3. What is not public is uniform without its key: cells, slots of the stash and what heads say of levels are random bytes
//!    wherever no open level put ciphertext.
//! 4. Every block that was written is in its cell or in the stash, and in no other cell that counts.
//! 5. With blocks for at most half of the cells, the stash is longer than *m* with a probability that falls as fast as
//!    [`tail_base`] to the power of *m*.
//! 6. A cell is overwritten in place only with what is durable in the ring; a batch in the ring only when a durable head says
//!    that its cells are durable in place.
//! 7. A nonce is drawn for every cell that is ever written, and a salt for every head.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod bound;
mod cell;
mod core;
mod disk;
mod draw;
mod fuzz;
mod head;
mod params;
mod place;
mod placement;
mod public;
mod read;
mod recovery;
mod stash;
mod store;
mod threads;
mod world;

pub use bound::tail_base;
pub use disk::Oblivious;
pub use draw::draw_cells;
#[doc(hidden)]
pub use fuzz::fuzz_open;
pub use lacuna_levels::{LevelDisk, Levels, OpenOptions};
pub use params::{Hiding, Params, Plan};
pub use placement::Placement;
pub use stash::Stash;
pub use world::World;
