//! Disks over NBD.

pub(crate) mod disks;
pub(crate) mod disks_report;
pub(crate) mod levels;
