//! What a scheme does with the blocks of a file. `ProtectedFile` may lay one body over another
//! while it converts a file: what the upper one never wrote is the lower one's.

use crate::counter::Pass;
use crate::failed::{Checked, Failed};
use crate::untrusted::Untrusted;
use lacuna_contracts::{Budget, Error, Kind, Result};
use std::cell::Cell;

/// What a body knows of a block. It is as authentic as the block itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Never written here.
    Nothing,
    /// Punched here: zeros, whatever lies below.
    Punched,
    /// Written here.
    Data,
}

/// The blocks of a file under one scheme.
///
/// A method that changes it writes US only where all changes before are complete. So it can go on
/// being used after an error of kind
/// [`Kind::NoSpace`]: of `write`, the first blocks are then the new ones; of `punch` and `resize`, some blocks are holes.
/// Removing pages needs no space. After an error of another kind than that and [`Kind::Corrupt`] it
/// is of no use, unless `write` says that nothing was changed ([`Error::changed_nothing`]): then
/// the first blocks are the new ones as well.
pub(crate) trait Body: Send + Sync {
    fn set_budget(&mut self, budget: Budget);

    fn blocks(&self) -> u64;

    /// Update and Append of whole blocks; blocks between the end and `first` become holes.
    fn write(&mut self, us: &dyn Untrusted, pass: &mut Pass, first: u64, plain: &[u8]) -> Result<()>;

    /// Check of whole blocks, all of which exist.
    fn read(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> Checked;

    /// The state of a block, and a block after it up to which all have that state. Past the end:
    /// nothing.
    fn run(&self, us: &dyn Untrusted, block: u64) -> Result<(State, u64)>;

    /// Writes dirty US pages if there are many. `write` does so by itself; before other changes its
    /// owner does.
    fn relieve(&mut self, us: &dyn Untrusted) -> Result<()>;

    /// Delete of all blocks from `blocks` on, or holes up to there.
    fn resize(&mut self, us: &dyn Untrusted, blocks: u64) -> Result<()>;

    /// Existing blocks become as if they had never been written, or, under MT-EINT alone, punched
    /// (`mark`).
    fn punch(&mut self, us: &dyn Untrusted, first: u64, count: u64, mark: bool) -> Result<()>;

    /// A block of which no content is known fails from now on, until it is written.
    fn lose(&mut self, us: &dyn Untrusted, pass: &mut Pass, block: u64) -> Result<()>;

    /// Writes dirty US pages and gives its section of TS, of at most `most` bytes; `alone` if no
    /// other body shares them.
    fn seal(&mut self, us: &dyn Untrusted, most: usize, alone: bool) -> Result<Vec<u8>>;

    /// Bytes of US pages, blocks with tags in RTree, counter intervals.
    fn usage(&self, us: &dyn Untrusted) -> Result<(u64, u64, u64)>;

    /// How many counter intervals must be authenticated. A body with more than [`DISPERSED`] takes
    /// no more changes but by `resize`.
    fn intervals(&self) -> u64;

    /// How many there would be if all blocks were written anew under one counter.
    fn fewest_intervals(&self, us: &dyn Untrusted) -> Result<u64>;
}

/// Counter intervals beyond which MT-EINT, which needs none, suits better.
pub(crate) const DISPERSED: u64 = 4096;

/// The most blocks that are encrypted or decrypted in one go.
pub(crate) const BATCH: usize = 128;
/// The most bytes of them that are encrypted in one go: they should stay in the processor's cache.
const BATCH_BYTES: usize = 128 << 10;

/// Blocks of this size that are encrypted in one go.
pub(crate) fn batch_blocks(block_size: usize) -> usize {
    (BATCH_BYTES / block_size).clamp(1, BATCH)
}

/// Runs `work` with a buffer of `len` bytes, whose content is arbitrary. Buffers are kept, one for
/// each thread.
pub(crate) fn with_buffer<R>(len: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    thread_local! {
        static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    // It is taken, not borrowed: `work` calls untrusted storage, which may be another protected
    // file.
    let mut buffer = BUFFER.take();
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    let result = work(&mut buffer[..len]);
    BUFFER.set(buffer);
    result
}

/// The error of a step that may have left a file half changed: where it is one of a read, it ends
/// the use of the file like any other that is no refusal.
pub(crate) fn half_done(e: Error) -> Error {
    if e.kind().is_refusal() { e } else { e.of_sync() }
}

/// Refuses runs that are no whole blocks, or end after the last block there can be.
pub(crate) fn check_run(block_size: usize, first: u64, len: usize) -> Result<u64> {
    let count = (len / block_size) as u64;
    let fits = first.checked_add(count).is_some_and(|end| end <= MOST_BLOCKS);
    if len.is_multiple_of(block_size) && fits {
        return Ok(count);
    }
    Err(Error::new(Kind::Usage, "cannot use a run of blocks")
        .found(format!("{len} bytes from block {first} on"))
        .expected(format!("whole blocks of {block_size} bytes before block {MOST_BLOCKS}")))
}

/// Blocks of the longest file.
pub(crate) const MOST_BLOCKS: u64 = 1 << 56;

/// Refuses blocks past the end.
pub(crate) fn check_end(blocks: u64, first: u64, count: u64) -> Result<()> {
    if first + count <= blocks {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "cannot use blocks past the end of a file")
        .found(format!("blocks {first} to {}", first + count))
        .expected(format!("at most {blocks}")))
}

/// A buffer shows nothing from a failed block on: what is there was not verified.
pub(crate) fn zero_from(checked: Checked, first: u64, block_size: usize, plain: &mut [u8]) -> Checked {
    checked.inspect_err(|failed| {
        let good = (failed.block - first) as usize * block_size;
        plain.iter_mut().skip(good).for_each(|byte| *byte = 0);
    })
}

/// Adds to an error at which block it happened.
pub(crate) fn at(block: u64) -> impl FnOnce(Error) -> Failed {
    move |error| Failed { block, error }
}
