//! Measurements: processor time, counts of the kernel, samples, and a section's results.

pub(crate) mod counters;
pub(crate) mod machine_time;
pub(crate) mod pin;
pub(crate) mod processor;
pub(crate) mod samples;
pub mod section_results;
