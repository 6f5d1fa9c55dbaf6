//! `dnefs`: the simulated phone of DNEFS and its Tables 2 to 5, redone on the format `flash` with keys and without; and
//! what the assignment of keys, which the paper leaves open, does to the cost of a purge.
//!
//! Every figure but the times of the processor is a function of the code alone: the same on every machine.
#![forbid(unsafe_code)]

mod assignment;
mod phone_chip;
mod phone_files;
mod phone_grain;
mod phone_life;
mod phone_plot;
mod phone_report;
mod phone_timing;
mod phone_wear;
mod phone_week;

use lacuna_bench::section::Section;

/// The phone.
pub const PHONE: Section = Section::new("phone", "Paper 003: the phone", phone_report::measure);

/// Which key a new node gets.
pub const ASSIGNMENT: Section =
    Section::new("assignment", "Paper 003: assignment of keys", assignment::measure);
