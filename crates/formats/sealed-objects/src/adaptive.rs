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

use crate::chain::Tails;
use crate::change::Change;
use crate::chunks::{
    CHUNK_BLOCKS, Chunks, KeySteps, MOST_AMENDED, Part, each_changed, mask, ones, overlay, page_key, pick,
    picked,
};
use crate::pages::{Learned, Page, Pages, copy_learned, page_len, page_mut};
use crate::placement::{Answered, Placement, Source, strange_key};
use lacuna_contracts::{Budget, Result};
use lacuna_medium::{Key, Keys, Step};
use std::ops::Range;

pub(crate) struct Adaptive {
    meta: usize,
    pages: Pages,
}

fn amendment_key(chunk: u64) -> Key {
    vec![b'p', chunk as u8, b'a']
}

fn apart_key(chunk: u64, index: u64) -> Key {
    vec![b'p', chunk as u8, b'd', index as u8]
}

/// The key range of the amendment and the entries apart of a chunk: behind its page, before the
/// next.
fn newer_range(chunk: u64) -> (Key, Key) {
    (amendment_key(chunk), vec![b'p', chunk as u8, b'd' + 1])
}

impl Adaptive {
    pub(crate) fn new(meta: usize, budget: Budget) -> Self {
        Adaptive { meta, pages: Pages::new(meta, budget) }
    }

    /// Writes the parts of one chunk.
    fn write_chunk(&self, change: &Change, chunk: u64, parts: &[Part<'_>], keys: &mut KeySteps) {
        let blocks: usize = parts.iter().map(|part| part.entries.len() / self.meta).sum();
        let known = self.pages.with(change.segment, chunk, |page| {
            overlay(parts, self.meta, &mut page.entries);
            self.write_known(chunk, page, mask(parts, self.meta), keys);
        });
        if known.is_some() {
            return;
        }
        if change.absent || blocks == CHUNK_BLOCKS as usize {
            let mut page = Page::blank(self.meta);
            overlay(parts, self.meta, &mut page.entries);
            keys.set.push((page_key(chunk), page.entries.to_vec()));
            if !change.absent {
                keys.cleared.push(newer_range(chunk));
            }
            self.pages.put(change.segment, chunk, page);
        } else {
            self.set_apart(chunk, parts, keys);
        }
    }

    /// Writes a cached page with the entries `fresh` new.
    fn write_known(&self, chunk: u64, page: &mut Page, fresh: u128, keys: &mut KeySteps) {
        let was_amended = page.amended != 0;
        page.amended |= fresh;
        let is_full = page.amended.count_ones() > MOST_AMENDED;
        let outdated = if is_full { page.apart } else { page.apart & fresh };
        page.apart &= !outdated;
        keys.removed.extend(ones(outdated).map(|index| apart_key(chunk, index)));
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
    fn amendment(&self, page: &Page) -> Vec<u8> {
        let mut out = Vec::with_capacity(page.amended.count_ones() as usize * (1 + self.meta));
        pick(page.amended, self.meta, &page.entries, &mut out);
        out
    }

    /// Applies an amendment to a page. `None`: the bytes are not an amendment.
    fn amend(&self, page: &mut Page, amendment: &[u8]) -> Option<()> {
        for (index, entry) in picked(amendment, self.meta)? {
            let at = index as usize * self.meta;
            page.entries[at..at + self.meta].copy_from_slice(entry);
            page.amended |= 1 << index;
        }
        Some(())
    }

    fn set_apart(&self, chunk: u64, parts: &[Part<'_>], keys: &mut KeySteps) {
        for part in parts {
            let entries = part.entries.chunks_exact(self.meta);
            let pairs = (part.index..).zip(entries).map(|(i, entry)| (apart_key(chunk, i), entry.to_vec()));
            keys.set.extend(pairs);
        }
    }

    /// The pages of the chunks `missing`, from the pairs of an answer that covers them.
    fn assemble(&self, missing: Chunks, pairs: &[(Key, Vec<u8>)]) -> Result<Learned> {
        let mut learned: Learned =
            ones(u128::from(missing)).map(|chunk| (chunk, Page::blank(self.meta))).collect();
        for (key, value) in pairs {
            let page_of = |chunk: u8| missing & 1u16.checked_shl(u32::from(chunk)).unwrap_or(0) != 0;
            match key.as_slice() {
                [b'p', chunk] if page_of(*chunk) => {
                    let page = page_mut(&mut learned, *chunk);
                    if value.len() != page_len(self.meta) {
                        return Err(strange_key(key, value));
                    }
                    page.entries.copy_from_slice(value);
                }
                // Keys are sorted: the page comes first, and entries apart come last.
                [b'p', chunk, b'a'] if page_of(*chunk) => {
                    let page = page_mut(&mut learned, *chunk);
                    self.amend(page, value).ok_or_else(|| strange_key(key, value))?;
                }
                [b'p', chunk, b'd', index] if page_of(*chunk) && u64::from(*index) < CHUNK_BLOCKS => {
                    let page = page_mut(&mut learned, *chunk);
                    let at = usize::from(*index) * self.meta;
                    let entry = &mut page.entries[at..at + self.meta];
                    if value.len() != self.meta {
                        return Err(strange_key(key, value));
                    }
                    entry.copy_from_slice(value);
                    page.apart |= 1 << index;
                }
                // Skip keys of other pages and unknown keys.
                _ => {}
            }
        }
        Ok(learned)
    }
}

impl Placement for Adaptive {
    fn pages(&self) -> Option<&Pages> {
        Some(&self.pages)
    }

    fn write<'a>(&self, change: &'a Change, _: Learned, _: &mut Tails, steps: &mut Vec<Step<'a>>) {
        let mut keys = KeySteps::default();
        each_changed(change.ranges(), &change.entries, self.meta, |chunk, parts| {
            self.write_chunk(change, chunk, parts, &mut keys);
        });
        keys.into_steps(steps);
    }

    fn source(&self, _: &Range<u64>, missing: Chunks) -> Source {
        let (first, last) = (u64::from(missing.trailing_zeros()), u64::from(missing.ilog2()));
        let most = (last - first + 1) * (CHUNK_BLOCKS + 2);
        // The end shares a prefix with the last page, so a store that searches by prefix can skip
        // all other keys.
        Source::Keys(Keys::Range(page_key(first), newer_range(last).1, most as usize))
    }

    fn take(&self, answer: &Answered<'_>, entries: &mut [u8]) -> Result<Learned> {
        let learned = self.assemble(answer.missing, answer.pairs)?;
        copy_learned(&learned, answer.range, self.meta, entries);
        Ok(learned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amendment_is_taken_whole_or_refused() {
        let adaptive = Adaptive::new(2, Budget::bytes(1 << 20));
        let mut page = Page::blank(2);
        adaptive.amend(&mut page, &[3, 7, 8, 127, 9, 10]).expect("two entries");
        assert_eq!((page.entries[6], page.entries[255], page.amended), (7, 10, 1 << 3 | 1 << 127));
        assert_eq!(adaptive.amendment(&page), [3, 7, 8, 127, 9, 10]);
        for bad in [&[3, 7][..], &[3, 7, 8, 4], &[3, 7, 8, 3, 7, 8], &[4, 7, 8, 3, 7, 8], &[128, 7, 8]] {
            assert!(adaptive.amend(&mut Page::blank(2), bad).is_none(), "{bad:?}");
        }
    }
}
