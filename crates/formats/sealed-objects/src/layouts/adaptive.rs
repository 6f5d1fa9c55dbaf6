//! The layout `adaptive` for ciphers that do not authenticate (no seal binds entries): blocks lie
//! without gaps, and the entries of 128 blocks form one *page* under a key of the object.
//!
//! Pages are cached. A small write to a cached page rewrites its *amendment*, one more key with the
//! entries that are newer than the page; when the amendment is too long, the page is rewritten. So
//! such a transaction sets one key for each page that it touches, however many blocks it writes. A
//! small write to a page that is not cached stores each entry under a key of its own, *apart* from
//! the page, without reading anything first; a read of the page fetches all three and uses the
//! newest. A write that covers a page replaces it. With the page cached, reading a block costs the
//! same as without metadata.
//!
//! Keys: `p` and the number of the chunk for a page; the same and `a` for its amendment; `p`, the
//! number, `d` and the index in the chunk for an entry apart. An entry apart is newer than the
//! amendment, and the amendment is newer than the page: they change in one transaction.

use crate::layouts::chain::ChainTails;
use crate::layouts::chunks::{
    CHUNK_BLOCKS, ChunkPart, ChunkSet, KeySteps, MAX_AMENDED, decode_entries, encode_entries,
    for_each_changed_chunk, mask, overlay, page_key, set_bits,
};
use crate::layouts::metadata_pages::{
    FetchedPages, MetadataPage, MetadataPages, copy_fetched_entries, fetched_page_mut, page_len,
};
use crate::layouts::placement::{EntryAnswer, EntrySource, Placement, unexpected_key};
use crate::writing::object_change::ObjectChange;
use lacuna_contracts::{Budget, Result};
use lacuna_medium::{KeySelection, ObjectKey, ObjectStep};
use std::ops::Range;

pub(crate) struct Adaptive {
    meta: usize,
    pages: MetadataPages,
}

fn amendment_key(chunk: u64) -> ObjectKey {
    vec![b'p', chunk as u8, b'a']
}

fn apart_key(chunk: u64, index: u64) -> ObjectKey {
    vec![b'p', chunk as u8, b'd', index as u8]
}

/// The key range of the amendment and the entries apart of a chunk: behind its page, before the
/// next.
fn newer_range(chunk: u64) -> (ObjectKey, ObjectKey) {
    (amendment_key(chunk), vec![b'p', chunk as u8, b'd' + 1])
}

impl Adaptive {
    pub(crate) fn new(meta: usize, budget: Budget) -> Self {
        Adaptive { meta, pages: MetadataPages::new(meta, budget) }
    }

    /// Writes the parts of one chunk.
    fn write_chunk(&self, change: &ObjectChange, chunk: u64, parts: &[ChunkPart<'_>], keys: &mut KeySteps) {
        let blocks: usize = parts.iter().map(|part| part.entries.len() / self.meta).sum();
        let known = self.pages.with(change.segment, chunk, |page| {
            overlay(parts, self.meta, &mut page.entries);
            self.write_cached(chunk, page, mask(parts, self.meta), keys);
        });
        if known.is_some() {
            return;
        }
        if change.absent || blocks == CHUNK_BLOCKS as usize {
            let mut page = MetadataPage::blank(self.meta);
            overlay(parts, self.meta, &mut page.entries);
            keys.set.push((page_key(chunk), page.entries.to_vec()));
            if !change.absent {
                keys.cleared.push(newer_range(chunk));
            }
            self.pages.put(change.segment, chunk, page);
        } else {
            self.write_apart(chunk, parts, keys);
        }
    }

    /// Writes a cached page with the entries `fresh` new.
    fn write_cached(&self, chunk: u64, page: &mut MetadataPage, fresh: u128, keys: &mut KeySteps) {
        let was_amended = page.amended != 0;
        page.amended |= fresh;
        let is_full = page.amended.count_ones() > MAX_AMENDED;
        let outdated = if is_full { page.apart } else { page.apart & fresh };
        page.apart &= !outdated;
        keys.removed.extend(set_bits(outdated).map(|index| apart_key(chunk, index)));
        if !is_full {
            keys.set.push((amendment_key(chunk), self.amendment(page)));
            return;
        }
        page.amended = 0;
        if was_amended {
            keys.removed.push(amendment_key(chunk));
        }
        keys.set.push((page_key(chunk), page.entries.to_vec()));
    }

    /// The entries that are newer than the page, each preceded by its index.
    fn amendment(&self, page: &MetadataPage) -> Vec<u8> {
        let mut out = Vec::with_capacity(page.amended.count_ones() as usize * (1 + self.meta));
        encode_entries(page.amended, self.meta, &page.entries, &mut out);
        out
    }

    /// Applies an amendment to a page. `None`: the bytes are not an amendment.
    fn amend(&self, page: &mut MetadataPage, amendment: &[u8]) -> Option<()> {
        for (index, entry) in decode_entries(amendment, self.meta)? {
            let at = index as usize * self.meta;
            page.entries[at..at + self.meta].copy_from_slice(entry);
            page.amended |= 1 << index;
        }
        Some(())
    }

    fn write_apart(&self, chunk: u64, parts: &[ChunkPart<'_>], keys: &mut KeySteps) {
        for part in parts {
            let entries = part.entries.chunks_exact(self.meta);
            let pairs = (part.index..).zip(entries).map(|(i, entry)| (apart_key(chunk, i), entry.to_vec()));
            keys.set.extend(pairs);
        }
    }

    /// The pages of the chunks `missing`, from the pairs of an answer that covers them.
    fn assemble(&self, missing: ChunkSet, pairs: &[(ObjectKey, Vec<u8>)]) -> Result<FetchedPages> {
        let mut fetched: FetchedPages =
            set_bits(u128::from(missing)).map(|chunk| (chunk, MetadataPage::blank(self.meta))).collect();
        for (key, value) in pairs {
            let page_of = |chunk: u8| missing & 1u16.checked_shl(u32::from(chunk)).unwrap_or(0) != 0;
            match key.as_slice() {
                [b'p', chunk] if page_of(*chunk) => {
                    let page = fetched_page_mut(&mut fetched, *chunk);
                    if value.len() != page_len(self.meta) {
                        return Err(unexpected_key(key, value));
                    }
                    page.entries.copy_from_slice(value);
                }
                // Keys are sorted: the page comes first, and entries apart come last.
                [b'p', chunk, b'a'] if page_of(*chunk) => {
                    let page = fetched_page_mut(&mut fetched, *chunk);
                    self.amend(page, value).ok_or_else(|| unexpected_key(key, value))?;
                }
                [b'p', chunk, b'd', index] if page_of(*chunk) && u64::from(*index) < CHUNK_BLOCKS => {
                    let page = fetched_page_mut(&mut fetched, *chunk);
                    let at = usize::from(*index) * self.meta;
                    let entry = &mut page.entries[at..at + self.meta];
                    if value.len() != self.meta {
                        return Err(unexpected_key(key, value));
                    }
                    entry.copy_from_slice(value);
                    page.apart |= 1 << index;
                }
                // Skip keys of other pages and unknown keys.
                _ => {}
            }
        }
        Ok(fetched)
    }
}

impl Placement for Adaptive {
    fn pages(&self) -> Option<&MetadataPages> {
        Some(&self.pages)
    }

    fn add_steps<'a>(
        &self,
        change: &'a ObjectChange,
        _: FetchedPages,
        _: &mut ChainTails,
        steps: &mut Vec<ObjectStep<'a>>,
    ) {
        let mut keys = KeySteps::default();
        for_each_changed_chunk(change.ranges(), &change.entries, self.meta, |chunk, parts| {
            self.write_chunk(change, chunk, parts, &mut keys);
        });
        keys.into_steps(steps);
    }

    fn source(&self, _: &Range<u64>, missing: ChunkSet) -> EntrySource {
        let (first, last) = (u64::from(missing.trailing_zeros()), u64::from(missing.ilog2()));
        let most = (last - first + 1) * (CHUNK_BLOCKS + 2);
        // The end shares a prefix with the last page, so a store that searches by prefix can skip
        // all other keys.
        EntrySource::Keys(KeySelection::Range(page_key(first), newer_range(last).1, most as usize))
    }

    fn extract_entries(&self, answer: &EntryAnswer<'_>, entries: &mut [u8]) -> Result<FetchedPages> {
        let fetched = self.assemble(answer.missing, answer.pairs)?;
        copy_fetched_entries(&fetched, answer.range, self.meta, entries);
        Ok(fetched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_amendment_is_refused() {
        let adaptive = Adaptive::new(2, Budget::bytes(1 << 20));
        let mut page = MetadataPage::blank(2);
        adaptive.amend(&mut page, &[3, 7, 8, 127, 9, 10]).expect("two entries");
        assert_eq!((page.entries[6], page.entries[255], page.amended), (7, 10, 1 << 3 | 1 << 127));
        assert_eq!(adaptive.amendment(&page), [3, 7, 8, 127, 9, 10]);
        for bad in [&[3, 7][..], &[3, 7, 8, 4], &[3, 7, 8, 3, 7, 8], &[4, 7, 8, 3, 7, 8], &[128, 7, 8]] {
            assert!(adaptive.amend(&mut MetadataPage::blank(2), bad).is_none(), "{bad:?}");
        }
    }
}
