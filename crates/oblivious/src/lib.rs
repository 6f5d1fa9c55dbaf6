//! `oblivious`: HIVE, hidden volumes in a write-only ORAM (paper 001). So far the heart of it alone: which of the
//! physical cells that an operation rewrites takes what. There is no medium, no map on one and no format yet.
//!
//! Every operation rewrites *k* distinct cells, drawn uniformly from all. What a cell held and still is the latest version
//! of its block stays there, encrypted anew; the others take blocks from the *stash*, where everything that was written
//! waits its turn; what is left over takes random bytes. Whoever images the medium sees *k* random cells change, whatever
//! was written.
//!
//! Invariants:
//! 1. The cells of an operation are a function of public randomness alone.
//! 2. What a volume's key shows is a function of the operations on that volume and those below it: a lower volume takes
//!    the cell of a higher one as if it were empty, and the block that lay there goes back to its stash. (Algorithm 6
//!    reads all *k* cells into the stashes; to leave a block where it lies, if nobody below wants the place, shows the
//!    same and changes fewer maps.)
//! 3. Every block that was written is in its cell or in the stash, and in no other cell that counts.
//! 4. With blocks for at most half of the cells, the stash is longer than *m* with a probability that falls as fast as
//!    [`tail_base`] to the power of *m*.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bound;
mod draw;
mod placement;
mod stash;

pub use bound::tail_base;
pub use draw::draw_cells;
pub use placement::{Fill, place};
pub use stash::{Block, Stash};
