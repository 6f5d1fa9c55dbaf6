//! Commits: what they say, the log that makes them durable, and the interval between two of them.

pub(crate) mod codec;
pub(crate) mod commit_interval;
pub(crate) mod log;
pub(crate) mod record;
