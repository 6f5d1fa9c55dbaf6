//! The format `flash`.

pub(crate) mod disks;
pub(crate) mod file;
pub(crate) mod job;
pub(crate) mod large;
pub(crate) mod processor_ratios;
pub(crate) mod report;
pub(crate) mod sparse;
pub(crate) mod speed;
