//! The layout `adaptive` for ciphers that authenticate (the seal binds entries): the entries of 128
//! blocks form one *page* under a key of the object, followed by *deltas* with newer entries.
//!
//! Pages are cached. A small write to a cached page leaves one delta with all entries that are
//! newer than the stored page; when there are too many, the page is rewritten. A small write to a
//! page that is not cached adds a delta without reading anything first, unless there are many: then
//! the page is fetched. So a transaction sets one key for each chunk that it touches. A write that
//! covers a page replaces it. With the page cached, reading a block costs the same as without
//! metadata.
//!
//! Page and deltas are the links of a chain, and the seal holds its end (`chain.rs`). If a link
//! does not match its tag in the chain, all entries that no newer link contains are lost. Other
//! keys are ignored.

use crate::layouts::chain::{CHUNKS, ChainKey, ChainLink, ChainTag, ChainTail, ChainTails, TAG_LEN};
use crate::layouts::chunks::{
    ChunkPart, ChunkSet, KeySteps, MAX_AMENDED, decode_entries, encode_entries, for_each_changed_chunk, mask,
    overlay, page_key, set_bits,
};
use crate::layouts::metadata_pages::{
    FetchedPages, MetadataPage, MetadataPages, copy_fetched_entries, page_len,
};
use crate::layouts::placement::{EntryAnswer, EntrySource, Placement};
use crate::segment::Segment;
use crate::versions::seal::SEAL_KEY;
use crate::writing::object_change::{LOST_BYTE, ObjectChange};
use lacuna_contracts::{Budget, Result};
use lacuna_medium::{KeySelection, ObjectKey, ObjectStep};
use std::ops::Range;

/// With this many deltas in the chain, the next small write fetches the page unless it is cached.
const FETCH_AT_DELTAS: u8 = 32;
/// No chain has more than this many deltas plus one: with this many the page is fetched even if it
/// is cached, since the cache may drop it.
const MAX_DELTAS: u8 = 250;

pub(crate) struct Chained {
    meta: usize,
    pages: MetadataPages,
    key: ChainKey,
}

fn delta_key(chunk: u64, number: u8) -> ObjectKey {
    vec![b'p', chunk as u8, b'd', number]
}

impl Chained {
    /// A layout with `meta` bytes of metadata per block, which caches pages within the budget.
    pub(crate) fn new(meta: usize, budget: Budget, key: ChainKey) -> Self {
        Chained { meta, pages: MetadataPages::new(meta, budget), key }
    }

    /// Writes the parts of one chunk; its page may have been `fetched`. Returns the new end of the
    /// chain.
    fn write_chunk(
        &self,
        segment: Segment,
        chunk: u64,
        tail: &ChainTail,
        fetched: Option<MetadataPage>,
        parts: &[ChunkPart<'_>],
        keys: &mut KeySteps,
    ) -> ChainTail {
        let fresh = mask(parts, self.meta);
        let known = self.pages.with(segment, chunk, |page| {
            overlay(parts, self.meta, &mut page.entries);
            self.write_cached(segment, chunk, tail, page, fresh, keys)
        });
        if let Some(tail) = known {
            return tail;
        }
        // A chain without links is a page of zeros.
        let is_known = fresh == u128::MAX || *tail == ChainTail::default();
        // A page with lost entries is written only when the chain must not grow any more.
        let usable = fetched.filter(|page| !page.lost || tail.deltas >= MAX_DELTAS);
        let Some(mut page) = usable.or_else(|| is_known.then(|| MetadataPage::blank(self.meta))) else {
            return self.add_delta(segment, chunk, tail, parts, keys);
        };
        page.lost = false;
        overlay(parts, self.meta, &mut page.entries);
        let tail = self.write_cached(segment, chunk, tail, &mut page, fresh, keys);
        self.pages.put(segment, chunk, page);
        tail
    }

    /// Writes a cached page with the entries `fresh` new: as a delta to the stored page, or whole.
    fn write_cached(
        &self,
        segment: Segment,
        chunk: u64,
        tail: &ChainTail,
        page: &mut MetadataPage,
        fresh: u128,
        keys: &mut KeySteps,
    ) -> ChainTail {
        page.amended |= fresh;
        if page.amended.count_ones() <= MAX_AMENDED {
            keys.removed.extend((1..tail.deltas).map(|number| delta_key(chunk, number)));
            let mut value = page.base.to_vec();
            encode_entries(page.amended, self.meta, &page.entries, &mut value);
            return self.set_delta(segment, chunk, 0, value, keys);
        }
        keys.removed.extend((0..tail.deltas).map(|number| delta_key(chunk, number)));
        page.base = self.key.tag(segment, chunk, ChainLink::Page, &page.entries);
        page.amended = 0;
        keys.set.push((page_key(chunk), page.entries.to_vec()));
        ChainTail { tag: page.base, deltas: 0 }
    }

    /// Appends to a chain; only its end is known.
    fn add_delta(
        &self,
        segment: Segment,
        chunk: u64,
        tail: &ChainTail,
        parts: &[ChunkPart<'_>],
        keys: &mut KeySteps,
    ) -> ChainTail {
        let mut value = tail.tag.to_vec();
        for part in parts {
            for (index, entry) in (part.index..).zip(part.entries.chunks_exact(self.meta)) {
                value.push(index as u8);
                value.extend_from_slice(entry);
            }
        }
        self.set_delta(segment, chunk, tail.deltas, value, keys)
    }

    fn set_delta(
        &self,
        segment: Segment,
        chunk: u64,
        number: u8,
        value: Vec<u8>,
        keys: &mut KeySteps,
    ) -> ChainTail {
        let tag = self.key.tag(segment, chunk, ChainLink::Delta(number), &value);
        keys.set.push((delta_key(chunk, number), value));
        ChainTail { tag, deltas: number + 1 }
    }

    /// The page of a chunk, from the pairs of an answer that covers it.
    fn read_chain(
        &self,
        segment: Segment,
        chunk: u64,
        tail: &ChainTail,
        pairs: &[(ObjectKey, Vec<u8>)],
    ) -> MetadataPage {
        let value = |key: &ObjectKey| {
            pairs.binary_search_by(|(other, _)| other.cmp(key)).ok().map(|at| pairs[at].1.as_slice())
        };
        let mut page = MetadataPage::blank(self.meta);
        let mut wanted = tail.tag;
        for number in (0..tail.deltas).rev() {
            let delta = value(&delta_key(chunk, number))
                .filter(|value| self.key.is_tag_of(&wanted, segment, chunk, ChainLink::Delta(number), value))
                .and_then(|value| self.apply_delta(value, &mut page));
            match delta {
                Some(before) => wanted = before,
                None => return self.mark_rest_lost(page),
            }
        }
        if wanted == ChainTag::default() {
            return page;
        }
        let stored = value(&page_key(chunk)).filter(|value| {
            value.len() == page_len(self.meta)
                && self.key.is_tag_of(&wanted, segment, chunk, ChainLink::Page, value)
        });
        let Some(stored) = stored else { return self.mark_rest_lost(page) };
        self.fill_rest(&mut page, |at| &stored[at..at + self.meta]);
        page.base = wanted;
        page
    }

    /// Applies the entries of a delta that no newer delta has. Returns the tag of the link before
    /// it; `None`: the bytes are not a delta.
    fn apply_delta(&self, delta: &[u8], page: &mut MetadataPage) -> Option<ChainTag> {
        let (before, entries) = delta.split_first_chunk::<TAG_LEN>()?;
        for (index, entry) in decode_entries(entries, self.meta)? {
            if page.amended >> index & 1 == 0 {
                let at = index as usize * self.meta;
                page.entries[at..at + self.meta].copy_from_slice(entry);
                page.amended |= 1 << index;
            }
        }
        Some(*before)
    }

    fn fill_rest<'e>(&self, page: &mut MetadataPage, entry: impl Fn(usize) -> &'e [u8]) {
        for index in set_bits(!page.amended) {
            let at = index as usize * self.meta;
            page.entries[at..at + self.meta].copy_from_slice(entry(at));
        }
    }

    /// Marks all entries as lost that no verified link contains. The next rewrite of the page
    /// includes all of them.
    fn mark_rest_lost(&self, mut page: MetadataPage) -> MetadataPage {
        page.lost = page.amended != u128::MAX;
        let lost = vec![LOST_BYTE; self.meta];
        self.fill_rest(&mut page, |_| &lost);
        page.amended = u128::MAX;
        page
    }
}

impl Placement for Chained {
    fn pages(&self) -> Option<&MetadataPages> {
        Some(&self.pages)
    }

    fn is_chained(&self) -> bool {
        true
    }

    fn pages_to_fetch(&self, change: &ObjectChange, tails: &ChainTails) -> ChunkSet {
        let mut unready = 0;
        for_each_changed_chunk(change.ranges(), &change.entries, self.meta, |chunk, parts| {
            let is_here = || self.pages.with(change.segment, chunk, |_| ()).is_some();
            let is_long = match tails.of(chunk).deltas {
                // A page that is cached now may be dropped before it is needed.
                MAX_DELTAS.. => true,
                FETCH_AT_DELTAS.. => !is_here(),
                _ => false,
            };
            if is_long && mask(parts, self.meta) != u128::MAX {
                unready |= 1 << chunk;
            }
        });
        unready
    }

    fn needs_fetch(&self, tails: &ChainTails) -> bool {
        (0..CHUNKS as u64).any(|chunk| tails.of(chunk).deltas >= MAX_DELTAS)
    }

    fn add_steps<'a>(
        &self,
        change: &'a ObjectChange,
        fetched: FetchedPages,
        tails: &mut ChainTails,
        steps: &mut Vec<ObjectStep<'a>>,
    ) {
        let mut keys = KeySteps::default();
        let mut fetched = fetched.into_iter().peekable();
        for_each_changed_chunk(change.ranges(), &change.entries, self.meta, |chunk, parts| {
            let page = fetched.next_if(|(of, _)| *of == chunk).map(|(_, page)| page);
            let tail = self.write_chunk(change.segment, chunk, tails.of(chunk), page, parts, &mut keys);
            tails.set(chunk, tail);
        });
        keys.into_steps(steps);
    }

    fn source(&self, _: &Range<u64>, missing: ChunkSet) -> EntrySource {
        let (first, last) = (u64::from(missing.trailing_zeros()), u64::from(missing.ilog2()));
        let most = (last - first + 1) as usize * (1 + usize::from(u8::MAX));
        // The end shares a prefix with the last page, so a store that searches by prefix can skip
        // all other keys.
        let end = vec![b'p', last as u8, b'd' + 1];
        EntrySource::Keys(KeySelection::RangeAnd(page_key(first), end, most, vec![SEAL_KEY.to_vec()]))
    }

    fn extract_entries(&self, answer: &EntryAnswer<'_>, entries: &mut [u8]) -> Result<FetchedPages> {
        let follow =
            |chunk| (chunk, self.read_chain(answer.segment, chunk, answer.tails.of(chunk), answer.pairs));
        let fetched: FetchedPages = set_bits(answer.missing.into()).map(follow).collect();
        copy_fetched_entries(&fetched, answer.range, self.meta, entries);
        Ok(fetched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writing::object_change::{BlockRun, Fill};
    use lacuna_contracts::Secret;
    use std::collections::BTreeMap;

    const META: usize = 4;

    fn layout() -> Chained {
        let key = ChainKey::new(&Secret::copy_from(&[1; 32]), &[2; 16]);
        Chained::new(META, Budget::bytes(1 << 20), key)
    }

    /// The keys of an object, with the tails of its seal.
    #[derive(Clone, Default)]
    struct TestObject {
        keys: BTreeMap<ObjectKey, Vec<u8>>,
        tails: ChainTails,
    }

    impl TestObject {
        fn write(&mut self, layout: &Chained, first: u64, entries: &[u8]) {
            let count = (entries.len() / META) as u64;
            let runs = vec![BlockRun { index: first, count, fill: Fill::Data }];
            let change = ObjectChange {
                segment: Segment(9),
                runs,
                entries: entries.to_vec(),
                ciphertext: vec![],
                absent: false,
            };
            let mut steps = vec![];
            layout.add_steps(&change, vec![], &mut self.tails, &mut steps);
            for step in steps {
                match step {
                    ObjectStep::SetKeys(pairs) => self.keys.extend(pairs),
                    ObjectStep::RemoveKeys(keys) => keys.iter().for_each(|key| drop(self.keys.remove(key))),
                    ObjectStep::RemoveKeyRange(first, end) => {
                        self.keys.retain(|key, _| *key < first || *key >= end);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }

        /// The entries of the first chunk, read with an empty cache.
        fn read(&self) -> Vec<u8> {
            let pairs: Vec<_> = self.keys.clone().into_iter().collect();
            let mut entries = vec![1; 128 * META];
            let answer = EntryAnswer {
                segment: Segment(9),
                range: &(0..128),
                missing: 1,
                pairs: &pairs,
                tails: &self.tails,
            };
            layout().extract_entries(&answer, &mut entries).unwrap();
            entries
        }
    }

    /// An object of a page and three deltas, and its entries.
    fn object() -> (TestObject, Vec<u8>) {
        let mut object = TestObject::default();
        let mut model: Vec<u8> = (0..128 * META).map(|n| n as u8 | 1).collect();
        object.write(&layout(), 0, &model);
        for (first, fill) in [(3, 7), (4, 8), (100, 9)] {
            let entries = vec![fill; 2 * META];
            object.write(&layout(), first, &entries);
            model[first as usize * META..][..entries.len()].copy_from_slice(&entries);
        }
        assert_eq!(object.tails.of(0).deltas, 3);
        (object, model)
    }

    #[test]
    fn a_chain_reads_as_it_was_written() {
        let (mut object, mut model) = object();
        assert_eq!(object.read(), model);
        // A writer with the page cached collects all deltas in one, and rewrites the page when
        // there are too many.
        let layout_with_page = layout();
        let pairs: Vec<_> = object.keys.clone().into_iter().collect();
        let page = layout_with_page.read_chain(Segment(9), 0, object.tails.of(0), &pairs);
        layout_with_page.pages.put(Segment(9), 0, page);
        for index in 0..40u8 {
            let entry = [index | 0x80; META];
            object.write(&layout_with_page, u64::from(index), &entry);
            model[usize::from(index) * META..][..META].copy_from_slice(&entry);
            assert_eq!(object.read(), model, "{index}");
            assert!(object.tails.of(0).deltas <= 1 && object.keys.len() <= 2);
        }
    }

    #[test]
    fn an_altered_moved_or_removed_link_loses_its_entries() {
        let (object, model) = object();
        let lost = |from: &[usize]| {
            let mut entries = vec![LOST_BYTE; 128 * META];
            from.iter().for_each(|&index| {
                entries[index * META..][..META].copy_from_slice(&model[index * META..][..META]);
            });
            entries
        };
        let newest: [&[usize]; 4] = [&[3, 4, 5, 100, 101], &[4, 5, 100, 101], &[100, 101], &[]];
        let keys: Vec<ObjectKey> = vec![page_key(0), delta_key(0, 0), delta_key(0, 1), delta_key(0, 2)];
        for (key, survives) in keys.iter().zip(newest) {
            let mut thinned = object.clone();
            thinned.keys.remove(key);
            assert_eq!(thinned.read(), lost(survives), "{key:?} taken away");
            for at in 0..object.keys[key].len() {
                let mut altered = object.clone();
                altered.keys.get_mut(key).unwrap()[at] ^= 4;
                assert_eq!(altered.read(), lost(survives), "{key:?} altered at {at}");
            }
            for other in &keys {
                let mut moved = object.clone();
                moved.keys.insert(key.clone(), object.keys[other].clone());
                assert_eq!(moved.read() == model, key == other);
            }
        }
        // A delta that is not in the present chain, under a key that is.
        let mut later = object.clone();
        later.write(&layout(), 0, &model);
        later.write(&layout(), 100, &[5; META]);
        let now = later.read();
        assert_eq!(now[100 * META], 5);
        later.keys.insert(delta_key(0, 0), object.keys[&delta_key(0, 2)].clone());
        assert_eq!(later.read(), vec![LOST_BYTE; 128 * META]);
        // Keys outside the chain are ignored.
        let mut more = object.clone();
        more.keys.insert(delta_key(0, 3), object.keys[&delta_key(0, 2)].clone());
        more.keys.insert(vec![b'p', 0, b'a'], vec![1; 50]);
        assert_eq!(more.read(), model);
    }

    #[test]
    fn a_write_replaces_lost_entries() {
        let (mut object, model) = object();
        object.keys.remove(&page_key(0));
        // A writer that has not read the page adds a delta, which verifies.
        object.write(&layout(), 50, &[6; META]);
        assert_eq!(object.read()[50 * META..51 * META], [6; META]);
        assert_eq!(object.read()[0], LOST_BYTE);
        object.write(&layout(), 0, &model);
        assert_eq!(object.read(), model);
        assert_eq!(object.keys.len(), 1);
    }

    #[test]
    fn a_small_write_to_a_long_chain_fetches_the_page() {
        let (mut object, _) = object();
        let one = |first| ObjectChange {
            segment: Segment(9),
            runs: vec![BlockRun { index: first, count: 1, fill: Fill::Data }],
            entries: vec![5; META],
            ciphertext: vec![],
            absent: false,
        };
        while object.tails.of(0).deltas < FETCH_AT_DELTAS {
            assert_eq!(layout().pages_to_fetch(&one(1), &object.tails), 0);
            object.write(&layout(), 1, &[5; META]);
        }
        assert_eq!(layout().pages_to_fetch(&one(1), &object.tails), 1);
        assert_eq!(layout().pages_to_fetch(&one(200), &object.tails), 0);
    }
}
