//! Who gets which of the cells of a batch: the second half of HIVE's Algorithm 6.

/// The cells of a batch, of which levels, the lowest first, keep or take theirs.
///
/// To a level, what is above it is as good as nothing (section 5.2): what it gets is what it would get if those above it
/// were not there.
pub struct Placement {
    /// The level whose block the cell is going to hold.
    owners: Vec<Option<u8>>,
    /// Nobody below this cell is without an owner.
    lowest: usize,
}

impl Placement {
    /// `cells` that nobody owns.
    pub fn new(cells: usize) -> Placement {
        Placement { owners: vec![None; cells], lowest: 0 }
    }

    /// A cell holds the latest version of a block of this level. It stays there, unless a lower level took the cell:
    /// then this returns false, and the block must wait for another.
    ///
    /// All of a level's are kept before the level takes any.
    pub fn keep(&mut self, level: u8, cell: usize) -> bool {
        debug_assert!(self.owners[cell] != Some(level), "a level keeps before it takes");
        if self.owners[cell].is_none() {
            self.owners[cell] = Some(level);
        }
        self.owners[cell] == Some(level)
    }

    /// The next cell that a level may take.
    pub fn free(&mut self) -> Option<usize> {
        let rest = &self.owners[self.lowest..];
        self.lowest += rest.iter().position(Option::is_none).unwrap_or(rest.len());
        (self.lowest < self.owners.len()).then_some(self.lowest)
    }

    /// Takes a cell for a level.
    pub fn take(&mut self, level: u8, cell: usize) {
        debug_assert!(self.owners[cell].is_none(), "a free cell is taken");
        self.owners[cell] = Some(level);
    }

    /// Cells that nobody owns: they take random bytes.
    pub fn unowned(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.owners.len()).filter(|cell| self.owners[*cell].is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_levels_come_first_and_displace() {
        // Cell 0 holds a block of level 1, cell 1 one of level 0, cells 2 and 3 nothing.
        let mut placement = Placement::new(4);
        assert!(placement.keep(0, 1));
        assert_eq!(placement.free(), Some(0));
        placement.take(0, 0);
        assert!(!placement.keep(1, 0) && !placement.keep(1, 1));
        assert_eq!(placement.free(), Some(2));
        placement.take(1, 2);
        assert_eq!(placement.unowned().collect::<Vec<_>>(), [3]);
    }
}
