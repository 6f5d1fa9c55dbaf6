//! Looking at a disk without a passphrase: its header, its health, and the remains of a damaged
//! medium.

pub(crate) mod damaged_medium;
pub(crate) mod examine;
pub(crate) mod public_info;
