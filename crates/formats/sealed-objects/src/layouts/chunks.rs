//! Chunks of 128 blocks with their entries stored together: splits changes and ranges at chunk
//! boundaries, and builds the resulting steps on keys.

use lacuna_medium::{ObjectKey, ObjectStep};
use std::ops::Range;

/// Blocks with entries in one page of the adaptive layout.
pub(crate) const CHUNK_BLOCKS: u64 = 128;

/// A set of chunks of one segment: bit `c` stands for the 128 blocks that start at `128 * c`.
pub(crate) type ChunkSet = u16;

/// Every chunk that a range of blocks touches.
pub(crate) fn chunks_of(range: &Range<u64>) -> ChunkSet {
    if range.is_empty() {
        return 0;
    }
    let (first, last) = (range.start / CHUNK_BLOCKS, (range.end - 1) / CHUNK_BLOCKS);
    (((1u32 << (last + 1)) - 1) & !((1u32 << first) - 1)) as ChunkSet
}

/// Whether the chunk of a block is in the set.
pub(crate) fn has_chunk(chunks: ChunkSet, index: u64) -> bool {
    chunks & (1 << (index / CHUNK_BLOCKS)) != 0
}

/// The most entries that may be newer than their page before the page is rewritten.
pub(crate) const MAX_AMENDED: u32 = 32;

/// The part of a change that falls into one chunk: the entries of consecutive blocks.
pub(crate) struct ChunkPart<'a> {
    /// The index of the first block in the chunk.
    pub(crate) index: u64,
    pub(crate) entries: &'a [u8],
}

impl ChunkPart<'_> {
    /// The blocks of the chunk that it changes.
    pub(crate) fn mask(&self, meta: usize) -> u128 {
        let blocks = self.entries.len() / meta;
        (u128::MAX >> (CHUNK_BLOCKS as usize - blocks)) << self.index
    }
}

/// The blocks of the chunk that parts change.
pub(crate) fn mask(parts: &[ChunkPart<'_>], meta: usize) -> u128 {
    parts.iter().fold(0, |set, part| set | part.mask(meta))
}

/// Copies the entries of parts into a page with `meta` bytes per block.
pub(crate) fn overlay(parts: &[ChunkPart<'_>], meta: usize, page: &mut [u8]) {
    for part in parts {
        let at = part.index as usize * meta;
        page[at..at + part.entries.len()].copy_from_slice(part.entries);
    }
}

/// Appends the entries of some blocks of a page, each preceded by its index.
pub(crate) fn encode_entries(blocks: u128, meta: usize, page: &[u8], out: &mut Vec<u8>) {
    for index in set_bits(blocks) {
        let at = index as usize * meta;
        out.push(index as u8);
        out.extend_from_slice(&page[at..at + meta]);
    }
}

/// Parses the output of [`encode_entries`]: index and entry of each block. `None`: the bytes are
/// malformed, or the indexes do not ascend.
pub(crate) fn decode_entries(bytes: &[u8], meta: usize) -> Option<Vec<(u64, &[u8])>> {
    let entries = bytes.chunks_exact(1 + meta);
    let whole = entries.remainder().is_empty();
    let picked: Vec<_> = entries.map(|entry| (u64::from(entry[0]), &entry[1..])).collect();
    let ascend = picked.is_sorted_by(|(a, _), (b, _)| a < b);
    (whole && ascend && picked.last().is_none_or(|(index, _)| *index < CHUNK_BLOCKS)).then_some(picked)
}

/// Calls `f` with each chunk that runs of blocks touch, and with the parts of the runs in that
/// chunk. `entries` holds the entries of all blocks of all runs, `meta` bytes each.
pub(crate) fn for_each_changed_chunk<'a>(
    runs: impl Iterator<Item = Range<u64>>,
    entries: &'a [u8],
    meta: usize,
    mut f: impl FnMut(u64, &[ChunkPart<'a>]),
) {
    let mut left = entries;
    let mut open: Option<(u64, Vec<ChunkPart<'a>>)> = None;
    for run in runs {
        for_each_chunk(&run, meta, |chunk, within, bytes| {
            let (entries, rest) = left.split_at(bytes.len());
            left = rest;
            let part = ChunkPart { index: (within.start / meta) as u64, entries };
            match &mut open {
                Some((same, parts)) if *same == chunk => parts.push(part),
                _ => {
                    if let Some((chunk, parts)) = open.replace((chunk, vec![part])) {
                        f(chunk, &parts);
                    }
                }
            }
        });
    }
    if let Some((chunk, parts)) = open {
        f(chunk, &parts);
    }
}

/// Calls `f(chunk, range of bytes in the chunk's page, range of bytes of the range's entries)` for
/// each chunk of a range.
pub(crate) fn for_each_chunk(
    range: &Range<u64>,
    meta: usize,
    mut f: impl FnMut(u64, Range<usize>, Range<usize>),
) {
    let mut at = range.start;
    while at < range.end {
        let chunk = at / CHUNK_BLOCKS;
        let end = ((chunk + 1) * CHUNK_BLOCKS).min(range.end);
        let within = (at % CHUNK_BLOCKS) as usize * meta;
        let (from, to) = ((at - range.start) as usize, (end - range.start) as usize);
        let bytes = from * meta..to * meta;
        f(chunk, within..within + bytes.len(), bytes);
        at = end;
    }
}

/// The key of a page.
pub(crate) fn page_key(chunk: u64) -> ObjectKey {
    vec![b'p', chunk as u8]
}

/// Collects the steps on keys of one transaction.
#[derive(Default)]
pub(crate) struct KeySteps {
    pub(crate) set: Vec<(ObjectKey, Vec<u8>)>,
    pub(crate) removed: Vec<ObjectKey>,
    pub(crate) cleared: Vec<(ObjectKey, ObjectKey)>,
}

impl KeySteps {
    /// Removals first: a page set in the same transaction must stand.
    pub(crate) fn into_steps(self, steps: &mut Vec<ObjectStep<'_>>) {
        steps.extend(self.cleared.into_iter().map(|(first, end)| ObjectStep::RemoveKeyRange(first, end)));
        if !self.removed.is_empty() {
            steps.push(ObjectStep::RemoveKeys(self.removed));
        }
        if !self.set.is_empty() {
            steps.push(ObjectStep::SetKeys(self.set));
        }
    }
}

/// The numbers of the bits that are set, ascending.
pub(crate) fn set_bits(mut set: u128) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        (set != 0).then(|| {
            let lowest = set.trailing_zeros();
            set &= set - 1;
            u64::from(lowest)
        })
    })
}
