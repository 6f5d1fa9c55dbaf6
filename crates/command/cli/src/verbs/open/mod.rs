//! `open`: a disk or a vault as a mounted file system.

pub(crate) mod disk;
mod mountpoint;
pub(crate) mod vault;
