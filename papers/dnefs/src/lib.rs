//! `dnefs`: Tables 2 to 5 of DNEFS, redone with a simulated phone on the format `flash`, with keys
//! and without; and the effect of key assignment, which the paper leaves open, on the cost of a
//! purge.
//!
//! All figures except processor times are functions of the code alone: the same on every machine.
#![forbid(unsafe_code)]

mod assignment;
mod phone_chip;
mod phone_files;
mod phone_node_size;
mod phone_plot;
mod phone_report;
mod phone_timing;
mod phone_use;
mod phone_wear;
mod phone_week;

use lacuna_bench::section::BenchSection;

/// The simulated phone: Tables 2 to 5.
pub const PHONE: BenchSection = BenchSection::new("phone", "Paper 003: the phone", phone_report::measure);

/// Policies that assign keys to new nodes.
pub const ASSIGNMENT: BenchSection =
    BenchSection::new("assignment", "Paper 003: assignment of keys", assignment::measure);
