//! What the places in a map mean: a cell, and the batch that put the block there.
//!
//! The place goes into what authenticates the block. One that stays in its cell is encrypted anew under the place that it
//! has; so a cell that is put back to an earlier state opens only if what it held then is what the map means now.

use lacuna_levels::LOST;

/// Bits for the cell, counted from 1.
pub(crate) const CELL_BITS: u32 = 40;
/// Batches after which the numbers in places come round.
pub(crate) const BATCHES: u64 = 1 << 23;
/// Marks what is no place in a map: a slot of the stash.
const STASH: u64 = 1 << 63;

/// The place of what batch `seq` puts into a cell. Neither 0 nor [`LOST`].
pub(crate) fn place(seq: u64, cell: u64) -> u64 {
    debug_assert!(cell + 1 < 1 << CELL_BITS, "the parameters bound the cells");
    (seq % BATCHES) << CELL_BITS | (cell + 1)
}

/// The cell of a place; none if it is none.
pub(crate) fn cell_of(place: u64) -> Option<u64> {
    let sane = place != LOST && place < STASH;
    (place & ((1 << CELL_BITS) - 1)).checked_sub(1).filter(|_| sane)
}

/// What stands for the place of a block that batch `seq` leaves in a slot of the stash.
pub(crate) fn stash_place(seq: u64, slot: usize) -> u64 {
    STASH | (seq % BATCHES) << CELL_BITS | slot as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_tell_their_cell_and_differ_from_batch_to_batch() {
        let last = (1 << CELL_BITS) - 2;
        for (seq, cell) in [(1, 0), (BATCHES - 1, last), (BATCHES, 7), (u64::MAX, last)] {
            assert_eq!(cell_of(place(seq, cell)), Some(cell));
            assert_ne!(place(seq, cell), place(seq.wrapping_add(1), cell));
            assert_eq!(cell_of(stash_place(seq, 3)), None);
        }
        assert_eq!([0, LOST, 1 << CELL_BITS].map(cell_of), [None; 3]);
    }
}
