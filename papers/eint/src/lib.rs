//! `eint`: the schemes of EINT exactly as in its figures, and its measurements redone with them,
//! beside the schemes of vaults (`crates/parts/integrity`): Tables 1 to 6, Figures 4, 5 and 12 to
//! 17, the claims of its text, and the false accepts of IsRand.
//!
//! [`Integrity`] is the random-access model of section 2. The reference schemes [`ReferenceMt`],
//! [`ReferenceRand`] and [`ReferenceComp`] implement it. They have the paper's flaws that
//! docs/integrity.md names: no file is stored with them.
#![forbid(unsafe_code)]
// `FailedBlock` holds an `Error` and a block number; it is only created for a block that fails,
// which is rare.
#![allow(clippy::result_large_err)]

mod binary_tree;
mod claims;
mod entropy_bound;
mod false_accept;
mod false_accept_plot;
mod false_accept_report;
mod files;
pub mod measure;
mod node_cache;
mod node_hash;
mod paper;
mod parts;
mod random_access;
mod reference_blocks;
mod reference_comp;
mod reference_counters;
mod reference_keys;
mod reference_mt;
mod reference_rand;
mod reference_rtree;
mod report;
mod speed;
mod speed_plot;
mod tables;
mod trace_counters;
mod trace_model;
mod trace_speed;

use lacuna_bench::section::BenchSection;

pub use binary_tree::BinaryTree;
pub use entropy_bound::{RUN_BOUND, TailBound};
pub use node_cache::{ListCache, NodeCache, TableCache};
pub use node_hash::NodeHash;
pub use random_access::Integrity;
pub use reference_comp::ReferenceComp;
pub use reference_counters::CounterIntervals;
pub use reference_keys::ReferenceKeys;
pub use reference_mt::ReferenceMt;
pub use reference_rand::ReferenceRand;

/// The schemes of the paper and of vaults, compared.
pub const INTEGRITY: BenchSection = BenchSection::new("integrity", "Paper 002: integrity", report::measure);

/// The statistic of IsRand on random blocks, beside its bound.
pub const FALSE_ACCEPT: BenchSection =
    BenchSection::new("false-accept", "Paper 002: false accepts", false_accept_report::measure);
