//! The layout `kv`: the entry of each block under a key of its own (the paper's *OMAP*).
//!
//! The key is the index of the block in its segment, two bytes, most significant first, so that the
//! keys of consecutive blocks are consecutive.

use crate::chain::Tails;
use crate::change::{Change, Fill, LOST, can_refuse};
use crate::chunks::Chunks;
use crate::pages::Learned;
use crate::placement::{Answered, Placement, Source, strange_key};
use lacuna_contracts::Result;
use lacuna_medium::{Key, Keys, Step};
use std::ops::Range;

pub(crate) struct Kv {
    meta: usize,
}

impl Kv {
    pub(crate) fn new(meta: usize) -> Self {
        Kv { meta }
    }
}

fn key(index: u64) -> Key {
    (index as u16).to_be_bytes().to_vec()
}

impl Placement for Kv {
    fn write<'a>(&self, change: &'a Change, _: Learned, _: &mut Tails, steps: &mut Vec<Step<'a>>) {
        let mut entries = change.entries.chunks_exact(self.meta);
        let (mut set, mut removed) = (vec![], vec![]);
        for run in &change.runs {
            for (index, entry) in (run.index..run.index + run.count).zip(entries.by_ref()) {
                match run.fill {
                    Fill::Data | Fill::Lost => set.push((key(index), entry.to_vec())),
                    Fill::Hole => removed.push(key(index)),
                }
            }
        }
        if !set.is_empty() {
            steps.push(Step::SetKeys(set));
        }
        if !removed.is_empty() && !change.absent {
            steps.push(Step::RemoveKeys(removed));
        }
    }

    fn source(&self, range: &Range<u64>, _: Chunks) -> Source {
        Source::Keys(Keys::Range(key(range.start), key(range.end), (range.end - range.start) as usize))
    }

    fn take(&self, answer: &Answered<'_>, entries: &mut [u8]) -> Result<Learned> {
        let range = answer.range;
        entries.fill(0);
        for (key, value) in answer.pairs {
            let index = key.as_slice().try_into().map(u16::from_be_bytes).map(u64::from);
            // Skip keys that are not an index.
            let Some(index) = index.ok().filter(|index| range.contains(index)) else { continue };
            let at = (index - range.start) as usize * self.meta;
            let entry = &mut entries[at..at + self.meta];
            if value.len() == self.meta {
                entry.copy_from_slice(value);
            } else if can_refuse(self.meta) {
                entry.fill(LOST);
            } else {
                return Err(strange_key(key, value));
            }
        }
        Ok(Learned::new())
    }
}
