//! Gives the fuzz target the parser of a record of discards, which no forged log reaches.

/// The ranges in a record: first block and length.
pub fn discards(record: &[u8]) -> Vec<(u64, u64)> {
    crate::discard_record::ranges(record).collect()
}
