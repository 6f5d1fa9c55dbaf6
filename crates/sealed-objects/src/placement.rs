//! Where an object keeps the metadata of its blocks: the seam between the engine and its layouts.
//!
//! Every layout keeps block `i` at `i * slot` of its object and writes it with its metadata in one transaction.

use super::chain::Tails;
use super::chunks::{Chunks, chunks_of};
use super::pages::Learned;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{Key, Keys, Step};
use std::ops::Range;

/// Consecutive blocks that a transaction changes alike.
pub(crate) struct Run {
    /// The first, by its index in the segment.
    pub(crate) index: u64,
    pub(crate) count: u64,
    pub(crate) fill: Fill,
}

/// What blocks become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// They get data.
    Data,
    /// They become unwritten.
    Hole,
    /// They held something that is gone: they are refused until they are written or discarded. Their entries are
    /// [`LOST`].
    Lost,
}

/// Every byte of the entry of a block that is lost. No ciphertext goes with such an entry.
pub(crate) const LOST: u8 = u8::MAX;

/// Whether entries of so many bytes are authenticated, so that one of [`LOST`] is refused.
pub(crate) fn can_refuse(meta: usize) -> bool {
    meta == Cipher::Gcm.meta_size()
}

/// What a transaction does to the blocks of one object.
pub(crate) struct Change {
    pub(crate) segment: u64,
    /// Ascending; two that meet differ in `fill`.
    pub(crate) runs: Vec<Run>,
    /// The entries of all blocks of all runs; zeros for those that become unwritten.
    pub(crate) entries: Vec<u8>,
    /// Ciphertext, `slot` bytes for each block that gets data; where slots hold entries, also for each that is lost.
    pub(crate) sealed: Vec<u8>,
    /// The object is not there: what is not written reads as zeros.
    pub(crate) absent: bool,
}

impl Change {
    /// The blocks of each run.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.iter().map(|run| run.index..run.index + run.count)
    }
}

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
    pub(crate) segment: u64,
    /// The blocks whose entries are wanted.
    pub(crate) range: &'a Range<u64>,
    /// The chunks of the range that were asked for.
    pub(crate) missing: Chunks,
    pub(crate) pairs: &'a [(Key, Vec<u8>)],
    /// What the object's seal says of them, which verified: it came with them, or is that of a transaction which asserts that
    /// nothing changed since.
    pub(crate) tails: &'a Tails,
}

/// How one layout keeps metadata. Blocks are numbered within their segment.
pub(crate) trait Placement: Send + Sync {
    /// Bytes from one block to the next in an object.
    fn slot(&self) -> usize {
        BLOCK_SIZE
    }

    /// Whether the seal binds entries: then it comes with the keys of every [`Source`], and is compared.
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

    /// Adds what a transaction must do beside writing the slots, and changes what the seal will say of the entries. The
    /// caller has the object to itself, and the transaction has not begun. `fetched`: what was [`Placement::unready`].
    fn write<'a>(&self, change: &'a Change, fetched: Learned, tails: &mut Tails, steps: &mut Vec<Step<'a>>);

    /// Where to ask for the entries of `range`, of which those in `missing` are wanted.
    fn source(&self, range: &Range<u64>, missing: Chunks) -> Source;

    /// Fills entries of the blocks of `range` from memory and says of which chunks it could not.
    fn recall(&self, _segment: u64, range: &Range<u64>, _entries: &mut [u8]) -> Chunks {
        chunks_of(range)
    }

    /// Whether what was recalled for the blocks of `range` is still what is remembered.
    fn is_still(&self, _segment: u64, _range: &Range<u64>, _entries: &[u8]) -> bool {
        true
    }

    /// Fills the entries that an answer has, and says what else it teaches. Errors: [`Kind::Corrupt`] for what no
    /// transaction of this disk left.
    fn take(&self, _answer: &Answered<'_>, _entries: &mut [u8]) -> Result<Learned> {
        Ok(Learned::new())
    }

    /// Remembers what an answer taught. No transaction of the segment began since it was asked for.
    fn learn(&self, _segment: u64, _learned: Learned) {}

    /// Forgets what is remembered of a segment.
    fn forget(&self, _segment: u64) {}

    /// Forgets everything that is remembered.
    fn forget_all(&self) {}

    /// Pages found in memory, and not found there.
    fn counts(&self) -> (u64, u64) {
        (0, 0)
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
