//! When the vault commits.

pub(crate) mod group_commit;
pub(crate) mod timer;
