//! `integrity`: files of blocks whose every alteration and replay is noticed, with constant trusted
//! storage (EINT).
//!
//! [`ProtectedFile`] is one file under MT-, RAND- or COMP-EINT, over [`Untrusted`] storage; each
//! commit gives its trusted storage, [`Trusted`]. The paper's own constructions, and the
//! measurements that compare both, are in `papers/eint`.
//!
//! Invariants kept here:
//! - A check returns the latest content or an error, whatever was done to untrusted storage since;
//!   zeros for what was never written.
//! - Trusted storage takes at most 200 bytes, whatever the file's length and history.
//! - No block is encrypted twice under one key and nonce, or under one tweak, not even after a
//!   crash: counters are pairs of a random session and a pass, and a pass writes each block once.
//!   Where counters repeat all the same, in a machine that is resumed twice, no nonce serves for
//!   two contents: it is the tag, which depends on the content.
//! - Nothing is hashed before a commit, but where dirty pages exceed the budget.
//! - Bytes from untrusted storage never panic, and what is allocated for them is bounded.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// `Failed` is an `Error` and a number; it is made where a block fails, which is rare.
#![allow(clippy::result_large_err)]

// The fixture of the tests is that of the unit tests as well.
#[cfg(test)]
extern crate self as lacuna_integrity;

#[cfg(not(feature = "ablation"))]
mod ablation;
#[cfg(feature = "ablation")]
pub mod ablation;
mod auth_counters;
mod body;
mod compress;
mod conversion;
mod counter;
mod entropy;
mod failed;
mod file;
mod intervals;
mod keys;
mod low;
mod mt;
mod mt_counters;
mod nature;
#[cfg(test)]
mod nonce_tests;
mod page_array;
mod scheme;
mod schemes;
mod section;
mod selective;
mod tampered;
mod tree_page;
mod trusted;
mod untrusted;
mod wide_tree;
mod witness;

pub use compress::{PACKED_HEADER, compress, decompress};
pub use counter::Session;
pub use entropy::{
    LARGEST_BLOCK, SMALLEST_BLOCK, STATISTIC_BITS, is_random_looking, statistic, statistic_term, threshold,
};
pub use failed::{Checked, Failed};
pub use file::{ProtectedFile, Usage};
pub use keys::FileKeys;
pub use scheme::{Choice, Scheme};
pub use trusted::Trusted;
pub use untrusted::{PART_PAGE, Part, Untrusted};
