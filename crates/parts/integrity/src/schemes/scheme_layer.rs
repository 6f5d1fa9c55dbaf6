//! `SchemeLayer`: the operations of a scheme on the blocks of a file. `ProtectedFile` may stack two
//! layers while it converts a file: a block that the upper layer never wrote belongs to the lower
//! one.

use crate::counters::counter::WritePass;
use crate::failed::{CheckResult, FailedBlock};
use crate::untrusted::Untrusted;
use lacuna_contracts::{Budget, Error, Kind, Result};
use std::cell::Cell;

/// The state of a block in a layer. It is as authentic as the block itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentState {
    /// Never written in this layer.
    Unwritten,
    /// Punched in this layer: zeros, whatever the layer below has.
    Punched,
    /// Written in this layer.
    Data,
}

/// The blocks of a file under one scheme.
///
/// A method that changes the layer writes US only at points where all earlier changes are complete.
/// So the layer stays usable after an error of kind [`Kind::NoSpace`]: after `write`, a prefix of
/// the blocks is new; after `punch` and `resize`, some blocks are holes. Removing pages needs no
/// space. An error of any other kind except [`Kind::Corrupt`] makes the layer unusable, unless
/// `write` or `mark_lost` reports that nothing was changed ([`Error::changed_nothing`]): then too a
/// prefix of the blocks is new.
pub(crate) trait SchemeLayer: Send + Sync {
    fn set_budget(&mut self, budget: Budget);

    fn blocks(&self) -> u64;

    /// Update and Append of whole blocks; blocks between the end and `first` become holes.
    fn write(&mut self, us: &dyn Untrusted, pass: &mut WritePass, first: u64, plain: &[u8]) -> Result<()>;

    /// Check of whole blocks, which must all exist.
    fn read(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> CheckResult;

    /// The state of a block, and the end of a run of blocks that share it. Past the end of the
    /// layer: `Unwritten`.
    fn extent_at(&self, us: &dyn Untrusted, block: u64) -> Result<(ExtentState, u64)>;

    /// Writes dirty US pages if there are many. `write` does so by itself; the owner calls this
    /// before other changes.
    fn flush_over_budget(&mut self, us: &dyn Untrusted) -> Result<()>;

    /// Shortens (Delete of all blocks at or after `blocks`) or lengthens with holes.
    fn resize(&mut self, us: &dyn Untrusted, blocks: u64) -> Result<()>;

    /// Makes existing blocks holes as if never written; with `mark`, which MT-EINT alone supports,
    /// marks them punched.
    fn punch(&mut self, us: &dyn Untrusted, first: u64, count: u64, mark: bool) -> Result<()>;

    /// Marks a block as lost: reads of it fail until it is written.
    fn mark_lost(&mut self, us: &dyn Untrusted, pass: &mut WritePass, block: u64) -> Result<()>;

    /// Writes dirty US pages and gives this layer's section of TS, of at most `most` bytes; `alone`
    /// if no other layer shares TS.
    fn seal(&mut self, us: &dyn Untrusted, most: usize, alone: bool) -> Result<Vec<u8>>;

    /// Bytes of US pages, number of blocks with tags in RTree, number of counter intervals.
    fn usage(&self, us: &dyn Untrusted) -> Result<(u64, u64, u64)>;

    /// The number of counter intervals that must be authenticated. A layer with more than
    /// [`DISPERSED`] accepts no change except `resize`.
    fn intervals(&self) -> u64;

    /// The number of intervals if all blocks were rewritten under one counter.
    fn fewest_intervals(&self, us: &dyn Untrusted) -> Result<u64>;
}

/// With more counter intervals than this, MT-EINT suits better: it need not authenticate them.
pub(crate) const DISPERSED: u64 = 4096;

/// The most blocks that are encrypted or decrypted at once.
pub(crate) const BATCH: usize = 128;
/// The most bytes that are encrypted at once, so that they stay in the processor's cache.
const BATCH_BYTES: usize = 128 << 10;

/// The number of blocks of this size that are encrypted at once.
pub(crate) fn batch_blocks(block_size: usize) -> usize {
    (BATCH_BYTES / block_size).clamp(1, BATCH)
}

/// Runs `work` with a buffer of `len` bytes with arbitrary content. Each thread keeps its buffer.
pub(crate) fn with_buffer<R>(len: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    thread_local! {
        static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    // Take the buffer instead of borrowing it: `work` calls untrusted storage, which may be another
    // protected file.
    let mut buffer = BUFFER.take();
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    let result = work(&mut buffer[..len]);
    BUFFER.set(buffer);
    result
}

/// Converts the error of a step that may have left a file half changed: a failed read then no
/// longer counts as a call that changed nothing. That includes a refused read: a refused write
/// comes only where all earlier changes are complete, but reads come between the parts of a change.
pub(crate) fn half_done(e: Error) -> Error {
    if e.kind().is_refusal() && !e.is_of_read() { e } else { e.of_sync() }
}

/// Checks that a run has whole blocks and ends before the largest block number. Returns its blocks.
pub(crate) fn check_run(block_size: usize, first: u64, len: usize) -> Result<u64> {
    let count = (len / block_size) as u64;
    let fits = first.checked_add(count).is_some_and(|end| end <= MOST_BLOCKS);
    if len.is_multiple_of(block_size) && fits {
        return Ok(count);
    }
    Err(Error::new(Kind::Usage, "cannot use a run of blocks")
        .found(format!("{len} bytes from block {first}"))
        .expected(format!("whole blocks of {block_size} bytes before block {MOST_BLOCKS}")))
}

/// Blocks of the longest file.
pub(crate) const MOST_BLOCKS: u64 = 1 << 56;

/// Checks that blocks lie before the end.
pub(crate) fn check_end(blocks: u64, first: u64, count: u64) -> Result<()> {
    if first + count <= blocks {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "cannot use blocks past the end of a file")
        .found(format!("blocks {first} to {}", first + count))
        .expected(format!("at most {blocks}")))
}

/// Zeroes the buffer starting at the failed block, because its content was not verified.
pub(crate) fn zero_from(
    checked: CheckResult,
    first: u64,
    block_size: usize,
    plain: &mut [u8],
) -> CheckResult {
    checked.inspect_err(|failed| {
        let good = (failed.block - first) as usize * block_size;
        plain.iter_mut().skip(good).for_each(|byte| *byte = 0);
    })
}

/// Adds to an error the block where it happened.
pub(crate) fn at(block: u64) -> impl FnOnce(Error) -> FailedBlock {
    move |error| FailedBlock { block, error }
}
