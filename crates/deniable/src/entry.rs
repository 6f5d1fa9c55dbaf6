//! What a slot of a stripe holds, and where a block is.

/// What a slot holds, as its summary says: 8 bytes, the kind in the top byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing of use.
    Empty,
    /// The block at this address of the level.
    Data(u64),
    /// The page of the level's map at this depth (0 for leaves) and with this number.
    Page { depth: u8, index: u64 },
    /// A list of ranges that were discarded, first recorded by stripe `origin`.
    Trim { origin: u64 },
    /// The block at this address, which could not be read when it was to be carried. It fails until it is written.
    Lost(u64),
}

const ADDRESS: u64 = (1 << 48) - 1;
/// The most depths of a map.
pub(crate) const MOST_DEPTHS: u8 = 8;

impl Entry {
    /// As it stands in a summary.
    pub(crate) fn pack(self) -> u64 {
        match self {
            Entry::Empty => 0,
            Entry::Data(addr) => 1 << 56 | addr,
            Entry::Page { depth, index } => 2 << 56 | u64::from(depth) << 48 | index,
            Entry::Trim { origin } => 3 << 56 | origin,
            Entry::Lost(addr) => 4 << 56 | addr,
        }
    }

    /// What [`Entry::pack`] packed; none for anything else.
    pub(crate) fn unpack(packed: u64) -> Option<Entry> {
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

/// Where a level took a block in: the stripe and the slot. It stays there, carried from stripe to stripe, until it is
/// written again; so a map changes only when its level is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) seq: u64,
    pub(crate) slot: u8,
}

impl Place {
    /// As it stands in a map; never 0, for stripes are counted from 1.
    pub(crate) fn pack(self) -> u64 {
        self.seq << 8 | u64::from(self.slot)
    }

    /// What [`Place::pack`] packed; none for a block that is nowhere.
    pub(crate) fn unpack(packed: u64) -> Option<Place> {
        (packed != 0).then_some(Place { seq: packed >> 8, slot: packed as u8 })
    }
}

/// In a map: the block cannot be read, because the page that said where it is could not.
pub(crate) const LOST: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_places_survive_and_garbage_is_none() {
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
        let place = Place { seq: 1 << 40, slot: 255 };
        assert_eq!(Place::unpack(place.pack()), Some(place));
        assert_eq!(Place::unpack(0), None);
    }
}
