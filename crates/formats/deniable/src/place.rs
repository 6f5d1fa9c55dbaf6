//! Numbers of stripes and slots, and places in a map: the stripe and the slot where a level took a
//! block in.
//!
//! Invariant: a place stays valid until the block is written again, because a block is carried from
//! stripe to stripe in the same slot. A map therefore changes only when its level is written.

use lacuna_contracts::Result;
use lacuna_levels::{Entry, LOST, PageSource, Tree};
use std::fmt;
use std::ops::Add;

/// The number of a stripe, counted from 1 in the order of writing; 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Seq(pub(crate) u64);

impl Seq {
    /// No stripe.
    pub(crate) const NONE: Seq = Seq(0);
    /// The last stripe that a place in a map can name.
    const LAST: Seq = Seq((1 << 55) - 1);

    /// A number read from a medium; none if no stripe can have it.
    pub(crate) fn checked(number: u64) -> Option<Seq> {
        (1..=Seq::LAST.0).contains(&number).then_some(Seq(number))
    }

    pub(crate) fn next(self) -> Seq {
        Seq(self.0 + 1)
    }

    /// The stripe `count` before this one, if there is one.
    pub(crate) fn back(self, count: u64) -> Option<Seq> {
        self.0.checked_sub(count).filter(|number| *number > 0).map(Seq)
    }

    /// The stripes from this one to `last`.
    pub(crate) fn up_to(self, last: Seq) -> impl DoubleEndedIterator<Item = Seq> {
        (self.0..=last.0).map(Seq)
    }
}

impl Add<u64> for Seq {
    type Output = Seq;

    fn add(self, count: u64) -> Seq {
        Seq(self.0 + count)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a slot among the public or the hidden slots of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) u8);

impl Slot {
    /// The first `count` slots; a stripe has fewer than 256 of a kind.
    pub(crate) fn all(count: usize) -> impl ExactSizeIterator<Item = Slot> + DoubleEndedIterator {
        (0..count).map(Slot::nth)
    }

    /// The slot at an index; a stripe has fewer than 256 of a kind.
    pub(crate) fn nth(at: usize) -> Slot {
        debug_assert!(u8::try_from(at).is_ok(), "a geometry counts slots in bytes");
        Slot(at as u8)
    }

    pub(crate) fn at(self) -> usize {
        usize::from(self.0)
    }
}

/// The stripe and the slot where a level took a block in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) seq: Seq,
    pub(crate) slot: Slot,
}

impl Place {
    /// The form in a map. Never 0, because stripes are counted from 1.
    pub(crate) fn pack(self) -> u64 {
        self.seq.0 << 8 | u64::from(self.slot.0)
    }

    /// Reverses [`Place::pack`]; none for a block that is unwritten or lost.
    pub(crate) fn unpack(packed: u64) -> Option<Place> {
        (packed != 0 && packed != LOST).then_some(Place { seq: Seq(packed >> 8), slot: Slot(packed as u8) })
    }
}

/// The live slots of stripe `seq`, which holds `entries`: the map says that their blocks lie here
/// now. A block is carried to another stripe every `stride` stripes.
pub(crate) fn live_slots(
    tree: &mut Tree,
    entries: &[Entry],
    seq: Seq,
    stride: u64,
    source: &dyn PageSource,
) -> Result<Vec<Slot>> {
    let mut live = Vec::with_capacity(entries.len());
    for (slot, entry) in Slot::all(entries.len()).zip(entries) {
        if is_live(tree, *entry, Place { seq, slot }, stride, source)? {
            live.push(slot);
        }
    }
    Ok(live)
}

/// Whether `entry`, which lies `here`, is live.
pub(crate) fn is_live(
    tree: &mut Tree,
    entry: Entry,
    here: Place,
    stride: u64,
    source: &dyn PageSource,
) -> Result<bool> {
    if let Entry::Trim { origin } = entry {
        // A record of discards is live until pages of the map contain them.
        return Ok(origin > tree.state().covered);
    }
    let place = Place::unpack(tree.place_of(entry, source)?);
    Ok(place.is_some_and(|taken_in| {
        taken_in.slot == here.slot
            && taken_in.seq <= here.seq
            && (here.seq.0 - taken_in.seq.0).is_multiple_of(stride)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive() {
        let place = Place { seq: Seq(1 << 40), slot: Slot(255) };
        assert_eq!(Place::unpack(place.pack()), Some(place));
        assert_eq!([0, LOST].map(Place::unpack), [None, None]);
    }

    #[test]
    fn numbers_that_no_stripe_has_are_none() {
        assert_eq!([0, 1, 1 << 55, u64::MAX].map(Seq::checked), [None, Some(Seq(1)), None, None]);
        assert_eq!([1, 2, 3].map(|count| Seq(3).back(count)), [Some(Seq(2)), Some(Seq(1)), None]);
    }
}
