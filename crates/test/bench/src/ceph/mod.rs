//! Disks on Ceph.

pub(crate) mod cluster;
pub(crate) mod image;
pub(crate) mod plot;
pub(crate) mod rados;
pub(crate) mod report;
