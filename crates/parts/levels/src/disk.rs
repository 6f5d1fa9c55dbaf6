//! The levels of an open disk as front ends see them.

use crate::{Pace, Randomness};
use lacuna_contracts::{
    BLOCK_SIZE, BlockAddr, Budget, Disk, Error, Extent, ExtentBuilder, Kind, Result, Status, StatusItem,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The most blocks of one request to a format: their places are looked up under one hold of a lock.
const MAX_REQUEST_BLOCKS: usize = 256;

/// How to open a disk with levels.
pub struct OpenOptions {
    /// Memory for all caches of the disk, divided in the same way whichever levels are opened.
    pub budget: Budget,
    /// Refuse writes, and write nothing.
    pub read_only: bool,
    /// Whether threads write and refresh in the background. Without them the calling thread writes,
    /// and the format's `refresh` is the paced clock: the order of medium operations is then a
    /// function of the calls alone, as tests need it.
    pub background: bool,
    /// How long a hidden write or flush waits for cover on a disk without paced cover.
    pub cover_timeout: Duration,
    /// The sources of its random bytes.
    pub random: Randomness,
}

impl OpenOptions {
    /// Without threads, and without waiting for cover: the calling thread does everything.
    pub fn foreground(budget: Budget, random: Randomness) -> Self {
        OpenOptions { budget, read_only: false, background: false, cover_timeout: Duration::ZERO, random }
    }
}

/// An open disk with levels, as a format implements it. Called by many threads at once, with ranges
/// that lie on the level.
pub trait Levels: Send + Sync {
    /// The number of open levels, the public one included.
    fn open_levels(&self) -> usize;
    /// Length of a level in blocks.
    fn blocks(&self, level: u8) -> u64;
    /// Whether writes are refused by design.
    fn read_only(&self) -> bool;
    /// Fills `buf` from the blocks of a level starting at `first`. Called for few blocks:
    /// [`LevelDisk`] cuts requests.
    fn read(&self, level: u8, first: u64, buf: &mut [u8]) -> Result<()>;
    /// Takes in blocks of a level. Called for few blocks.
    fn write(&self, level: u8, first: u64, data: &[u8]) -> Result<()>;
    /// Makes `count` blocks of a level unwritten.
    fn discard(&self, level: u8, first: u64, count: u64) -> Result<()>;
    /// Returns when everything that a level acknowledged is durable. Not called if the disk is
    /// read-only.
    fn flush(&self, level: u8) -> Result<()>;
    /// Which of `count` blocks of a level are written. Called for few blocks.
    fn are_written(&self, level: u8, first: u64, count: usize) -> Result<Vec<bool>>;
    /// The counters of a level, other than its number and its length.
    fn status(&self, level: u8) -> Vec<StatusItem>;
    /// One beat of the paced clock: writes a stripe or batch whatever is pending, and syncs. Disks
    /// that were opened with background threads have a clock of their own.
    fn refresh(&self) -> Result<()>;
    /// Flushes the public level and writes the cover that closing takes
    /// ([`ClosingCover`](crate::ClosingCover)). Writes none to a disk without beats that was not
    /// written since it was opened, and not twice in a row.
    fn cover_closing(&self, pace: Pace) -> Result<()>;
    /// Sets whether operations of a hidden level stop waiting for cover; if so, they are refused
    /// with [`Kind::NoCover`] instead of waiting.
    fn set_no_wait(&self, level: u8, gives_up: bool);
    /// Records that the user of a hidden level was told of a loss: the disk closes as if something
    /// were pending.
    fn note_loss(&self, level: u8);
    /// Flushes the public level, writes the cover of a closing, and releases the medium. It waits
    /// for no other cover. Later writes fail.
    ///
    /// Errors: [`Kind::NoCover`] if a hidden level had more pending than that cover took, or lost
    /// something before. The disk is then left as if its medium had failed at this moment, which
    /// explains the state just as well (deniability contract).
    fn close(&self) -> Result<()>;
}

/// One level of an open disk, as front ends see it.
pub struct LevelDisk {
    disk: Arc<dyn Levels>,
    level: u8,
    /// Levels that front ends have not closed.
    open_count: Arc<AtomicUsize>,
}

/// The open levels of a disk, starting at level 0. Closing all of them closes the disk; a second
/// call makes a separate set, with a count of its own.
pub fn level_disks<D: Levels + 'static>(disk: &Arc<D>) -> Vec<Arc<LevelDisk>> {
    let disk: Arc<dyn Levels> = Arc::clone(disk) as _;
    let levels = disk.open_levels();
    let in_use = Arc::new(AtomicUsize::new(levels));
    let level = |level| LevelDisk { disk: Arc::clone(&disk), level, open_count: Arc::clone(&in_use) };
    (0..levels as u8).map(|at| Arc::new(level(at))).collect()
}

impl LevelDisk {
    /// The number of the level.
    pub fn level(&self) -> u8 {
        self.level
    }
}

impl Disk for LevelDisk {
    fn blocks(&self) -> u64 {
        self.disk.blocks(self.level)
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        let mut steps =
            (first.0..).step_by(MAX_REQUEST_BLOCKS).zip(buf.chunks_mut(MAX_REQUEST_BLOCKS * BLOCK_SIZE));
        steps.try_for_each(|(first, buf)| self.disk.read(self.level, first, buf))
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        let mut steps =
            (first.0..).step_by(MAX_REQUEST_BLOCKS).zip(data.chunks(MAX_REQUEST_BLOCKS * BLOCK_SIZE));
        steps.try_for_each(|(first, data)| self.disk.write(self.level, first, data))
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.disk.discard(self.level, first.0, count)
    }

    fn flush(&self) -> Result<()> {
        if self.disk.read_only() { Ok(()) } else { self.disk.flush(self.level) }
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        let mut runs = ExtentBuilder::default();
        for at in (0..count).step_by(MAX_REQUEST_BLOCKS) {
            let part = (count - at).min(MAX_REQUEST_BLOCKS as u64) as usize;
            let written = self.disk.are_written(self.level, first.0 + at, part)?;
            written.into_iter().for_each(|written| runs.add(1, written));
        }
        Ok(runs.finish())
    }

    fn status(&self) -> Status {
        let level = StatusItem::new("level", u64::from(self.level), "level");
        let mut items = vec![level, StatusItem::new("capacity", self.blocks(), "blocks")];
        items.extend(self.disk.status(self.level));
        Status { items }
    }

    /// Flushes the level. Closing the last open level closes the disk.
    fn close(&self) -> Result<()> {
        // Nothing is left that could cover a flush of the last level: closing the disk writes its
        // own cover.
        let flushed = if self.open_count.load(Ordering::Acquire) > 1 { self.flush() } else { Ok(()) };
        if flushed.is_err() && self.level > 0 {
            // Deniability contract: a failure at the end leaves a log that was not closed, as a
            // failure of the medium does.
            self.disk.note_loss(self.level);
        }
        let last = self.open_count.fetch_sub(1, Ordering::AcqRel) <= 1;
        let closed = if last { flushed.and(self.disk.close()) } else { flushed };
        closed.map_err(|e| match e.kind() {
            Kind::NoCover if last => e.hint(
                "the pending writes are lost; next time, let the close wait for cover, or write to level 0 meanwhile",
            ),
            Kind::NoCover => {
                // A file system that sees a flush fail gives up the data that it had not written
                // yet.
                e.hint(
                    "files written to it since its last successful sync may be lost; next time, write to level 0 while this \
                     level is being closed",
                )
            }
            _ => e,
        })
    }

    fn is_read_only(&self) -> bool {
        self.disk.read_only()
    }
}

/// Errors: `kind`, if the medium is shorter than its disk.
pub fn check_length(medium_len: u64, wanted: u64, kind: Kind) -> Result<()> {
    if medium_len >= wanted {
        return Ok(());
    }
    Err(Error::new(kind, "the medium is shorter than its disk")
        .found(format!("{medium_len} bytes"))
        .expected(format!("{wanted} bytes"))
        .hint("the file or device was cut short: restore it from a backup"))
}
