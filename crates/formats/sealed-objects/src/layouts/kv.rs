//! The layout `kv`: the entry of each block under a key of its own (the paper's *OMAP*).
//!
//! The key is the index of the block in its segment, two bytes, most significant first, so that the
//! keys of consecutive blocks are consecutive.

use crate::layouts::chain::ChainTails;
use crate::layouts::chunks::ChunkSet;
use crate::layouts::metadata_pages::FetchedPages;
use crate::layouts::placement::{EntryAnswer, EntrySource, Placement, unexpected_key};
use crate::writing::object_change::{Fill, LOST_BYTE, ObjectChange, is_authenticated};
use lacuna_contracts::Result;
use lacuna_medium::{KeySelection, ObjectKey, ObjectStep};
use std::ops::Range;

pub(crate) struct Kv {
    meta: usize,
}

impl Kv {
    pub(crate) fn new(meta: usize) -> Self {
        Kv { meta }
    }
}

fn key(index: u64) -> ObjectKey {
    (index as u16).to_be_bytes().to_vec()
}

impl Placement for Kv {
    fn add_steps<'a>(
        &self,
        change: &'a ObjectChange,
        _: FetchedPages,
        _: &mut ChainTails,
        steps: &mut Vec<ObjectStep<'a>>,
    ) {
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
            steps.push(ObjectStep::SetKeys(set));
        }
        if !removed.is_empty() && !change.absent {
            steps.push(ObjectStep::RemoveKeys(removed));
        }
    }

    fn source(&self, range: &Range<u64>, _: ChunkSet) -> EntrySource {
        EntrySource::Keys(KeySelection::Range(
            key(range.start),
            key(range.end),
            (range.end - range.start) as usize,
        ))
    }

    fn extract_entries(&self, answer: &EntryAnswer<'_>, entries: &mut [u8]) -> Result<FetchedPages> {
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
            } else if is_authenticated(self.meta) {
                entry.fill(LOST_BYTE);
            } else {
                return Err(unexpected_key(key, value));
            }
        }
        Ok(FetchedPages::new())
    }
}
