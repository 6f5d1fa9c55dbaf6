//! The effect of a power cut on unsynced writes.

use crate::{Image, Rng};
use std::ops::Range;
use std::sync::Arc;

/// The unit at which a write may tear, in bytes. Its boundaries are multiples of 512 on the medium.
pub const SECTOR_SIZE: u64 = 512;

/// The selection of unsynced writes and discards that land on an adversarial medium. Changes of
/// length keep their order: each policy that drops some keeps a prefix of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// None of them land.
    DropAll,
    /// All of them land, in order.
    KeepAll,
    /// A prefix lands.
    Prefix,
    /// A suffix lands.
    Suffix,
    /// All land except one.
    DropOne,
    /// One lands.
    KeepOne,
    /// A random subset lands, each operation whole.
    Subset,
    /// A random subset of sectors lands, in any order.
    Sectors,
    /// All land in reverse order, so that the oldest version of a sector remains.
    Reverse,
    /// All land, but operations in flight at the cut are torn.
    TearInFlight,
}

impl Loss {
    /// Every policy.
    pub const ALL: [Loss; 10] = [
        Loss::DropAll,
        Loss::KeepAll,
        Loss::Prefix,
        Loss::Suffix,
        Loss::DropOne,
        Loss::KeepOne,
        Loss::Subset,
        Loss::Sectors,
        Loss::Reverse,
        Loss::TearInFlight,
    ];

    /// A random policy. The two that tear are twice as likely.
    pub fn pick(rng: &mut Rng) -> Loss {
        match rng.below(Self::ALL.len() as u64 + 2) as usize {
            n if n < Self::ALL.len() => Self::ALL[n],
            n if n == Self::ALL.len() => Loss::Sectors,
            _ => Loss::TearInFlight,
        }
    }

    /// Whether this policy tears an operation into sectors.
    fn tears(self, in_flight: bool) -> bool {
        self == Loss::Sectors || (self == Loss::TearInFlight && in_flight)
    }
}

/// Bytes for a range of the medium.
#[derive(Clone)]
pub(crate) struct Fragment {
    pub(crate) at: Range<u64>,
    /// The bytes, and the start of this fragment in them. `None` stands for zeros.
    pub(crate) data: Option<(Arc<[u8]>, usize)>,
}

impl Fragment {
    /// The part of this fragment within `range`.
    fn clip(&self, range: &Range<u64>) -> Option<Fragment> {
        let at = self.at.start.max(range.start)..self.at.end.min(range.end);
        if at.is_empty() {
            return None;
        }
        let skipped = (at.start - self.at.start) as usize;
        let data = self.data.as_ref().map(|(bytes, from)| (bytes.clone(), from + skipped));
        Some(Fragment { at, data })
    }

    fn sectors(&self) -> impl Iterator<Item = Fragment> + '_ {
        let sectors = self.at.start / SECTOR_SIZE..self.at.end.div_ceil(SECTOR_SIZE);
        sectors.filter_map(|s| self.clip(&(s * SECTOR_SIZE..(s + 1).saturating_mul(SECTOR_SIZE))))
    }

    /// Writes the fragment to `image`, except for bytes past its end.
    fn apply(&self, image: &mut Image) {
        let Some(kept) = self.clip(&(0..image.len())) else { return };
        let size = kept.at.end - kept.at.start;
        let done = match &kept.data {
            Some((bytes, from)) => image.write(kept.at.start, &bytes[*from..*from + size as usize]),
            None => image.zero(kept.at.start, size),
        };
        done.expect("a fragment clipped to the image lies within it");
    }
}

/// An unsynced operation.
#[derive(Clone)]
pub(crate) struct Unsynced {
    /// Its bytes, without the ranges of later durable writes.
    pub(crate) fragments: Vec<Fragment>,
    /// The new length, if it is a change of length.
    pub(crate) length: Option<u64>,
    /// Whether it was in flight at the cut.
    pub(crate) in_flight: bool,
}

impl Unsynced {
    /// Removes a range that was made durable with newer data.
    pub(crate) fn supersede(&mut self, range: &Range<u64>) {
        if self.fragments.iter().all(|f| f.at.end <= range.start || range.end <= f.at.start) {
            return;
        }
        let around = [0..range.start, range.end..u64::MAX];
        self.fragments =
            self.fragments.iter().flat_map(|f| around.iter().filter_map(|side| f.clip(side))).collect();
    }
}

/// The number of changes of length that land: a prefix of them.
fn lengths_kept(unsynced: &[Unsynced], loss: Loss, rng: &mut Rng) -> usize {
    let lengths = unsynced.iter().filter(|op| op.length.is_some());
    let total = lengths.clone().count();
    let settled = match loss {
        Loss::DropAll => return 0,
        Loss::KeepAll | Loss::Reverse => return total,
        Loss::TearInFlight => lengths.filter(|op| !op.in_flight).count(),
        _ => 0,
    };
    settled + rng.below((total - settled) as u64 + 1) as usize
}

/// The indices of the operations that may land, in the order of landing.
fn order_of(n: usize, loss: Loss, rng: &mut Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    if n == 0 {
        return order;
    }
    let one = rng.below(n as u64) as usize;
    match loss {
        Loss::DropAll => order.clear(),
        Loss::KeepAll | Loss::TearInFlight => {}
        Loss::Prefix => order.truncate(one),
        Loss::Suffix => drop(order.drain(..one)),
        Loss::DropOne => drop(order.remove(one)),
        Loss::KeepOne => order = vec![one],
        Loss::Reverse => order.reverse(),
        Loss::Subset | Loss::Sectors => {
            if rng.chance(1, 2) {
                rng.shuffle(&mut order);
            }
        }
    }
    order
}

/// The image after a cut, from the durable image and the unsynced operations.
pub(crate) fn leave(durable: &Image, unsynced: &[Unsynced], loss: Loss, rng: &mut Rng) -> Image {
    let mut image = durable.clone();
    let mut lengths = lengths_kept(unsynced, loss, rng);
    let mut owed: Vec<Unsynced> = Vec::with_capacity(unsynced.len());
    for op in unsynced {
        if let Some(len) = op.length {
            if lengths > 0 {
                lengths -= 1;
                if len < image.len() {
                    owed.iter_mut().for_each(|older| older.supersede(&(len..u64::MAX)));
                }
                image.set_len(len);
            }
        } else {
            owed.push(op.clone());
        }
    }
    let odds = *rng.pick(&[1, 4, 7]);
    for index in order_of(owed.len(), loss, rng) {
        let op = &owed[index];
        let torn = loss.tears(op.in_flight);
        if loss == Loss::Subset && !rng.chance(odds, 8) {
            continue;
        }
        for fragment in &op.fragments {
            if torn {
                fragment.sectors().filter(|_| rng.chance(odds, 8)).for_each(|s| s.apply(&mut image));
            } else {
                fragment.apply(&mut image);
            }
        }
    }
    image
}
