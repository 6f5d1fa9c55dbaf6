//! Where an object keeps the metadata of its blocks: the seam between the engine and its layouts.
//!
//! Every layout keeps block `i` at `i * slot` of its object and writes it with its metadata in one
//! transaction. A layout that remembers metadata does so in [`Pages`]; what is done with those is
//! the same for all.

use crate::chain::Tails;
use crate::change::Change;
use crate::chunks::{Chunks, chunks_of};
use crate::pages::{Learned, Pages};
use crate::segment::Segment;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_medium::{Key, Keys, Step};
use std::ops::Range;

/// Where the entries of a range of blocks can be had.
pub(crate) enum Source {
    /// In the blocks' own slots.
    Slots,
    /// At this byte of the object, one after the other.
    Bytes(u64),
    /// Under keys.
    Keys(Keys),
}

/// What the store answered about entries of some blocks of one object.
pub(crate) struct Answered<'a> {
    pub(crate) segment: Segment,
    /// The blocks whose entries are wanted.
    pub(crate) range: &'a Range<u64>,
    /// The chunks of the range that were asked for.
    pub(crate) missing: Chunks,
    pub(crate) pairs: &'a [(Key, Vec<u8>)],
    /// What the object's seal says of them, which verified: it came with them, or is that of a
    /// transaction which asserts that nothing changed since.
    pub(crate) tails: &'a Tails,
}

/// How one layout keeps metadata. Blocks are numbered within their segment.
pub(crate) trait Placement: Send + Sync {
    /// Bytes from one block to the next in an object.
    fn slot(&self) -> usize {
        BLOCK_SIZE
    }

    /// What it remembers, if it does.
    fn pages(&self) -> Option<&Pages> {
        None
    }

    /// Whether the seal binds entries: then it comes with the keys of every [`Source`], and is
    /// compared.
    fn is_chained(&self) -> bool {
        false
    }

    /// The chunks whose pages must be fetched before a change can be written.
    fn unready(&self, _change: &Change, _tails: &Tails) -> Chunks {
        0
    }

    /// Whether a page that is not ready cannot be done without.
    fn must_fetch(&self, _tails: &Tails) -> bool {
        false
    }

    /// Adds what a transaction must do beside writing the slots, and changes what the seal will say
    /// of the entries. The caller has the object to itself, and the transaction has not begun.
    /// `fetched`: what was [`Placement::unready`].
    fn write<'a>(&self, change: &'a Change, fetched: Learned, tails: &mut Tails, steps: &mut Vec<Step<'a>>);

    /// Where to ask for the entries of `range`, of which those in `missing` are wanted.
    fn source(&self, range: &Range<u64>, missing: Chunks) -> Source;

    /// Fills the entries that an answer has, and says what else it teaches. Errors:
    /// [`Kind::Corrupt`] for what no transaction of this disk left.
    fn take(&self, _answer: &Answered<'_>, _entries: &mut [u8]) -> Result<Learned> {
        Ok(Learned::new())
    }

    /// Fills entries of the blocks of `range` from memory and says of which chunks it could not.
    fn recall(&self, segment: Segment, range: &Range<u64>, entries: &mut [u8]) -> Chunks {
        self.pages().map_or_else(|| chunks_of(range), |pages| pages.recall(segment, range, entries))
    }

    /// Whether what was recalled for the blocks of `range` is still what is remembered.
    fn is_still(&self, segment: Segment, range: &Range<u64>, entries: &[u8]) -> bool {
        self.pages().is_none_or(|pages| pages.is_still(segment, range, entries))
    }

    /// Remembers what an answer taught. No transaction of the segment began since it was asked for.
    fn learn(&self, segment: Segment, learned: Learned) {
        if let Some(pages) = self.pages() {
            pages.put_all(segment, learned);
        }
    }

    /// Forgets what is remembered of a segment.
    fn forget(&self, segment: Segment) {
        if let Some(pages) = self.pages() {
            pages.forget(segment);
        }
    }
}

/// Where the entries behind all blocks begin.
pub(crate) const DATA_END: u64 = SEGMENT_BLOCKS * BLOCK_SIZE as u64;

/// The complaint about keys that no transaction of this disk left.
pub(crate) fn strange_key(key: &[u8], value: &[u8]) -> Error {
    Error::new(Kind::Corrupt, "the metadata of the object is not usable")
        .found(format!("a key {key:02x?} with {} bytes", value.len()))
        .expected("keys and values as this disk writes them")
        .remedy("roll the disk back to a snapshot or restore it from a backup")
}
