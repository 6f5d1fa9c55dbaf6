//! Caches in memory, and buffers that threads reuse.

pub(crate) mod cache;
pub(crate) mod meta_cache;
pub(crate) mod scratch;
