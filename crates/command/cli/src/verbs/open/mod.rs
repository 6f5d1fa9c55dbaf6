//! `open`: mounts the file system of a disk or a vault.

pub(crate) mod disk;
mod mountpoint;
pub(crate) mod vault;
