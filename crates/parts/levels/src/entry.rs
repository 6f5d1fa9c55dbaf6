//! The entry of a slot of the medium: the content of the slot, as the summary lists it.

use std::fmt;

/// The content of a slot: 8 bytes, the kind in the top byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotEntry {
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

const ADDRESS_MASK: u64 = (1 << 48) - 1;
/// The most depths of a map.
pub(crate) const MAX_DEPTHS: u8 = 8;
/// In a map: the block cannot be read, because the page with its place could not.
pub const LOST_PLACE: u64 = u64::MAX;

impl SlotEntry {
    /// The form in a summary.
    pub fn pack(self) -> u64 {
        match self {
            SlotEntry::Empty => 0,
            SlotEntry::Data(addr) => 1 << 56 | addr,
            SlotEntry::Page { depth, index } => 2 << 56 | u64::from(depth) << 48 | index,
            SlotEntry::Trim { origin } => 3 << 56 | origin,
            SlotEntry::Lost(addr) => 4 << 56 | addr,
        }
    }

    /// Reverses [`SlotEntry::pack`]; none for anything else.
    pub fn unpack(packed: u64) -> Option<SlotEntry> {
        let (depth, low) = ((packed >> 48) as u8, packed & ADDRESS_MASK);
        match (packed >> 56, depth) {
            (0, 0) if low == 0 => Some(SlotEntry::Empty),
            (1, 0) => Some(SlotEntry::Data(low)),
            (2, 0..MAX_DEPTHS) => Some(SlotEntry::Page { depth, index: low }),
            (3, 0) => Some(SlotEntry::Trim { origin: low }),
            (4, 0) => Some(SlotEntry::Lost(low)),
            _ => None,
        }
    }
}

impl fmt::Display for SlotEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlotEntry::Data(addr) | SlotEntry::Lost(addr) => write!(f, "block {addr}"),
            SlotEntry::Page { .. } => f.write_str("a page of the map"),
            SlotEntry::Trim { .. } => f.write_str("a record of discards"),
            SlotEntry::Empty => f.write_str("an empty slot"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_garbage_is_rejected() {
        let entries = [
            SlotEntry::Empty,
            SlotEntry::Data(0),
            SlotEntry::Data(ADDRESS_MASK),
            SlotEntry::Page { depth: 3, index: 77 },
            SlotEntry::Trim { origin: 5 },
            SlotEntry::Lost(9),
        ];
        for entry in entries {
            assert_eq!(SlotEntry::unpack(entry.pack()), Some(entry));
        }
        for bad in [1, 5 << 56, 1 << 56 | 1 << 48, 2 << 56 | 8 << 48, u64::MAX] {
            assert_eq!(SlotEntry::unpack(bad), None, "{bad:x}");
        }
        assert_eq!(SlotEntry::Lost(9).to_string(), "block 9");
    }
}
