//! The numbers of batches and cells, and places in a map: a cell, and the batch that put the block
//! there.
//!
//! Invariant: the tag of a block authenticates its place. A block that stays in its cell is
//! encrypted anew under its old place. A cell that is put back to an earlier state therefore opens
//! only if its block at that time is the version that the map names now.

use crate::limits::CELL_BITS;
use lacuna_levels::LOST_PLACE;

/// The number of a batch, counted from 1; 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BatchSeq(pub(crate) u64);

impl BatchSeq {
    /// The next batch.
    pub(crate) fn next(self) -> BatchSeq {
        BatchSeq(self.0 + 1)
    }
}

/// The number of a cell on the medium, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CellNo(pub(crate) u64);

/// The number of a slot of the stash in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StashSlot(pub(crate) usize);

/// Batches after which the numbers in places repeat.
const BATCHES: u64 = 1 << 23;
/// Marks a slot of the stash, which is not a place in a map.
const STASH: u64 = 1 << 63;

/// The place of a block, as a map or a cell gives it. It may be forged: [`CellPlace::cell`] checks
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CellPlace(u64);

impl CellPlace {
    /// The place of a block that batch `seq` puts into a cell. As a word it is neither 0 nor
    /// [`LOST_PLACE`].
    pub(crate) fn new(seq: BatchSeq, cell: CellNo) -> CellPlace {
        debug_assert!(cell.0 + 1 < 1 << CELL_BITS, "the parameters bound the cells");
        CellPlace((seq.0 % BATCHES) << CELL_BITS | (cell.0 + 1))
    }

    /// Stands for the place of a block that batch `seq` leaves in a slot of the stash.
    pub(crate) fn in_stash(seq: BatchSeq, slot: StashSlot) -> CellPlace {
        CellPlace(STASH | (seq.0 % BATCHES) << CELL_BITS | slot.0 as u64)
    }

    /// The place in a word of a map or of a cell.
    pub(crate) fn from_word(word: u64) -> CellPlace {
        CellPlace(word)
    }

    /// The form in a map.
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// Its cell; none if this is not a place in a map.
    pub(crate) fn cell(self) -> Option<CellNo> {
        let sane = self.0 != LOST_PLACE && self.0 < STASH;
        (self.0 & ((1 << CELL_BITS) - 1)).checked_sub(1).filter(|_| sane).map(CellNo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_name_their_cell_and_differ_between_batches() {
        let last = CellNo((1 << CELL_BITS) - 2);
        for (seq, cell) in [(1, CellNo(0)), (BATCHES - 1, last), (BATCHES, CellNo(7)), (u64::MAX, last)] {
            let place = CellPlace::new(BatchSeq(seq), cell);
            assert_eq!(place.cell(), Some(cell));
            assert_ne!(place, CellPlace::new(BatchSeq(seq.wrapping_add(1)), cell));
            assert_eq!(CellPlace::in_stash(BatchSeq(seq), StashSlot(3)).cell(), None);
        }
        assert_eq!([0, LOST_PLACE, 1 << CELL_BITS].map(|word| CellPlace::from_word(word).cell()), [None; 3]);
    }
}
