//! Two commits beside each other.

pub(crate) mod commits;
pub(crate) mod compare;
pub(crate) mod compared_disks;
pub(crate) mod confidence;
pub(crate) mod self_test;
