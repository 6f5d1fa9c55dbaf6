//! The `Disk` contract: an array of blocks that a format implements and a front end serves.

use crate::{Error, Kind, Result};
use serde::Serialize;

/// Bytes in a block: the unit of encryption and of every map.
pub const BLOCK_SIZE: usize = 4096;

/// Blocks of a segment: consecutive blocks of a disk that a format moves or numbers together.
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

/// Merges the states of consecutive blocks into runs.
#[derive(Default)]
pub struct ExtentBuilder(Vec<Extent>);

impl ExtentBuilder {
    /// Appends `blocks` blocks to the last run, or begins another run. Does nothing for 0 blocks.
    pub fn add(&mut self, blocks: u64, written: bool) {
        match self.0.last_mut() {
            _ if blocks == 0 => {}
            Some(run) if run.written == written => run.blocks += blocks,
            _ => self.0.push(Extent { blocks, written }),
        }
    }

    /// The runs; adjacent runs have different states.
    pub fn finish(self) -> Vec<Extent> {
        self.0
    }
}

/// One counter of a running disk, for the user.
#[derive(Clone, Debug, Serialize)]
pub struct StatusItem {
    /// Stable machine name, such as `journal_used`.
    pub name: &'static str,
    /// Current value.
    pub value: u64,
    /// Unit, such as `bytes`, `blocks` or `writes`.
    pub unit: &'static str,
}

impl StatusItem {
    /// Makes a counter.
    pub const fn new(name: &'static str, value: u64, unit: &'static str) -> StatusItem {
        StatusItem { name, value, unit }
    }
}

/// Counters of a running disk.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// The counters, in display order.
    pub items: Vec<StatusItem>,
}

/// An array of [`BLOCK_SIZE`] blocks that a format implements.
///
/// Callers use [`crate::ByteDisk`], which guarantees that every range lies on the disk, and that
/// buffers are whole blocks and never empty. Implementations are called from many threads
/// concurrently.
///
/// Durability: when [`Disk::flush`] returns, every write acknowledged before the call is on the
/// medium. After a power cut each block reads as its last flushed version or any later acknowledged
/// one: never a mixture, never an older version, never a verification error.
pub trait Disk: Send + Sync {
    /// Length in blocks.
    fn blocks(&self) -> u64;
    /// Fills `buf` (a multiple of [`BLOCK_SIZE`]) from the blocks starting at `first`. Fails for
    /// the whole range if any block in it cannot be verified; nothing unverified is returned.
    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()>;
    /// Writes `data` (a multiple of [`BLOCK_SIZE`]) to the blocks starting at `first`.
    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()>;
    /// Makes `count` blocks read as zeros, and frees their space if the format can.
    fn discard(&self, first: BlockAddr, count: u64) -> Result<()>;
    /// Returns when all acknowledged writes are durable.
    fn flush(&self) -> Result<()>;
    /// The written and unwritten runs of a range. Adjacent runs may have the same state; the
    /// lengths add up to `count`.
    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>>;
    /// Makes deleted data unrecoverable for good, and returns counters of the work. After it
    /// returned, data that was deleted or overwritten before the call cannot be read from the
    /// medium, even with all keys.
    ///
    /// Errors: [`Kind::Usage`] from a format that cannot purge, [`Kind::PurgeIncomplete`] if some
    /// deleted data can still be recovered.
    fn purge(&self) -> Result<Status> {
        Err(Error::new(Kind::Usage, "the disk cannot be purged")
            .found("a format that does not forget deleted data")
            .expected("a disk of the format flash"))
    }
    /// Counters for the user.
    fn status(&self) -> Status;
    /// Flushes and releases the medium. Later writes fail. Called once, after the last front end
    /// has released the disk.
    fn close(&self) -> Result<()>;
    /// Whether writes are refused by design (a snapshot, a disk opened read-only).
    fn is_read_only(&self) -> bool {
        false
    }
}
