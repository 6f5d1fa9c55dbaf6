//! The numbers of batches and cells, and the places in a map: a cell, and the batch that put the
//! block there.
//!
//! Invariant: the place goes into what authenticates the block. A block that stays in its cell is
//! encrypted anew under the place that it has. So a cell that is put back to an earlier state opens
//! only if what it held then is what the map means now.

use crate::limits::CELL_BITS;
use lacuna_levels::LOST;

/// The number of a batch, counted from 1; 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BatchSeq(pub(crate) u64);

impl BatchSeq {
    /// The batch after it.
    pub(crate) fn next(self) -> BatchSeq {
        BatchSeq(self.0 + 1)
    }
}

/// The number of a cell on the medium, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Cell(pub(crate) u64);

/// The number of a slot of the stash in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StashSlot(pub(crate) usize);

/// Batches after which the numbers in places come round.
const BATCHES: u64 = 1 << 23;
/// Marks what is no place in a map: a slot of the stash.
const STASH: u64 = 1 << 63;

/// Where a block lies, as a map or a cell says it. It may come from outside: [`Place::cell`] checks
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place(u64);

impl Place {
    /// The place of what batch `seq` puts into a cell. As a word it is neither 0 nor [`LOST`].
    pub(crate) fn new(seq: BatchSeq, cell: Cell) -> Place {
        debug_assert!(cell.0 + 1 < 1 << CELL_BITS, "the parameters bound the cells");
        Place((seq.0 % BATCHES) << CELL_BITS | (cell.0 + 1))
    }

    /// What stands for the place of a block that batch `seq` leaves in a slot of the stash.
    pub(crate) fn in_stash(seq: BatchSeq, slot: StashSlot) -> Place {
        Place(STASH | (seq.0 % BATCHES) << CELL_BITS | slot.0 as u64)
    }

    /// A word of a map, or of what a cell says.
    pub(crate) fn of_word(word: u64) -> Place {
        Place(word)
    }

    /// As a map has it.
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// Its cell; none if it is no place in a map.
    pub(crate) fn cell(self) -> Option<Cell> {
        let sane = self.0 != LOST && self.0 < STASH;
        (self.0 & ((1 << CELL_BITS) - 1)).checked_sub(1).filter(|_| sane).map(Cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_tell_their_cell_and_differ_from_batch_to_batch() {
        let last = Cell((1 << CELL_BITS) - 2);
        for (seq, cell) in [(1, Cell(0)), (BATCHES - 1, last), (BATCHES, Cell(7)), (u64::MAX, last)] {
            let place = Place::new(BatchSeq(seq), cell);
            assert_eq!(place.cell(), Some(cell));
            assert_ne!(place, Place::new(BatchSeq(seq.wrapping_add(1)), cell));
            assert_eq!(Place::in_stash(BatchSeq(seq), StashSlot(3)).cell(), None);
        }
        assert_eq!([0, LOST, 1 << CELL_BITS].map(|word| Place::of_word(word).cell()), [None; 3]);
    }
}
