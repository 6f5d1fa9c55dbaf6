//! `integrity`: files of blocks whose every alteration and replay is noticed, with constant trusted storage (paper 002).
//!
//! [`ProtectedFile`] is one file under MT-, RAND- or COMP-EINT, over [`Untrusted`] storage; each commit gives its trusted storage,
//! [`Trusted`]. [`Integrity`] is the random-access model of section 2, which each scheme implements by itself, the paper's own
//! constructions ([`ReferenceMt`], [`ReferenceRand`], [`ReferenceComp`]) included.
//!
//! Invariants kept here:
//! - A check returns the latest content or an error, whatever was done to untrusted storage since; zeros for what was never written.
//! - Trusted storage takes at most 200 bytes, whatever the file's length and history.
//! - No block is encrypted twice under one key and nonce, or under one tweak, not even after a crash: counters are pairs of a
//!   random session and a pass, and a pass writes each block once. Where counters repeat all the same, in a machine that is
//!   resumed twice, no nonce serves for two contents: it is the tag, which depends on the content.
//! - Nothing is hashed before a commit, but where dirty pages exceed the budget.
//! - Bytes from untrusted storage never panic, and what is allocated for them is bounded.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// `Failed` is an `Error` and a number; it is made where a block fails, which is rare.
#![allow(clippy::result_large_err)]

// The fixture of the tests is that of the unit tests as well.
#[cfg(test)]
extern crate self as lacuna_integrity;

mod auth_counters;
mod binary_tree;
mod body;
mod compress;
mod conversion;
mod counter;
mod entropy;
mod entropy_bound;
mod file;
#[cfg(test)]
mod game;
mod integrity;
mod intervals;
mod keys;
mod low;
pub mod measure;
mod mt;
mod mt_counters;
mod nature;
mod node_cache;
mod page_array;
mod reference_blocks;
mod reference_comp;
mod reference_counters;
mod reference_mt;
mod reference_rand;
mod reference_rtree;
mod scheme;
mod schemes;
mod section;
mod selective;
mod tampered;
mod tree_page;
mod trusted;
mod untrusted;
mod weak;
mod wide_tree;
mod witness;

pub use binary_tree::{BinaryTree, NodeHash};
pub use compress::{PACKED_HEADER, compress, decompress};
pub use counter::{Counter, Session};
pub use entropy::{
    LARGEST_BLOCK, RUN_BOUND, SMALLEST_BLOCK, STATISTIC_BITS, is_random_looking, statistic, statistic_term,
    threshold,
};
pub use entropy_bound::TailBound;
pub use file::{ProtectedFile, Usage};
pub use integrity::{Checked, Failed, Integrity};
pub use keys::FileKeys;
pub use node_cache::{ListCache, NodeCache, TableCache};
pub use reference_comp::ReferenceComp;
pub use reference_counters::CounterIntervals;
pub use reference_mt::ReferenceMt;
pub use reference_rand::ReferenceRand;
pub use scheme::{Choice, Scheme};
pub use schemes::{Alone, CompEint, MtEint, RandEint};
pub use trusted::Trusted;
pub use untrusted::{PART_PAGE, Part, Untrusted};
