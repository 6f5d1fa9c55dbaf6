//! Where an object keeps the metadata of its blocks: the interface between the engine and the
//! layouts.
//!
//! Every layout stores block `i` at `i * slot` of its object and writes it with its metadata in one
//! transaction. A layout that caches metadata does so in [`MetadataPages`], which all such layouts
//! use alike.

use crate::layouts::chain::ChainTails;
use crate::layouts::chunks::{ChunkSet, chunks_of};
use crate::layouts::metadata_pages::{FetchedPages, MetadataPages};
use crate::segment::Segment;
use crate::writing::object_change::ObjectChange;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_medium::{KeySelection, ObjectKey, ObjectStep};
use std::ops::Range;

/// The place of the entries of a range of blocks.
pub(crate) enum EntrySource {
    /// In the blocks' own slots.
    Slots,
    /// At this byte of the object, contiguous.
    Bytes(u64),
    /// Under keys.
    Keys(KeySelection),
}

/// The store's answer about entries of some blocks of one object.
pub(crate) struct EntryAnswer<'a> {
    pub(crate) segment: Segment,
    /// The blocks with the requested entries.
    pub(crate) range: &'a Range<u64>,
    /// The requested chunks of the range.
    pub(crate) missing: ChunkSet,
    pub(crate) pairs: &'a [(ObjectKey, Vec<u8>)],
    /// The tails from the object's seal, which verified: the seal came with the entries, or belongs
    /// to a transaction which asserts that the object has not changed since.
    pub(crate) tails: &'a ChainTails,
}

/// How one layout stores metadata. Blocks are numbered within their segment.
pub(crate) trait Placement: Send + Sync {
    /// Bytes between the starts of consecutive blocks in an object.
    fn slot(&self) -> usize {
        BLOCK_SIZE
    }

    /// The pages that the layout caches, if it does.
    fn pages(&self) -> Option<&MetadataPages> {
        None
    }

    /// Whether the seal binds entries. If so, the seal is fetched together with the keys of every
    /// [`EntrySource`], and compared.
    fn is_chained(&self) -> bool {
        false
    }

    /// The chunks that need their page fetched before a change can be written.
    fn pages_to_fetch(&self, _change: &ObjectChange, _tails: &ChainTails) -> ChunkSet {
        0
    }

    /// Whether a change cannot be written without the pages that are not ready.
    fn needs_fetch(&self, _tails: &ChainTails) -> bool {
        false
    }

    /// Adds the steps of a transaction beyond writing the slots, and updates the tails for the
    /// seal. The caller has the object exclusively, and the transaction has not begun. `fetched`:
    /// the pages that [`Placement::pages_to_fetch`] named.
    fn add_steps<'a>(
        &self,
        change: &'a ObjectChange,
        fetched: FetchedPages,
        tails: &mut ChainTails,
        steps: &mut Vec<ObjectStep<'a>>,
    );

    /// The place of the entries of `range`; the caller needs those in `missing`.
    fn source(&self, range: &Range<u64>, missing: ChunkSet) -> EntrySource;

    /// Fills in the entries that an answer contains, and returns the pages fetched with it. Errors:
    /// [`Kind::Corrupt`] for metadata that no transaction of this disk wrote.
    fn extract_entries(&self, _answer: &EntryAnswer<'_>, _entries: &mut [u8]) -> Result<FetchedPages> {
        Ok(FetchedPages::new())
    }

    /// Fills in entries of the blocks of `range` from memory and returns the chunks that are not
    /// cached.
    fn recall(&self, segment: Segment, range: &Range<u64>, entries: &mut [u8]) -> ChunkSet {
        self.pages().map_or_else(|| chunks_of(range), |pages| pages.recall(segment, range, entries))
    }

    /// Whether the entries that were recalled for the blocks of `range` are still the cached ones.
    fn is_unchanged(&self, segment: Segment, range: &Range<u64>, entries: &[u8]) -> bool {
        self.pages().is_none_or(|pages| pages.is_unchanged(segment, range, entries))
    }

    /// Caches the pages of an answer. No transaction of the segment has begun since the query.
    fn cache_pages(&self, segment: Segment, fetched: FetchedPages) {
        if let Some(pages) = self.pages() {
            pages.put_intact(segment, fetched);
        }
    }

    /// Drops all cached metadata of a segment.
    fn invalidate(&self, segment: Segment) {
        if let Some(pages) = self.pages() {
            pages.invalidate(segment);
        }
    }
}

/// The offset of the entries behind all blocks.
pub(crate) const DATA_END: u64 = SEGMENT_BLOCKS * BLOCK_SIZE as u64;

/// The error for keys that no transaction of this disk wrote.
pub(crate) fn unexpected_key(key: &[u8], value: &[u8]) -> Error {
    Error::new(Kind::Corrupt, "the metadata of the object is malformed")
        .found(format!("a key {key:02x?} with {} bytes", value.len()))
        .expected("keys and values as this disk writes them")
        .hint("roll the disk back to a snapshot or restore it from a backup")
}
