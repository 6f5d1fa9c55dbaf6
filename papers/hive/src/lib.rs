//! `hive`: the claim of HIVE that the stash of a write-only ORAM has a constant size, counted with
//! the draws and the placement of the format `oblivious`, beside the bound derived for them.
//!
//! All figures are functions of the code alone: the same on every machine.
#![forbid(unsafe_code)]

mod stash;
mod stash_plot;
mod stash_report;

use lacuna_bench::section::BenchSection;

/// The stash beside its bound.
pub const STASH: BenchSection = BenchSection::new("stash", "Paper 001: the stash", stash_report::measure);
