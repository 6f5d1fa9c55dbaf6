//! Mounted file systems.

pub(crate) mod file_jobs;
pub(crate) mod mountable;
pub(crate) mod report;
