//! Reads that lie: an adversary's medium answers two reads of one place differently.

use crate::image::Page;
use crate::{Image, PAGE_SIZE, Rng};
use lacuna_medium::pieces;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// How often reads lie, and where their choices come from.
#[derive(Clone, Debug)]
pub struct Lies {
    /// Of a thousand reads, how many lie.
    pub of_a_thousand: u64,
    /// Chooses which reads lie, and how.
    pub rng: Rng,
}

/// Every version of every page since the medium began to keep them, and the lies that are told with them.
#[derive(Default)]
pub(crate) struct Past {
    pages: BTreeMap<u64, Vec<Arc<Page>>>,
    lengths: BTreeSet<u64>,
    lies: Option<Lies>,
}

impl Past {
    /// Lies from now on, or no longer.
    pub(crate) fn lie(&mut self, lies: Option<Lies>) {
        self.lies = lies;
    }

    /// Keeps what `now` holds in a range that is about to change.
    pub(crate) fn keep(&mut self, now: &Image, range: &Range<u64>) {
        self.lengths.insert(now.len());
        for page in range.start / PAGE_SIZE..range.end.min(now.len()).div_ceil(PAGE_SIZE) {
            let (versions, held) = (self.pages.entry(page).or_default(), now.page(page));
            if versions.last() != Some(&held) {
                versions.push(held);
            }
        }
    }

    /// A length that the medium has or had.
    pub(crate) fn length(&mut self, now: u64) -> u64 {
        let Some(lies) = lying(&mut self.lies) else { return now };
        let all: Vec<u64> = self.lengths.iter().copied().chain([now]).collect();
        *lies.rng.pick(&all)
    }

    /// Changes the answer to a read of `now`, if this read lies: pages of it become versions that they had, or all of it becomes
    /// the content of another place.
    pub(crate) fn answer(&mut self, now: &Image, offset: u64, buf: &mut [u8]) {
        let Past { pages, lies, .. } = self;
        let Some(lies) = lying(lies) else { return };
        let written: Vec<u64> = now.written_pages().collect();
        let shift = (!written.is_empty() && lies.rng.chance(1, 3)).then(|| *lies.rng.pick(&written));
        for (page, within, out) in pieces(offset, buf.len() as u64, PAGE_SIZE) {
            let from = shift.map_or(page, |shift| shift + (page - offset / PAGE_SIZE));
            let versions = pages.get(&from).map_or(&[][..], Vec::as_slice);
            let which = lies.rng.below(versions.len() as u64 + 1) as usize;
            let told = versions.get(which).cloned().unwrap_or_else(|| now.page(from));
            buf[out].copy_from_slice(&told[within]);
        }
    }
}

/// The lies, if this read is one.
fn lying(lies: &mut Option<Lies>) -> Option<&mut Lies> {
    let lies = lies.as_mut()?;
    lies.rng.chance(lies.of_a_thousand, 1000).then_some(lies)
}
