//! What the cells of one operation take: the second half of HIVE's Algorithm 6.

use crate::stash::{Block, Stash};

/// What a cell is written with. All are as long, and look the same to whoever lacks the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fill<T> {
    /// The block that it held, encrypted anew.
    Kept(u8, Block<T>),
    /// A block from the stash of a volume, whose map must say so from now on.
    Placed(u8, Block<T>),
    /// Random bytes.
    Random,
}

/// Decides what cells take that held `held`: for each the volume and the block whose latest version lay there, if it is of
/// an open volume. `stashes` are those of the open volumes, the lowest first; what a lower volume displaces goes to the
/// stash of its own, and the map of its volume must say so.
///
/// Lower volumes first (HIVE, section 5.2): a volume's fills are what they would be if those above it were not there.
///
/// Returns one fill for each cell.
pub fn place<T>(held: Vec<Option<(u8, Block<T>)>>, stashes: &mut [Stash<T>]) -> Vec<Fill<T>> {
    let mut cells: Vec<Cell<T>> = held.into_iter().map(Cell::of).collect();
    for volume in 0..stashes.len() as u8 {
        for cell in &mut cells {
            // To the volume, what is above it is as good as nothing.
            if cell.is_below(volume + 1) {
                continue;
            }
            let Some(block) = stashes[usize::from(volume)].pop() else { break };
            if let Cell::Held(above, displaced) = std::mem::replace(cell, Cell::Taken(volume, block)) {
                stashes[usize::from(above)].put(displaced);
            }
        }
    }
    cells.into_iter().map(Cell::fill).collect()
}

/// A cell on the way to its fill.
enum Cell<T> {
    Free,
    Held(u8, Block<T>),
    Taken(u8, Block<T>),
}

impl<T> Cell<T> {
    fn of(held: Option<(u8, Block<T>)>) -> Cell<T> {
        held.map_or(Cell::Free, |(volume, block)| Cell::Held(volume, block))
    }

    /// Whether it has a block of a volume below this.
    fn is_below(&self, volume: u8) -> bool {
        match self {
            Cell::Free => false,
            Cell::Held(of, _) | Cell::Taken(of, _) => *of < volume,
        }
    }

    fn fill(self) -> Fill<T> {
        match self {
            Cell::Free => Fill::Random,
            Cell::Held(volume, block) => Fill::Kept(volume, block),
            Cell::Taken(volume, block) => Fill::Placed(volume, block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64) -> Block<u64> {
        Block { number, data: number * 10 }
    }

    #[test]
    fn lower_volumes_come_first_and_displace() {
        let mut stashes = [Stash::default(), Stash::default()];
        stashes[0].put(block(1));
        stashes[1].put(block(2));
        // A cell of volume 1, one of volume 0, one that is free.
        let held = vec![Some((1, block(3))), Some((0, block(4))), None];
        let fills = place(held, &mut stashes);
        let expected = [Fill::Placed(0, block(1)), Fill::Kept(0, block(4)), Fill::Placed(1, block(2))];
        assert_eq!(fills, expected);
        // What was displaced waits, behind what waited before.
        assert!(stashes[0].is_empty());
        assert_eq!(stashes[1].pop(), Some(block(3)));
    }

    #[test]
    fn what_is_left_over_is_random_and_what_can_stay_stays() {
        let mut stashes = [Stash::default(), Stash::default()];
        stashes[0].put(block(9));
        let fills = place(vec![None, Some((1, block(3))), None], &mut stashes);
        assert_eq!(fills, [Fill::Placed(0, block(9)), Fill::Kept(1, block(3)), Fill::Random]);
        assert!(stashes.iter().all(Stash::is_empty));
    }
}
