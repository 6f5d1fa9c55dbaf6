//! The effect of a power cut on unsynced writes.

use crate::{MediumImage, Rng};
use std::ops::Range;
use std::sync::Arc;

/// The unit at which a write may tear, in bytes. Its boundaries are multiples of 512 on the medium.
pub const SECTOR_SIZE: u64 = 512;

/// The selection of unsynced writes and discards that land on an adversarial medium. Changes of
/// length keep their order: each policy that drops some keeps a prefix of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossPolicy {
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

impl LossPolicy {
    /// Every policy.
    pub const ALL: [LossPolicy; 10] = [
        LossPolicy::DropAll,
        LossPolicy::KeepAll,
        LossPolicy::Prefix,
        LossPolicy::Suffix,
        LossPolicy::DropOne,
        LossPolicy::KeepOne,
        LossPolicy::Subset,
        LossPolicy::Sectors,
        LossPolicy::Reverse,
        LossPolicy::TearInFlight,
    ];

    /// A random policy. The two that tear are twice as likely.
    pub fn pick(rng: &mut Rng) -> LossPolicy {
        match rng.below(Self::ALL.len() as u64 + 2) as usize {
            n if n < Self::ALL.len() => Self::ALL[n],
            n if n == Self::ALL.len() => LossPolicy::Sectors,
            _ => LossPolicy::TearInFlight,
        }
    }

    /// Whether this policy tears an operation into sectors.
    fn tears(self, in_flight: bool) -> bool {
        self == LossPolicy::Sectors || (self == LossPolicy::TearInFlight && in_flight)
    }
}

/// Bytes for a range of the medium.
#[derive(Clone)]
pub(crate) struct Fragment {
    pub(crate) range: Range<u64>,
    /// The bytes, and the start of this fragment in them. `None` stands for zeros.
    pub(crate) data: Option<(Arc<[u8]>, usize)>,
}

impl Fragment {
    /// The part of this fragment within `range`.
    fn clip(&self, range: &Range<u64>) -> Option<Fragment> {
        let at = self.range.start.max(range.start)..self.range.end.min(range.end);
        if at.is_empty() {
            return None;
        }
        let skipped = (at.start - self.range.start) as usize;
        let data = self.data.as_ref().map(|(bytes, from)| (bytes.clone(), from + skipped));
        Some(Fragment { range: at, data })
    }

    fn sectors(&self) -> impl Iterator<Item = Fragment> + '_ {
        self.parts(SECTOR_SIZE)
    }

    /// The parts of this fragment within each multiple of `size` bytes of the medium.
    pub(crate) fn parts(&self, size: u64) -> impl Iterator<Item = Fragment> + '_ {
        let parts = self.range.start / size..self.range.end.div_ceil(size);
        parts.filter_map(move |part| self.clip(&(part * size..(part + 1).saturating_mul(size))))
    }

    /// Writes the fragment to `image`, except for bytes past its end.
    pub(crate) fn apply(&self, image: &mut MediumImage) {
        let Some(kept) = self.clip(&(0..image.len())) else { return };
        let size = kept.range.end - kept.range.start;
        let done = match &kept.data {
            Some((bytes, from)) => image.write(kept.range.start, &bytes[*from..*from + size as usize]),
            None => image.zero(kept.range.start, size),
        };
        done.expect("a fragment clipped to the image lies within it");
    }
}

/// An unsynced operation.
#[derive(Clone)]
pub(crate) struct UnsyncedOp {
    /// Its bytes, without the ranges of later durable writes.
    pub(crate) fragments: Vec<Fragment>,
    /// The new length, if it is a change of length.
    pub(crate) length: Option<u64>,
    /// Whether it was in flight at the cut.
    pub(crate) in_flight: bool,
}

impl UnsyncedOp {
    /// Removes a range that was made durable with newer data.
    pub(crate) fn supersede(&mut self, range: &Range<u64>) {
        if self.fragments.iter().all(|f| f.range.end <= range.start || range.end <= f.range.start) {
            return;
        }
        let around = [0..range.start, range.end..u64::MAX];
        self.fragments =
            self.fragments.iter().flat_map(|f| around.iter().filter_map(|side| f.clip(side))).collect();
    }
}

/// The number of changes of length that land: a prefix of them.
fn lengths_kept(unsynced: &[UnsyncedOp], loss: LossPolicy, rng: &mut Rng) -> usize {
    let lengths = unsynced.iter().filter(|op| op.length.is_some());
    let total = lengths.clone().count();
    let settled = match loss {
        LossPolicy::DropAll => return 0,
        LossPolicy::KeepAll | LossPolicy::Reverse => return total,
        LossPolicy::TearInFlight => lengths.filter(|op| !op.in_flight).count(),
        _ => 0,
    };
    settled + rng.below((total - settled) as u64 + 1) as usize
}

/// The indices of the operations that may land, in the order of landing.
fn landing_order(n: usize, loss: LossPolicy, rng: &mut Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    if n == 0 {
        return order;
    }
    let one = rng.below(n as u64) as usize;
    match loss {
        LossPolicy::DropAll => order.clear(),
        LossPolicy::KeepAll | LossPolicy::TearInFlight => {}
        LossPolicy::Prefix => order.truncate(one),
        LossPolicy::Suffix => drop(order.drain(..one)),
        LossPolicy::DropOne => drop(order.remove(one)),
        LossPolicy::KeepOne => order = vec![one],
        LossPolicy::Reverse => order.reverse(),
        LossPolicy::Subset | LossPolicy::Sectors => {
            if rng.chance(1, 2) {
                rng.shuffle(&mut order);
            }
        }
    }
    order
}

/// The image after a cut, from the durable image and the unsynced operations.
pub(crate) fn image_after_cut(
    durable: &MediumImage,
    unsynced: &[UnsyncedOp],
    loss: LossPolicy,
    rng: &mut Rng,
) -> MediumImage {
    let mut image = durable.clone();
    let mut lengths = lengths_kept(unsynced, loss, rng);
    let mut writes: Vec<UnsyncedOp> = Vec::with_capacity(unsynced.len());
    for op in unsynced {
        if let Some(len) = op.length {
            if lengths > 0 {
                lengths -= 1;
                if len < image.len() {
                    writes.iter_mut().for_each(|older| older.supersede(&(len..u64::MAX)));
                }
                image.set_len(len);
            }
        } else {
            writes.push(op.clone());
        }
    }
    let odds = *rng.pick(&[1, 4, 7]);
    for index in landing_order(writes.len(), loss, rng) {
        let op = &writes[index];
        let torn = loss.tears(op.in_flight);
        if loss == LossPolicy::Subset && !rng.chance(odds, 8) {
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
