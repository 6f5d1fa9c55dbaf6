//! The parser of a record of discards, which no forged log reaches, for the fuzz target.

/// The ranges that a record names: first block and length.
pub fn discards(record: &[u8]) -> Vec<(u64, u64)> {
    crate::trims::ranges(record).collect()
}
