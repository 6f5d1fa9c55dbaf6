//! An open disk, and the steps to it.

pub(crate) mod claim;
pub(crate) mod close_marks;
pub(crate) mod confidential_disk;
pub(crate) mod disk;
pub(crate) mod kept_memory;
pub(crate) mod open_disk_options;
pub(crate) mod reopenable_disk;
pub(crate) mod unlocked_disk;
