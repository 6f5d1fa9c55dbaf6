//! Reads that lie: an adversary's medium answers two reads of one place differently.
//!
//! A simulated chip lies when its medium does: open the chip first, then let the medium lie.

use crate::image::ImagePage;
use crate::{MediumImage, PAGE_SIZE, Rng};
use lacuna_medium::pieces;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// The unit for tracking first reads, in bytes: the smallest unit that any format addresses.
const LINE: usize = 16;
/// A bit for each line of a page.
type Lines = [u64; PAGE_SIZE as usize / LINE / 64];

/// The rate of lies, and the source of their choices.
#[derive(Clone, Debug)]
pub struct Lies {
    /// The number of lies in a thousand reads.
    pub per_mille: u64,
    /// Chooses which reads lie, and how.
    pub rng: Rng,
    /// Whether some answers are forged: a version with a bit flipped, or two versions spliced. Such
    /// data was never on the medium.
    pub may_forge: bool,
}

impl Lies {
    /// Decides whether the next read lies.
    pub fn next_read_lies(&mut self) -> bool {
        self.rng.chance(self.per_mille, 1000)
    }

    /// Decides whether the next version is forged.
    pub fn next_is_forged(&mut self) -> bool {
        self.may_forge && self.rng.chance(1, 3)
    }

    /// Forges a version: flips a bit, or splices it with another version after a random byte or in
    /// every second line.
    pub fn forge(&mut self, data: &mut [u8], other: &[u8]) {
        if data.is_empty() {
            return;
        }
        let at = self.rng.below(data.len() as u64) as usize;
        if self.rng.chance(1, 3) {
            data[at] ^= 1 << self.rng.below(8);
            return;
        }
        let by_lines = self.rng.chance(1, 2);
        for (byte, (told, other)) in (0..).zip(data.iter_mut().zip(other)) {
            let is_spliced = if by_lines { (byte / LINE).is_multiple_of(2) } else { byte >= at };
            if is_spliced {
                *told = *other;
            }
        }
    }
}

/// The reads of a lying medium that are true nevertheless.
#[derive(Clone, Debug, Default)]
pub struct HonestReads {
    /// The first read of each place, so that a reader gets correct data unless a second read
    /// contributes.
    pub first_reads: bool,
    /// All reads of these ranges. A read of a page that a range touches is true.
    pub ranges: Vec<Range<u64>>,
    /// All reads except discreet ones ([`lacuna_medium::Medium::read_discreetly`]): the system's
    /// cache has the written data, and the medium below it lies to reads past the cache.
    pub cached_reads: bool,
}

/// Every version of every page since they are kept, and the state of the lies.
#[derive(Clone, Default)]
pub(crate) struct PageHistory {
    pages: BTreeMap<u64, Vec<Arc<ImagePage>>>,
    /// The same pages as a list, to pick from.
    changed_pages: Vec<u64>,
    lengths: BTreeSet<u64>,
    lies: Option<Lies>,
    honest: HonestReads,
    /// For each page, the lines that were read since the lies began, if first reads are true.
    read: BTreeMap<u64, Lines>,
}

impl PageHistory {
    /// Starts or ends lying, with these exceptions.
    pub(crate) fn set_lies(&mut self, lies: Option<Lies>, truths: HonestReads) {
        (self.lies, self.honest) = (lies, truths);
        self.read.clear();
    }

    /// Keeps the content of a range that is about to change.
    pub(crate) fn save_version(&mut self, now: &MediumImage, range: &Range<u64>) {
        self.lengths.insert(now.len());
        for page in range.start / PAGE_SIZE..range.end.min(now.len()).div_ceil(PAGE_SIZE) {
            let (versions, held) = (self.pages.entry(page).or_default(), now.page(page));
            if versions.is_empty() {
                self.changed_pages.push(page);
            }
            if versions.last() != Some(&held) {
                versions.push(held);
            }
        }
    }

    /// The length, or if this read lies, a length that the medium had.
    pub(crate) fn reported_len(&mut self, now: u64) -> u64 {
        let Some(lies) = next_lie(&mut self.lies) else { return now };
        let all: Vec<u64> = self.lengths.iter().copied().chain([now]).collect();
        *lies.rng.pick(&all)
    }

    /// Changes the answer to a read of `now`, if this read lies: its pages become earlier versions,
    /// or the whole answer becomes the content of another place that changed at some time.
    pub(crate) fn falsify(&mut self, now: &MediumImage, offset: u64, buf: &mut [u8], is_discreet: bool) {
        if self.honest.cached_reads && !is_discreet {
            return;
        }
        let PageHistory { pages, changed_pages: changed, lies, honest: truths, read, .. } = self;
        if let Some(lies) = next_lie(lies) {
            let shift = (!changed.is_empty() && lies.rng.chance(1, 3)).then(|| *lies.rng.pick(changed));
            for (page, within, out) in pieces(offset, buf.len() as u64, PAGE_SIZE) {
                let from = shift.map_or(page, |shift| shift + (page - offset / PAGE_SIZE));
                let versions = pages.get(&from).map_or(&[][..], Vec::as_slice);
                let version = |rng: &mut Rng| {
                    let which = rng.below(versions.len() as u64 + 1) as usize;
                    versions.get(which).cloned().unwrap_or_else(|| now.page(from))
                };
                let mut shown = version(&mut lies.rng);
                if lies.next_is_forged() {
                    let other = version(&mut lies.rng);
                    lies.forge(&mut Arc::make_mut(&mut shown)[within.clone()], &other[within.clone()]);
                }
                let start = page * PAGE_SIZE;
                if truths.ranges.iter().any(|at| at.start < start + PAGE_SIZE && start < at.end) {
                    continue;
                }
                if !truths.first_reads {
                    buf[out].copy_from_slice(&shown[within]);
                    continue;
                }
                let seen = read.get(&page).copied().unwrap_or_default();
                for line in lines(&within).filter(|line| seen[line / 64] >> (line % 64) & 1 == 1) {
                    let part = within.start.max(line * LINE)..within.end.min((line + 1) * LINE);
                    let to = part.start - within.start + out.start..part.end - within.start + out.start;
                    buf[to].copy_from_slice(&shown[part]);
                }
            }
        }
        if lies.is_some() && truths.first_reads {
            for (page, within, _) in pieces(offset, buf.len() as u64, PAGE_SIZE) {
                let seen = read.entry(page).or_default();
                lines(&within).for_each(|line| seen[line / 64] |= 1 << (line % 64));
            }
        }
    }
}

/// The lines that a range of a page touches.
fn lines(within: &Range<usize>) -> Range<usize> {
    within.start / LINE..within.end.div_ceil(LINE)
}

/// The state of the lies, if this read lies.
pub(crate) fn next_lie(lies: &mut Option<Lies>) -> Option<&mut Lies> {
    let lies = lies.as_mut()?;
    lies.next_read_lies().then_some(lies)
}
