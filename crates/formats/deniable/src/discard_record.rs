//! The record of discards: ranges of blocks in one block, ended by an empty range.

use lacuna_contracts::{BLOCK_SIZE, LeReader};

const RANGE: usize = 16;
/// Ranges in one record.
pub(crate) const MAX_RANGES: usize = BLOCK_SIZE / RANGE;

/// Writes the range at index `at`.
pub(crate) fn put(block: &mut [u8], at: usize, first: u64, count: u64) {
    let out = &mut block[at * RANGE..(at + 1) * RANGE];
    out[..8].copy_from_slice(&first.to_le_bytes());
    out[8..].copy_from_slice(&count.to_le_bytes());
}

/// The ranges of a record.
pub(crate) fn ranges(block: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let ranges = block.chunks_exact(RANGE).map(|range| (LeReader(range).u64(0), LeReader(range).u64(8)));
    ranges.take_while(|&(_, count)| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discard_ranges_round_trip() {
        let mut block = [0; BLOCK_SIZE];
        put(&mut block, 0, 5, 7);
        put(&mut block, 1, 0, u64::MAX);
        assert_eq!(ranges(&block).collect::<Vec<_>>(), [(5, 7), (0, u64::MAX)]);
        for at in 0..MAX_RANGES {
            put(&mut block, at, at as u64, 1);
        }
        assert_eq!(ranges(&block).count(), MAX_RANGES);
    }
}
