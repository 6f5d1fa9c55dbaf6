//! The entry of a slot of the medium: the content of the slot, as the summary lists it.

use std::fmt;

/// The content of a slot: 8 bytes, the kind in the top byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing.
    Empty,
    /// The block at this address of the level.
    Data(u64),
    /// A page of the level's map.
    Page {
        /// Its distance to the leaves, which have 0.
        depth: u8,
        /// Its index among the pages of this depth.
        index: u64,
    },
    /// A list of ranges that were discarded.
    Trim {
        /// The number of the write to the medium, a stripe or a batch, that first recorded it.
        origin: u64,
    },
    /// The block at this address, which could not be read when it was to be carried. Reads of it
    /// fail until it is written.
    Lost(u64),
}

const ADDRESS: u64 = (1 << 48) - 1;
/// The most depths of a map.
pub(crate) const MOST_DEPTHS: u8 = 8;
/// In a map: the block cannot be read, because the page with its place could not.
pub const LOST: u64 = u64::MAX;

impl Entry {
    /// The form in a summary.
    pub fn pack(self) -> u64 {
        match self {
            Entry::Empty => 0,
            Entry::Data(addr) => 1 << 56 | addr,
            Entry::Page { depth, index } => 2 << 56 | u64::from(depth) << 48 | index,
            Entry::Trim { origin } => 3 << 56 | origin,
            Entry::Lost(addr) => 4 << 56 | addr,
        }
    }

    /// Reverses [`Entry::pack`]; none for anything else.
    pub fn unpack(packed: u64) -> Option<Entry> {
        let (depth, low) = ((packed >> 48) as u8, packed & ADDRESS);
        match (packed >> 56, depth) {
            (0, 0) if low == 0 => Some(Entry::Empty),
            (1, 0) => Some(Entry::Data(low)),
            (2, 0..MOST_DEPTHS) => Some(Entry::Page { depth, index: low }),
            (3, 0) => Some(Entry::Trim { origin: low }),
            (4, 0) => Some(Entry::Lost(low)),
            _ => None,
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Data(addr) | Entry::Lost(addr) => write!(f, "block {addr}"),
            Entry::Page { .. } => f.write_str("a page of the map"),
            Entry::Trim { .. } => f.write_str("a record of discards"),
            Entry::Empty => f.write_str("an empty slot"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_and_garbage_is_none() {
        let entries = [
            Entry::Empty,
            Entry::Data(0),
            Entry::Data(ADDRESS),
            Entry::Page { depth: 3, index: 77 },
            Entry::Trim { origin: 5 },
            Entry::Lost(9),
        ];
        for entry in entries {
            assert_eq!(Entry::unpack(entry.pack()), Some(entry));
        }
        for bad in [1, 5 << 56, 1 << 56 | 1 << 48, 2 << 56 | 8 << 48, u64::MAX] {
            assert_eq!(Entry::unpack(bad), None, "{bad:x}");
        }
        assert_eq!(Entry::Lost(9).to_string(), "block 9");
    }
}
