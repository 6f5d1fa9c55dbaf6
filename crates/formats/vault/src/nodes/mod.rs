//! Inodes and their attributes.

pub(crate) mod acl;
pub(crate) mod attr;
pub(crate) mod attributes;
pub(crate) mod inode_record;
pub(crate) mod inodes;
pub(crate) mod open_handles;
