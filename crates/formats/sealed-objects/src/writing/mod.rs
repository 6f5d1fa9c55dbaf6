//! The write path: from the cache to transactions on objects.

pub(crate) mod buffers;
pub(crate) mod dirty_cache;
pub(crate) mod encryptor;
pub(crate) mod object_change;
pub(crate) mod pending_segment;
pub(crate) mod transactor;
pub(crate) mod write_back;
pub(crate) mod write_path;
pub(crate) mod write_queue;
pub(crate) mod write_records;
pub(crate) mod write_threads;
