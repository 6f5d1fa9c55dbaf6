//! Distinct types for the numbers of the format, so that they cannot be confused.

/// A place in the log: the number of a unit, counted over all logical erase blocks of the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Unit(pub(crate) u32);

impl Unit {
    /// The limit, since an entry of the index has 30 bits for it.
    pub(crate) const MAX: u32 = (1 << 30) - 1;
}

/// The position of a key in the key storage area, counted over all of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyPosition(pub(crate) u32);

impl KeyPosition {
    /// The limit, since an entry of the index has 28 bits for it.
    pub(crate) const MAX: u32 = 1 << 28;
}

/// The number of a block of the key storage area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyBlock(pub(crate) u32);

/// The content of a node: a block of the disk, or a page of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum NodeTarget {
    /// A block of the disk.
    Block(u32),
    /// A page of the index.
    Index(u32),
}

/// The place of a node, and the position of its key. A page of the index has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodePlace {
    /// The unit of its group's header.
    pub(crate) group: Unit,
    /// The number of the node in its group.
    pub(crate) ordinal: u8,
    /// The key of a block of the disk; meaningless for a page of the index.
    pub(crate) key: KeyPosition,
}

impl NodePlace {
    /// Packs it into 8 bytes: 30 bits of the group plus 1, 6 bits of the ordinal, 28 bits of the
    /// key. 0 stands for no place.
    pub(crate) fn pack(place: Option<NodePlace>) -> u64 {
        place.map_or(0, |place| {
            (u64::from(place.group.0) + 1) << 34 | u64::from(place.ordinal) << 28 | u64::from(place.key.0)
        })
    }

    /// Unpacks the place of an entry.
    pub(crate) fn unpack(packed: u64) -> Option<NodePlace> {
        let group = Unit(((packed >> 34) as u32).checked_sub(1)?);
        let key = KeyPosition((packed & (u64::from(KeyPosition::MAX) - 1)) as u32);
        Some(NodePlace { group, ordinal: (packed >> 28 & 0x3f) as u8, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_places_round_trip() {
        let places = [
            NodePlace { group: Unit(0), ordinal: 0, key: KeyPosition(0) },
            NodePlace { group: Unit(Unit::MAX - 1), ordinal: 63, key: KeyPosition(KeyPosition::MAX - 1) },
        ];
        for place in places {
            assert_eq!(NodePlace::unpack(NodePlace::pack(Some(place))), Some(place));
        }
        assert_eq!(NodePlace::unpack(NodePlace::pack(None)), None);
    }
}
