//! The `Disk` contract: an array of blocks that a format gives and a front end serves.

use crate::{Error, Kind, Result};
use serde::Serialize;

/// Bytes in a block: the unit of encryption and of every map.
pub const BLOCK_SIZE: usize = 4096;

/// Blocks of a segment: consecutive blocks of a disk that keep together where a format moves or
/// numbers them.
pub const SEGMENT_BLOCKS: u64 = 1024;

/// The number of a block on a disk, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockAddr(pub u64);

/// A run of blocks that are all written, or all unwritten (and so read as zeros).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length of the run in blocks, never 0.
    pub blocks: u64,
    /// Whether the run may hold data. `false` promises that it reads as zeros.
    pub written: bool,
}

/// Makes runs of what is learnt of neighbouring blocks one after the other.
#[derive(Default)]
pub struct ExtentRuns(Vec<Extent>);

impl ExtentRuns {
    /// Adds the next `blocks` blocks to the last run, or begins another. No blocks add nothing.
    pub fn add(&mut self, blocks: u64, written: bool) {
        match self.0.last_mut() {
            _ if blocks == 0 => {}
            Some(run) if run.written == written => run.blocks += blocks,
            _ => self.0.push(Extent { blocks, written }),
        }
    }

    /// The runs, no two neighbours alike.
    pub fn finish(self) -> Vec<Extent> {
        self.0
    }
}

/// One counter of a running disk, for people.
#[derive(Clone, Debug, Serialize)]
pub struct StatusItem {
    /// Stable machine name, such as `journal_used`.
    pub name: &'static str,
    /// Present value.
    pub value: u64,
    /// Unit, such as `bytes`, `blocks` or `writes`.
    pub unit: &'static str,
}

impl StatusItem {
    /// A counter of this name, value and unit.
    pub const fn new(name: &'static str, value: u64, unit: &'static str) -> StatusItem {
        StatusItem { name, value, unit }
    }
}

/// Counters of a running disk.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// The counters, in the order in which they should be shown.
    pub items: Vec<StatusItem>,
}

/// An array of [`BLOCK_SIZE`] blocks, as a format gives it.
///
/// Callers go through [`crate::ByteDisk`], which guarantees that every range lies on the disk, that
/// buffers are whole blocks and never empty. Implementations are called from many threads at once.
///
/// Durability: when [`Disk::flush`] returns, every write acknowledged before the call is on the
/// medium. After a power cut each block reads as its last flushed version or any later acknowledged
/// one: never a mixture, never an older one, never an alarm.
pub trait Disk: Send + Sync {
    /// Length in blocks.
    fn blocks(&self) -> u64;
    /// Fills `buf` (a multiple of [`BLOCK_SIZE`]) from the blocks starting at `first`. Fails for
    /// the whole range if any block in it cannot be verified; nothing unverified is returned.
    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()>;
    /// Writes `data` (a multiple of [`BLOCK_SIZE`]) to the blocks starting at `first`.
    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()>;
    /// Makes `count` blocks read as zeros, giving their space back where the format can.
    fn discard(&self, first: BlockAddr, count: u64) -> Result<()>;
    /// Returns when everything acknowledged so far is durable.
    fn flush(&self) -> Result<()>;
    /// Which parts of a range are written. Adjacent runs may have the same state; the lengths add
    /// up to `count`.
    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>>;
    /// Makes what was deleted unrecoverable, for good and for everybody; gives what was done as
    /// counters. When it returns, nothing that was deleted or overwritten before the call can be
    /// read from the medium, whatever keys somebody has.
    ///
    /// Errors: [`Kind::Usage`] from a format that cannot do this, [`Kind::PurgeIncomplete`] if
    /// something can still be recovered.
    fn purge(&self) -> Result<Status> {
        Err(Error::new(Kind::Usage, "the disk cannot be purged")
            .found("a format that does not forget what was deleted")
            .expected("a disk of the format flash"))
    }
    /// Counters for people.
    fn status(&self) -> Status;
    /// Flushes and releases the medium. Later writes fail. Called once, when the last front end has
    /// let go.
    fn close(&self) -> Result<()>;
    /// Whether writes are refused by design (a snapshot, a disk opened read-only).
    fn read_only(&self) -> bool {
        false
    }
}
