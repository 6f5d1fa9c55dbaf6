//! `open`: mounts the file system of a disk or a vault.

pub(crate) mod disk;
mod left_mounts;
pub(crate) mod lowest_level;
mod mountpoint;
mod report;
mod stopping;
pub(crate) mod vault;
