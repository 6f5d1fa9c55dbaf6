//! Draws the cells that an operation rewrites.

use lacuna_crypto::RandomSource;

/// Draws `count` distinct cells of `cells`, each set with equal probability, in the order of
/// drawing.
///
/// Panics if there are fewer cells.
pub(crate) fn draw_cells(random: &dyn RandomSource, cells: u64, count: usize) -> Vec<u64> {
    assert!(count as u64 <= cells, "{count} of {cells} cells");
    let mut drawn: Vec<u64> = Vec::with_capacity(count);
    while drawn.len() < count {
        let cell = below(random, cells);
        if !drawn.contains(&cell) {
            drawn.push(cell);
        }
    }
    drawn
}

/// A number below `bound`, with equal probability.
fn below(random: &dyn RandomSource, bound: u64) -> u64 {
    // Numbers at or above this would make the small remainders likelier.
    let fair = u64::MAX - u64::MAX % bound;
    loop {
        let mut bytes = [0; 8];
        random.fill(&mut bytes);
        let number = u64::from_le_bytes(bytes);
        if number < fair {
            return number % bound;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_crypto::SeededRandom;

    #[test]
    fn drawn_cells_are_distinct_and_uniform() {
        let random = SeededRandom::new(1);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            let cells = draw_cells(&random, 10, 3);
            assert!(cells[0] != cells[1] && cells[1] != cells[2] && cells[0] != cells[2]);
            cells.iter().for_each(|cell| seen[*cell as usize] += 1);
        }
        // 3000 each; the standard deviation is 46.
        assert!(seen.iter().all(|n| n.abs_diff(3000) < 6 * 46), "{seen:?}");
        assert_eq!(draw_cells(&random, 2, 2).len(), 2);
    }
}
