//! The codes of the parts of a file's untrusted storage, in keys and roots.

use lacuna_integrity::Part;

/// The codes of tree levels: two trees of 16 levels.
const TREES: u8 = 32;

/// The code of a part.
pub(crate) fn part_code(part: Part) -> u8 {
    match part {
        Part::Tree(level) => {
            debug_assert!(level < TREES);
            level
        }
        Part::Counters => TREES,
        Part::Intervals => TREES + 1,
        Part::Order => TREES + 2,
        Part::Position => TREES + 3,
    }
}

/// The part with a code.
pub(crate) fn part_from_code(code: u8) -> Option<Part> {
    Some(match code {
        level if level < TREES => Part::Tree(level),
        c if c == TREES => Part::Counters,
        c if c == TREES + 1 => Part::Intervals,
        c if c == TREES + 2 => Part::Order,
        c if c == TREES + 3 => Part::Position,
        _ => return None,
    })
}
