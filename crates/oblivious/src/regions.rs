//! How the cells of a disk are dealt out: every level has a region of its own, whether it exists or not.
//!
//! This is the paper's generic construction, one write-only ORAM for each volume, every operation touching all of them
//! (paper 001, section 4): what happens in the region of a level depends on nothing in another. Sizes follow from public
//! parameters alone (deniability contract).

use crate::params::{GROUP, Plan};
use lacuna_core::{BLOCK_SIZE, Secret};
use lacuna_crypto::derive;
use lacuna_levels::pages_of;

/// Hidden levels that a disk has room for.
pub(crate) const HIDDEN_LEVELS: usize = 3;
/// The region of level 0, those of the hidden levels, and the rest.
pub(crate) const REGIONS: usize = HIDDEN_LEVELS + 2;
/// The fewest insertions of a level in a batch: a block and two pages.
const LEAST_INSERTED: usize = 3;

const _: () = assert!(BLOCK_SIZE == 4096);

/// A region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Its first cell.
    pub(crate) first: u64,
    /// Its cells.
    pub(crate) cells: u64,
    /// Cells of it that every batch rewrites.
    pub(crate) drawn: usize,
}

/// Insertions, of data and pages, that a batch has cells for: in the region of each level, and in the rest.
pub(crate) fn inserted(plan: &Plan) -> [usize; REGIONS] {
    let operations = usize::from(plan.operations);
    let hidden = |sixteenths: usize| (operations * sixteenths / 16).max(LEAST_INSERTED);
    [operations, hidden(8), hidden(2), LEAST_INSERTED, 1]
}

/// Cells of each region that a batch rewrites: whole groups.
pub(crate) fn drawn(plan: &Plan) -> [usize; REGIONS] {
    inserted(plan).map(|inserted| (inserted * usize::from(plan.per_write)).next_multiple_of(GROUP as usize))
}

/// The share of the cells of a region that stays free in the long run: two thirds with two cells for an insertion, a half
/// with more.
pub(crate) fn free_share(plan: &Plan) -> f64 {
    1.0 - 1.0 / f64::from(divisor(plan))
}

fn divisor(plan: &Plan) -> u32 {
    if plan.per_write == 2 { 3 } else { 2 }
}

/// Deals out all cells: three fifths to level 0; of what is left to each hidden level three quarters of what the levels
/// below left; and the rest. Each region has whole groups.
pub(crate) fn deal(cells: u64, plan: &Plan) -> [Share; REGIONS] {
    let drawn = drawn(plan);
    let (mut first, mut left) = (0, cells);
    std::array::from_fn(|region| {
        let cells = match region {
            0 => left / 5 * 3 / GROUP * GROUP,
            1..=HIDDEN_LEVELS => (left - left / 4) / GROUP * GROUP,
            _ => left,
        };
        let share = Share { first, cells, drawn: drawn[region] };
        (first, left) = (first + cells, left - cells);
        share
    })
}

/// The most blocks of a level whose data and map leave as much of a region free as they should.
pub(crate) fn most_blocks(cells: u64, plan: &Plan) -> u64 {
    let usable = cells / u64::from(divisor(plan));
    let (mut fits, mut too_many) = (0, usable.min(lacuna_levels::MOST_BLOCKS) + 1);
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if middle + pages_of(middle) <= usable { fits = middle } else { too_many = middle }
    }
    fits
}

/// The length of a hidden level that may have `most` blocks: up to a sixteenth less, as its key says. The system's log and
/// whatever else tells the size of a disk then gives none that a public number implies.
pub(crate) fn hidden_length(level: &Secret<32>, most: u64) -> u64 {
    let drawn = derive::<8>(level, "oblivious length", &[]);
    most - u64::from_le_bytes(*drawn.expose()) % (most / 16 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cells_are_dealt_out_in_order() {
        for cells in [1024, 1032, 99_992, 1 << 39] {
            let shares = deal(cells, &Plan::DEFAULT);
            let mut next = 0;
            for share in shares {
                assert_eq!(share.first, next);
                assert!(share.cells >= share.drawn as u64 || cells < 2000, "{share:?}");
                assert!(share.cells.is_multiple_of(GROUP) && share.drawn.is_multiple_of(GROUP as usize));
                next += share.cells;
            }
            assert_eq!(next, cells);
        }
    }

    #[test]
    fn lengths_follow_from_the_key() {
        let lengths = [1u8, 2, 3].map(|byte| hidden_length(&Secret::copy_from(&[byte; 32]), 100_000));
        assert!(lengths.iter().all(|blocks| (93_750..=100_000).contains(blocks)), "{lengths:?}");
        assert!(lengths[0] != lengths[1] && lengths[1] != lengths[2]);
        assert_eq!(hidden_length(&Secret::copy_from(&[1; 32]), 5), 5);
    }
}
