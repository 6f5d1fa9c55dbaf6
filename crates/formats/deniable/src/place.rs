//! Numbers of stripes and slots, and places in a map: the stripe and the slot where a level took a
//! block in.
//!
//! Invariant: a place stays valid until the block is written again, because a block is carried from
//! stripe to stripe in the same slot. A map therefore changes only when its level is written.

use lacuna_contracts::Result;
use lacuna_levels::{LOST_PLACE, LevelMap, PageSource, SlotEntry};
use std::fmt;
use std::ops::Add;

/// The number of a stripe, counted from 1 in the order of writing; 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StripeSeq(pub(crate) u64);

impl StripeSeq {
    /// No stripe.
    pub(crate) const NONE: StripeSeq = StripeSeq(0);
    /// The last stripe that a place in a map can name.
    const LAST: StripeSeq = StripeSeq((1 << 55) - 1);

    /// A number read from a medium; none if no stripe can have it.
    pub(crate) fn checked(number: u64) -> Option<StripeSeq> {
        (1..=StripeSeq::LAST.0).contains(&number).then_some(StripeSeq(number))
    }

    pub(crate) fn next(self) -> StripeSeq {
        StripeSeq(self.0 + 1)
    }

    /// The stripe `count` before this one, if there is one.
    pub(crate) fn back(self, count: u64) -> Option<StripeSeq> {
        self.0.checked_sub(count).filter(|number| *number > 0).map(StripeSeq)
    }

    /// The stripes from this one to `last`.
    pub(crate) fn up_to(self, last: StripeSeq) -> impl DoubleEndedIterator<Item = StripeSeq> {
        (self.0..=last.0).map(StripeSeq)
    }
}

impl Add<u64> for StripeSeq {
    type Output = StripeSeq;

    fn add(self, count: u64) -> StripeSeq {
        StripeSeq(self.0 + count)
    }
}

impl fmt::Display for StripeSeq {
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

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The stripe and the slot where a level took a block in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotPlace {
    pub(crate) seq: StripeSeq,
    pub(crate) slot: Slot,
}

impl SlotPlace {
    /// The form in a map. Never 0, because stripes are counted from 1.
    pub(crate) fn pack(self) -> u64 {
        self.seq.0 << 8 | u64::from(self.slot.0)
    }

    /// Reverses [`SlotPlace::pack`]; none for a block that is unwritten or lost.
    pub(crate) fn unpack(packed: u64) -> Option<SlotPlace> {
        (packed != 0 && packed != LOST_PLACE)
            .then_some(SlotPlace { seq: StripeSeq(packed >> 8), slot: Slot(packed as u8) })
    }
}

/// The live slots of stripe `seq`, which holds `entries`: the map says that their blocks lie here
/// now. A block is carried to another stripe every `stride` stripes.
pub(crate) fn live_slots(
    tree: &mut LevelMap,
    entries: &[SlotEntry],
    seq: StripeSeq,
    stride: u64,
    source: &dyn PageSource,
) -> Result<Vec<Slot>> {
    let mut live = Vec::with_capacity(entries.len());
    for (slot, entry) in Slot::all(entries.len()).zip(entries) {
        if is_live(tree, *entry, SlotPlace { seq, slot }, stride, source)? {
            live.push(slot);
        }
    }
    Ok(live)
}

/// Whether `entry`, which lies `here`, is live.
pub(crate) fn is_live(
    tree: &mut LevelMap,
    entry: SlotEntry,
    here: SlotPlace,
    stride: u64,
    source: &dyn PageSource,
) -> Result<bool> {
    if let SlotEntry::Trim { origin } = entry {
        // A record of discards is live until pages of the map contain them.
        return Ok(origin > tree.state().covered);
    }
    let place = SlotPlace::unpack(tree.place_of(entry, source)?);
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
    fn places_round_trip() {
        let place = SlotPlace { seq: StripeSeq(1 << 40), slot: Slot(255) };
        assert_eq!(SlotPlace::unpack(place.pack()), Some(place));
        assert_eq!([0, LOST_PLACE].map(SlotPlace::unpack), [None, None]);
    }

    #[test]
    fn impossible_stripe_numbers_are_rejected() {
        assert_eq!([0, 1, 1 << 55, u64::MAX].map(StripeSeq::checked), [None, Some(StripeSeq(1)), None, None]);
        assert_eq!(
            [1, 2, 3].map(|count| StripeSeq(3).back(count)),
            [Some(StripeSeq(2)), Some(StripeSeq(1)), None]
        );
    }
}
