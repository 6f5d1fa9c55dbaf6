//! Where an object keeps the metadata of its blocks: the interface between the engine and the
//! layouts.
//!
//! Every layout stores block `i` at `i * slot` of its object and writes it with its metadata in one
//! transaction. A layout that caches metadata does so in [`Pages`], which all such layouts use
//! alike.

use crate::chain::Tails;
use crate::change::Change;
use crate::chunks::{Chunks, chunks_of};
use crate::pages::{Learned, Pages};
use crate::segment::Segment;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_medium::{Key, Keys, Step};
use std::ops::Range;

/// The place of the entries of a range of blocks.
pub(crate) enum Source {
    /// In the blocks' own slots.
    Slots,
    /// At this byte of the object, contiguous.
    Bytes(u64),
    /// Under keys.
    Keys(Keys),
}

/// The store's answer about entries of some blocks of one object.
pub(crate) struct Answered<'a> {
    pub(crate) segment: Segment,
    /// The blocks with the requested entries.
    pub(crate) range: &'a Range<u64>,
    /// The requested chunks of the range.
    pub(crate) missing: Chunks,
    pub(crate) pairs: &'a [(Key, Vec<u8>)],
    /// The tails from the object's seal, which verified: the seal came with the entries, or belongs
    /// to a transaction which asserts that the object has not changed since.
    pub(crate) tails: &'a Tails,
}

/// How one layout stores metadata. Blocks are numbered within their segment.
pub(crate) trait Placement: Send + Sync {
    /// Bytes between the starts of consecutive blocks in an object.
    fn slot(&self) -> usize {
        BLOCK_SIZE
    }

    /// The pages that the layout caches, if it does.
    fn pages(&self) -> Option<&Pages> {
        None
    }

    /// Whether the seal binds entries. If so, the seal is fetched together with the keys of every
    /// [`Source`], and compared.
    fn is_chained(&self) -> bool {
        false
    }

    /// The chunks that need their page fetched before a change can be written.
    fn unready(&self, _change: &Change, _tails: &Tails) -> Chunks {
        0
    }

    /// Whether a change cannot be written without the pages that are not ready.
    fn must_fetch(&self, _tails: &Tails) -> bool {
        false
    }

    /// Adds the steps of a transaction beyond writing the slots, and updates the tails for the
    /// seal. The caller has the object exclusively, and the transaction has not begun. `fetched`:
    /// the pages that [`Placement::unready`] named.
    fn write<'a>(&self, change: &'a Change, fetched: Learned, tails: &mut Tails, steps: &mut Vec<Step<'a>>);

    /// The place of the entries of `range`; the caller needs those in `missing`.
    fn source(&self, range: &Range<u64>, missing: Chunks) -> Source;

    /// Fills in the entries that an answer contains, and returns the pages learned from it. Errors:
    /// [`Kind::Corrupt`] for metadata that no transaction of this disk wrote.
    fn take(&self, _answer: &Answered<'_>, _entries: &mut [u8]) -> Result<Learned> {
        Ok(Learned::new())
    }

    /// Fills in entries of the blocks of `range` from memory and returns the chunks that are not
    /// cached.
    fn recall(&self, segment: Segment, range: &Range<u64>, entries: &mut [u8]) -> Chunks {
        self.pages().map_or_else(|| chunks_of(range), |pages| pages.recall(segment, range, entries))
    }

    /// Whether the entries that were recalled for the blocks of `range` are still the cached ones.
    fn is_still(&self, segment: Segment, range: &Range<u64>, entries: &[u8]) -> bool {
        self.pages().is_none_or(|pages| pages.is_still(segment, range, entries))
    }

    /// Caches the pages of an answer. No transaction of the segment has begun since the query.
    fn learn(&self, segment: Segment, learned: Learned) {
        if let Some(pages) = self.pages() {
            pages.put_all(segment, learned);
        }
    }

    /// Drops all cached metadata of a segment.
    fn forget(&self, segment: Segment) {
        if let Some(pages) = self.pages() {
            pages.forget(segment);
        }
    }
}

/// The offset of the entries behind all blocks.
pub(crate) const DATA_END: u64 = SEGMENT_BLOCKS * BLOCK_SIZE as u64;

/// The error for keys that no transaction of this disk wrote.
pub(crate) fn strange_key(key: &[u8], value: &[u8]) -> Error {
    Error::new(Kind::Corrupt, "the metadata of the object is not usable")
        .found(format!("a key {key:02x?} with {} bytes", value.len()))
        .expected("keys and values as this disk writes them")
        .remedy("roll the disk back to a snapshot or restore it from a backup")
}
