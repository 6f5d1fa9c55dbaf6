//! Directories and names.

pub(crate) mod directories;
pub(crate) mod entries;
pub(crate) mod paths;
pub(crate) mod rename;
pub(crate) mod tree;
