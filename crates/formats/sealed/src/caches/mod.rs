//! Caches in memory.

pub(crate) mod cache;
pub(crate) mod meta_cache;
pub(crate) mod scratch;
