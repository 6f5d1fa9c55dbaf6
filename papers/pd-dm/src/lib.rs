//! `pd-dm`: the figures of PD-DM that need no machine, redone on the format `deniable`: Figure 4 and sections 3.3 and 6 by
//! counting, Tables 2 to 4 and Figures 6 and 8 by models of the disks that the paper used.
//!
//! Every figure is a function of the code alone: the same on every machine.
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

use lacuna_bench::section::Section;

/// All of it.
pub const MODELS: Section = Section::new("models", "Paper 000: models", models::measure);
