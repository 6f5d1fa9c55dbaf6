//! `pd-dm`: the figures of PD-DM that need no real disk, redone on the format `deniable`. Figure 4
//! and sections 3.3 and 6 are counted; Tables 2 to 4 and Figures 6 and 8 use models of the paper's
//! disks.
//!
//! All figures are functions of the code alone: the same on every machine.
#![forbid(unsafe_code)]

mod cache_bound;
mod cache_sizes;
mod hot_cold;
mod levels_plot;
mod locality;
mod modelled;
mod models;
mod paper_tables;
mod runs;
mod runs_plot;

use lacuna_bench::section::BenchSection;

/// All tables and figures of PD-DM.
pub const MODELS: BenchSection = BenchSection::new("models", "Paper 000: models", models::measure);
