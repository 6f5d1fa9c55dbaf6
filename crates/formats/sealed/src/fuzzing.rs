//! The parser of a batch of the journal without a key, for the fuzz target.

pub use crate::journal::count_entries;
