//! The write path: writes and discards blocks, into the cache or past it, and throttles writers.

use crate::cache::{Cache, Content, HOLE_COST};
use crate::schedule::Schedule;
use crate::segment::{Segment, segments};
use crate::transactor::Transactor;
use crate::version_table::VersionTable;
use crate::write_back::WriteBack;
use crate::writers::Writers;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Result, SEGMENT_BLOCKS, closed};
use parking_lot::RwLock;
use std::ops::Range;
use std::sync::Arc;

/// Writes of at least this many blocks go straight to their object: 1 MiB.
const DIRECT: usize = 256;
/// Blocks put into the cache at a time.
const PART: usize = 64;

/// The write path of a disk that is not read-only.
pub(crate) struct Writer {
    cache: Arc<Cache>,
    schedule: Arc<Schedule>,
    back: Arc<WriteBack>,
    /// The background threads. Without them, the thread that fills the cache writes.
    writers: Option<Writers>,
    write_through: bool,
    /// The length of the disk.
    blocks: u64,
    /// Shared by calls that write; exclusive while the disk is frozen.
    calls: RwLock<()>,
}

impl Writer {
    /// A writer for a disk of `blocks` blocks, with at most `batch_blocks` per transaction out of
    /// the cache. With `write_through` every write is durable when it returns.
    pub(crate) fn new(
        cache: Arc<Cache>,
        transactor: Transactor,
        batch_blocks: usize,
        blocks: u64,
        write_through: bool,
    ) -> Writer {
        let schedule = Arc::new(Schedule::default());
        let back = Arc::new(WriteBack::new(cache.clone(), schedule.clone(), transactor, batch_blocks));
        Writer { cache, schedule, back, writers: None, write_through, blocks, calls: RwLock::new(()) }
    }

    /// Starts the background threads.
    pub(crate) fn start_threads(&mut self, version_table: Option<Arc<VersionTable>>) -> Result<()> {
        let (cache, schedule) = (self.cache.clone(), self.schedule.clone());
        self.writers = Some(Writers::start(cache, schedule, self.back.clone(), version_table)?);
        Ok(())
    }

    /// Whether threads write in the background.
    pub(crate) fn has_threads(&self) -> bool {
        self.writers.is_some()
    }

    pub(crate) fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.back.check_alive()?;
        let _call = self.calls.read();
        let mut rest = data;
        for (segment, range) in segments(first, (data.len() / BLOCK_SIZE) as u64) {
            let count = (range.end - range.start) as usize;
            let (piece, left) = rest.split_at(count * BLOCK_SIZE);
            rest = left;
            if self.write_through {
                self.back.write_now(segment, range.start, piece)?;
            } else if count < DIRECT || !self.back.write_direct(segment, range.start, piece)? {
                self.write_cached(segment, range.start, piece)?;
            }
        }
        Ok(())
    }

    fn write_cached(&self, segment: Segment, index: u64, data: &[u8]) -> Result<()> {
        for (nth, part) in data.chunks(PART * BLOCK_SIZE).enumerate() {
            let contents: Vec<_> = part.as_chunks::<BLOCK_SIZE>().0.iter().map(Content::data).collect();
            self.make_room(contents.iter().map(Content::cost).sum())?;
            self.put(segment, index + (nth * PART) as u64, contents);
        }
        Ok(())
    }

    /// Puts blocks into the cache; the caller has reserved space for them.
    fn put(&self, segment: Segment, index: u64, contents: Vec<Content>) {
        if self.cache.put(segment, index, contents) {
            self.schedule.list(segment);
        }
        self.keep_writing();
    }

    pub(crate) fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.back.check_alive()?;
        {
            let _call = self.calls.read();
            for (segment, range) in segments(first, count) {
                self.discard_in(segment, range)?;
            }
        }
        if self.write_through { self.flush() } else { Ok(()) }
    }

    fn discard_in(&self, segment: Segment, range: Range<u64>) -> Result<()> {
        let is_rest_of_disk = range.start == 0 && range.end == segment.blocks_on(self.blocks);
        if range.end - range.start == SEGMENT_BLOCKS || is_rest_of_disk {
            self.make_room_for_holes(1)?;
            if self.cache.put_discard(segment) {
                self.schedule.list(segment);
            }
            self.schedule.freed();
            self.keep_writing();
        } else if !self.cache.is_absent(segment) {
            self.make_room_for_holes(range.end - range.start)?;
            self.put(segment, range.start, range.map(|_| Content::Hole).collect());
        } else {
            return Ok(());
        }
        self.make_room_in_store(segment)
    }

    /// Reserves cache space for holes. A full store must not prevent that: discards free space in
    /// it.
    fn make_room_for_holes(&self, count: u64) -> Result<()> {
        match self.make_room(count * HOLE_COST) {
            Err(e) if e.changed_nothing() => {
                self.cache.take_room(count * HOLE_COST);
                Ok(())
            }
            made => made,
        }
    }

    /// If the store is full, performs the discard of a segment in it at once; otherwise pending
    /// cached writes would come first.
    fn make_room_in_store(&self, segment: Segment) -> Result<()> {
        if self.schedule.full().is_none() {
            return Ok(());
        }
        match self.back.write_segment(segment) {
            Err(e) if e.changed_nothing() => Ok(()),
            written => written,
        }
    }

    /// Reserves cache space; this may wait for the background threads, or write segments in this
    /// thread.
    fn make_room(&self, cost: u64) -> Result<()> {
        let enter = || self.cache.reserve(cost);
        while !enter() {
            self.back.check_alive()?;
            if self.has_threads() {
                if self.schedule.wait_room(enter, || self.back.has_failed()) {
                    return Ok(());
                }
                self.back.check_alive()?;
                // The store is full, or the disk is being closed.
                return Err(self.schedule.full().unwrap_or_else(closed));
            }
            match self.schedule.pop() {
                Some(segment) => self.back.write_segment(segment)?,
                None => std::thread::yield_now(),
            }
        }
        Ok(())
    }

    fn keep_writing(&self) {
        if self.has_threads() && self.cache.is_filling() {
            self.schedule.nudge();
        }
    }

    /// Writes all acknowledged data.
    pub(crate) fn flush(&self) -> Result<()> {
        self.back.flush()
    }

    /// Runs `f` while no write is in progress or begins, with all acknowledged data in the store.
    pub(crate) fn freeze<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.back.check_alive()?;
        let _frozen = self.calls.write();
        self.back.flush()?;
        f()
    }

    /// Writes everything, stops the threads, runs `f` if all data is in the store, and refuses
    /// later calls.
    pub(crate) fn close(&self, f: impl FnOnce() -> Result<()>) -> Result<()> {
        let written = self.freeze(|| {
            self.stop_writers();
            f().map_err(|e| self.fail(e))
        });
        self.stop_writers();
        self.fail(closed());
        written
    }

    fn stop_writers(&self) {
        if let Some(writers) = &self.writers {
            writers.stop();
        }
    }

    /// Counts for `status`: bytes in the cache, then those of [`WriteBack::counts`].
    pub(crate) fn counts(&self) -> [u64; 5] {
        let [transactions, blocks, direct, renewed] = self.back.counts();
        [self.cache.dirty_bytes(), transactions, blocks, direct, renewed]
    }

    /// The fail-stop error, after a failure on the write path.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.back.check_alive()
    }

    /// As [`WriteBack::fail_unless_refused`].
    pub(crate) fn fail_unless_refused(&self, e: Error) -> Error {
        self.back.fail_unless_refused(e)
    }

    /// Enters fail-stop for good and returns the error.
    pub(crate) fn fail(&self, e: Error) -> Error {
        self.back.fail(e)
    }
}
