//! The verbs. Each has a file, or a folder with several, and calls the crates below. Code for open
//! disks that several verbs share is beside them.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod close;
pub(crate) mod create;
pub(crate) mod doctor;
mod empty_level;
pub(crate) mod erase;
pub(crate) mod header;
mod holder;
mod in_pool;
pub(crate) mod info;
pub(crate) mod key;
pub(crate) mod lacks;
pub(crate) mod list;
pub(crate) mod mounted_disk;
pub(crate) mod online;
#[cfg(feature = "fuse")]
pub(crate) mod open;
mod open_at;
mod place;
pub(crate) mod purge;
pub(crate) mod rescue;
pub(crate) mod resize;
pub(crate) mod serve;
pub(crate) mod snapshot;
pub(crate) mod status;
mod unlock;
pub(crate) mod vault;
