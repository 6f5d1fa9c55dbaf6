//! The number of pages of a map, and the length of the largest level that fits a medium.

use lacuna_contracts::BLOCK_SIZE;

/// Places in a page of a map.
pub const FANOUT: u64 = 512;
/// The most blocks of a level: 4 PiB, so that an address fits its entry.
pub const MAX_LEVEL_BLOCKS: u64 = 1 << 40;
/// Slots kept free beside those of a level and its map, for records of discards.
pub const DISCARD_SLOTS: u64 = 16;

const _: () = assert!(FANOUT as usize * 8 == BLOCK_SIZE);

/// Pages of the map of a level of `blocks` blocks, all depths together.
pub fn map_pages(blocks: u64) -> u64 {
    let (mut total, mut width) = (0, blocks);
    loop {
        width = width.div_ceil(FANOUT);
        total += width;
        if width <= 1 {
            return total;
        }
    }
}

/// The length of the largest level that fits `slots` slots with its map, [`DISCARD_SLOTS`] of them
/// kept free.
pub fn largest_level(slots: u64) -> u64 {
    let (mut fits, mut too_many) = (0, slots.min(MAX_LEVEL_BLOCKS) + 1);
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if middle + map_pages(middle) + DISCARD_SLOTS <= slots { fits = middle } else { too_many = middle }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_level_fits_and_the_next_does_not() {
        assert_eq!([1, 512, 513, 512 * 512 + 1].map(map_pages), [1, 1, 3, 513 + 2 + 1]);
        assert_eq!(largest_level(17), 0);
        for slots in [18, 19, 600, 10_000, 1 << 20, (1 << 30) + 7] {
            let fits = largest_level(slots);
            assert!(fits + map_pages(fits) + DISCARD_SLOTS <= slots);
            assert!(fits + 1 + map_pages(fits + 1) + DISCARD_SLOTS > slots);
        }
        assert_eq!(largest_level(u64::MAX), MAX_LEVEL_BLOCKS);
    }
}
