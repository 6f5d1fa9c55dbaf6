//! `integrity`: files of blocks that detect every alteration and replay, with constant trusted
//! storage (EINT).
//!
//! [`ProtectedFile`] is one file under MT-, RAND- or COMP-EINT, over [`Untrusted`] storage; each
//! commit gives its trusted storage, [`Trusted`]. The paper's own constructions, and the
//! measurements that compare both, are in `papers/eint`.
//!
//! Invariants kept here:
//! - A check returns the latest content or an error, whatever the adversary did to untrusted
//!   storage; blocks that were never written read as zeros.
//! - Trusted storage takes at most 200 bytes, whatever the file's length and history.
//! - No two encryptions of a block share a key and nonce, or a tweak, not even after a crash:
//!   counters are pairs of a random session and a pass, and a pass writes each block once. A
//!   machine that is resumed twice can repeat counters; even then no nonce serves for two contents,
//!   because the nonce is the tag, which depends on the content.
//! - Nothing is hashed before a commit, except where dirty pages exceed the budget.
//! - Bytes from untrusted storage never cause a panic, and allocations for them are bounded.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// `FailedBlock` is large (an `Error` and a number), but it is made only where a block fails, which
// is rare.
#![allow(clippy::result_large_err)]

// Unit tests and integration tests share one fixture, which names this crate.
#[cfg(test)]
extern crate self as lacuna_integrity;

#[cfg(not(feature = "ablation"))]
mod ablation;
#[cfg(feature = "ablation")]
pub mod ablation;
mod conversion;
mod counters;
mod failed;
mod file;
mod file_profile;
mod keys;
mod nonce_log;
#[cfg(test)]
mod nonce_tests;
mod scheme;
mod schemes;
mod section;
mod tampered;
mod trusted;
mod untrusted;
mod wide_tree;

pub use counters::counter::Session;
pub use failed::{CheckResult, FailedBlock};
pub use file::{ProtectedFile, Usage};
pub use keys::FileKeys;
pub use scheme::{Choice, Scheme};
pub use schemes::compress::{PACKED_HEADER, compress, decompress};
pub use schemes::entropy::{
    LARGEST_BLOCK, SMALLEST_BLOCK, STATISTIC_BITS, is_random_looking, statistic, statistic_term, threshold,
};
pub use trusted::Trusted;
pub use untrusted::{PART_PAGE, Part, Untrusted};
