//! Numbers of stripes and slots, and what a place in a map means: the stripe and the slot where a
//! level took a block in.
//!
//! Invariant: a place stays as long as the block is not written again, for a block is carried from
//! stripe to stripe in the same slot. So a map changes only when its level is written.

use lacuna_contracts::Result;
use lacuna_levels::{Entry, LOST, PageSource, Tree};
use std::fmt;
use std::ops::Add;

/// The number of a stripe, counted from 1 in the order in which stripes are written; 0 stands for
/// none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Seq(pub(crate) u64);

impl Seq {
    /// No stripe.
    pub(crate) const NONE: Seq = Seq(0);
    /// The last stripe that a place in a map can name.
    const LAST: Seq = Seq((1 << 55) - 1);

    /// A number that was read from a medium; none if no stripe can have it.
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

/// Where a level took a block in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) seq: Seq,
    pub(crate) slot: Slot,
}

impl Place {
    /// As it stands in a map; never 0, for stripes are counted from 1.
    pub(crate) fn pack(self) -> u64 {
        self.seq.0 << 8 | u64::from(self.slot.0)
    }

    /// What [`Place::pack`] packed; none for a block that is nowhere or lost.
    pub(crate) fn unpack(packed: u64) -> Option<Place> {
        (packed != 0 && packed != LOST).then_some(Place { seq: Seq(packed >> 8), slot: Slot(packed as u8) })
    }
}

/// The slots of stripe `seq`, which holds `entries`, that are live: where what they name lies now,
/// according to the map. A block comes to another stripe every `stride`.
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

/// Whether what lies `here` is live.
pub(crate) fn is_live(
    tree: &mut Tree,
    entry: Entry,
    here: Place,
    stride: u64,
    source: &dyn PageSource,
) -> Result<bool> {
    if let Entry::Trim { origin } = entry {
        // Until the pages of the map hold what it says.
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
