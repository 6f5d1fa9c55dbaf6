//! The division of a disk's cells into regions: every level has a region of its own, whether it
//! exists or not.
//!
//! This is the paper's generic construction: one write-only ORAM for each volume, with every
//! operation touching all of them (HIVE, section 4). The activity in the region of one level does
//! not depend on any other level. Sizes follow from public parameters alone (deniability contract).

use crate::cells::place::CellNo;
use crate::limits::{GROUP, HIDDEN_LEVELS};
use crate::plan::Plan;
use lacuna_contracts::Secret;
use lacuna_crypto::derive;
use lacuna_levels::map_pages;

/// The regions of level 0 and of the hidden levels, and the rest.
pub(crate) const REGIONS: usize = HIDDEN_LEVELS + 2;
/// The fewest insertions of a level in a batch: a block and two pages.
const MIN_INSERTED: usize = 3;

/// The cells of one level, or of no level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Its first cell.
    pub(crate) first: CellNo,
    /// The number of its cells.
    pub(crate) cells: u64,
    /// The number of its cells that every batch rewrites.
    pub(crate) drawn: usize,
}

impl Region {
    /// Whether a cell belongs to the region.
    pub(crate) fn contains(&self, cell: CellNo) -> bool {
        (self.first.0..self.first.0 + self.cells).contains(&cell.0)
    }
}

/// Insertions, of data and pages, that a batch has cells for in each region.
pub(crate) fn inserted(plan: &Plan) -> [usize; REGIONS] {
    let operations = usize::from(plan.operations);
    let hidden = |sixteenths: usize| (operations * sixteenths / 16).max(MIN_INSERTED);
    [operations, hidden(8), hidden(2), MIN_INSERTED, 1]
}

/// Cells of each region that a batch rewrites: whole groups.
pub(crate) fn drawn(plan: &Plan) -> [usize; REGIONS] {
    inserted(plan).map(|inserted| (inserted * usize::from(plan.per_write)).next_multiple_of(GROUP as usize))
}

/// Cells of a region for each of its blocks and pages: in the long run two thirds stay free if an
/// insertion rewrites two cells, and a half if it rewrites more. An insertion therefore frees more
/// cells than it fills.
pub(crate) fn cells_per_block(per_write: u8) -> u32 {
    if per_write == 2 { 3 } else { 2 }
}

/// Divides all cells: three fifths to level 0; to each hidden level three quarters of the cells
/// that the levels below it left; the remainder to the last region. Each region has whole groups.
pub(crate) fn divide(cells: u64, plan: &Plan) -> [Region; REGIONS] {
    let drawn = drawn(plan);
    let (mut first, mut left) = (0, cells);
    std::array::from_fn(|region| {
        let cells = match region {
            0 => left / 5 * 3 / GROUP * GROUP,
            1..=HIDDEN_LEVELS => (left - left / 4) / GROUP * GROUP,
            _ => left,
        };
        let dealt = Region { first: CellNo(first), cells, drawn: drawn[region] };
        (first, left) = (first + cells, left - cells);
        dealt
    })
}

/// The most blocks of a level that, with its map, leaves enough cells of a region free.
pub(crate) fn max_blocks(cells: u64, plan: &Plan) -> u64 {
    let usable = cells / u64::from(cells_per_block(plan.per_write));
    let (mut fits, mut too_many) = (0, usable.min(lacuna_levels::MAX_LEVEL_BLOCKS) + 1);
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if middle + map_pages(middle) <= usable { fits = middle } else { too_many = middle }
    }
    fits
}

/// The length of a hidden level that may have `most` blocks: up to a sixteenth less, derived from
/// its key. If the system's log or another program shows the size of the disk, public numbers do
/// not imply it.
pub(crate) fn hidden_length(level: &Secret<32>, most: u64) -> u64 {
    let drawn = derive::<8>(level, "oblivious length", &[]);
    most - u64::from_le_bytes(*drawn.expose()) % (most / 16 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_divided_into_consecutive_regions() {
        for cells in [1024, 1032, 99_992, 1 << 39] {
            let mut next = 0;
            for region in divide(cells, &Plan::DEFAULT) {
                assert_eq!(region.first, CellNo(next));
                assert!(region.cells >= region.drawn as u64 || cells < 2000, "{region:?}");
                assert!(region.cells.is_multiple_of(GROUP) && region.drawn.is_multiple_of(GROUP as usize));
                next += region.cells;
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
