//! What a place in a map means: where a level took a block in.

use lacuna_core::Result;
use lacuna_levels::{Entry, LOST, PageSource, Tree};

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

/// The slots of stripe `seq`, which holds `entries`, that are live: where what they name lies now, according to the map.
/// A block comes to another stripe every `stride`.
pub(crate) fn live_slots(
    tree: &mut Tree,
    entries: &[Entry],
    seq: u64,
    stride: u64,
    source: &dyn PageSource,
) -> Result<Vec<usize>> {
    let mut live = Vec::with_capacity(entries.len());
    for (slot, entry) in entries.iter().enumerate() {
        if is_live(tree, *entry, Place { seq, slot: slot as u8 }, stride, source)? {
            live.push(slot);
        }
    }
    Ok(live)
}

fn is_live(tree: &mut Tree, entry: Entry, here: Place, stride: u64, source: &dyn PageSource) -> Result<bool> {
    if let Entry::Trim { origin } = entry {
        // Until the pages of the map hold what it says.
        return Ok(origin > tree.state().covered);
    }
    let packed = tree.place_of(entry, source)?;
    let place = Place::unpack(packed).filter(|_| packed != LOST);
    Ok(place.is_some_and(|taken_in| {
        taken_in.slot == here.slot
            && taken_in.seq <= here.seq
            && (here.seq - taken_in.seq).is_multiple_of(stride)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive() {
        let place = Place { seq: 1 << 40, slot: 255 };
        assert_eq!(Place::unpack(place.pack()), Some(place));
        assert_eq!(Place::unpack(0), None);
    }
}
