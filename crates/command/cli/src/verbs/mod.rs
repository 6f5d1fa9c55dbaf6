//! The verbs. Each has a file, or a folder with several, and calls the crates below. Code for open
//! disks that several verbs share is beside them.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod close;
mod closing_rounds;
pub(crate) mod create;
pub(crate) mod doctor;
mod empty_level;
pub(crate) mod erase;
mod file_identity;
pub(crate) mod header;
pub(crate) mod info;
pub(crate) mod key;
pub(crate) mod list;
pub(crate) mod missing_features;
pub(crate) mod mounted_disk;
#[cfg(feature = "fuse")]
pub(crate) mod open;
mod open_instances;
mod pool_access;
pub(crate) mod purge;
mod rados_target;
pub(crate) mod remote_ops;
pub(crate) mod rescue;
pub(crate) mod resize;
pub(crate) mod serve;
pub(crate) mod snapshot;
pub(crate) mod status;
mod unlock;
pub(crate) mod vault;
