//! The write path: writes and discards blocks, into the cache or past it, and throttles writers.

use crate::segment::{Segment, segments_of};
use crate::versions::table::VersionTable;
use crate::writing::dirty_cache::DirtyCache;
use crate::writing::pending_segment::{BlockContent, HOLE_COST};
use crate::writing::transactor::Transactor;
use crate::writing::write_back::WriteBack;
use crate::writing::write_queue::WriteQueue;
use crate::writing::write_records::LeftRecords;
use crate::writing::write_threads::WriteThreads;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Result, SEGMENT_BLOCKS, closed_error};
use parking_lot::RwLock;
use std::ops::Range;
use std::sync::Arc;

/// Writes of at least this many blocks go straight to their object: 1 MiB.
const DIRECT_BLOCKS: usize = 256;
/// Blocks put into the cache at a time.
const CACHE_PART_BLOCKS: usize = 64;

/// The write path of a disk that is not read-only.
pub(crate) struct WritePath {
    cache: Arc<DirtyCache>,
    queue: Arc<WriteQueue>,
    write_back: Arc<WriteBack>,
    /// The background threads. Without them, the thread that fills the cache writes.
    threads: Option<WriteThreads>,
    write_through: bool,
    /// The length of the disk.
    blocks: u64,
    /// Shared by calls that write; exclusive while the disk is frozen.
    call_lock: RwLock<()>,
}

impl WritePath {
    /// A writer for a disk of `blocks` blocks, with at most `batch_blocks` per transaction out of
    /// the cache. With `write_through` every write is durable when it returns.
    pub(crate) fn new(
        cache: Arc<DirtyCache>,
        transactor: Transactor,
        batch_blocks: usize,
        blocks: u64,
        write_through: bool,
    ) -> WritePath {
        let schedule = Arc::new(WriteQueue::default());
        let back = Arc::new(WriteBack::new(cache.clone(), schedule.clone(), transactor, batch_blocks));
        WritePath {
            cache,
            queue: schedule,
            write_back: back,
            threads: None,
            write_through,
            blocks,
            call_lock: RwLock::new(()),
        }
    }

    /// Starts the background threads.
    pub(crate) fn start_threads(&mut self, version_table: Option<Arc<VersionTable>>) -> Result<()> {
        let (cache, schedule) = (self.cache.clone(), self.queue.clone());
        self.threads = Some(WriteThreads::start(cache, schedule, self.write_back.clone(), version_table)?);
        Ok(())
    }

    /// Takes over the writes that a predecessor left, and writes them. To be called before any
    /// other write. A store that refuses them is no error: they wait in the cache.
    ///
    /// Errors: all other errors of the store.
    pub(crate) fn adopt(&self, left: LeftRecords) -> Result<()> {
        let segments = self.cache.adopt(left);
        segments.into_iter().for_each(|segment| self.queue.push(segment));
        match self.flush() {
            Err(e) if !e.changed_nothing() => Err(e),
            _ => Ok(()),
        }
    }

    /// Whether threads write in the background.
    pub(crate) fn has_threads(&self) -> bool {
        self.threads.is_some()
    }

    pub(crate) fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.write_back.check_alive()?;
        let _call = self.call_lock.read();
        let mut rest = data;
        for (segment, range) in segments_of(first, (data.len() / BLOCK_SIZE) as u64) {
            let count = (range.end - range.start) as usize;
            let (piece, left) = rest.split_at(count * BLOCK_SIZE);
            rest = left;
            if self.write_through {
                self.write_back.write_now(segment, range.start, piece)?;
            } else if count < DIRECT_BLOCKS || !self.write_back.write_direct(segment, range.start, piece)? {
                self.write_cached(segment, range.start, piece)?;
            }
        }
        Ok(())
    }

    fn write_cached(&self, segment: Segment, index: u64, data: &[u8]) -> Result<()> {
        for (nth, part) in data.chunks(CACHE_PART_BLOCKS * BLOCK_SIZE).enumerate() {
            let records = self.cache.records();
            let blocks = part.as_chunks::<BLOCK_SIZE>().0.iter();
            let contents: Vec<BlockContent> =
                blocks.map(|block| records.data(block)).collect::<Result<_>>()?;
            self.reserve_cache(contents.iter().map(BlockContent::cost).sum())?;
            self.put_cached(segment, index + (nth * CACHE_PART_BLOCKS) as u64, contents);
        }
        Ok(())
    }

    /// Puts blocks into the cache; the caller has reserved space for them.
    fn put_cached(&self, segment: Segment, index: u64, contents: Vec<BlockContent>) {
        if self.cache.put(segment, index, contents) {
            self.queue.push(segment);
        }
        self.wake_if_filling();
    }

    pub(crate) fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.write_back.check_alive()?;
        {
            let _call = self.call_lock.read();
            for (segment, range) in segments_of(first, count) {
                self.discard_segment_range(segment, range)?;
            }
        }
        if self.write_through { self.flush() } else { Ok(()) }
    }

    fn discard_segment_range(&self, segment: Segment, range: Range<u64>) -> Result<()> {
        let is_rest_of_disk = range.start == 0 && range.end == segment.blocks_on(self.blocks);
        if range.end - range.start == SEGMENT_BLOCKS || is_rest_of_disk {
            let record = self.cache.records().discard()?;
            self.reserve_holes(1)?;
            if self.cache.put_discard(segment, record) {
                self.queue.push(segment);
            }
            self.queue.notify_space();
            self.wake_if_filling();
        } else if !self.cache.is_absent(segment) {
            let holes = range.clone().map(|_| self.cache.records().hole());
            let holes: Vec<BlockContent> = holes.collect::<Result<_>>()?;
            self.reserve_holes(range.end - range.start)?;
            self.put_cached(segment, range.start, holes);
        } else {
            return Ok(());
        }
        self.free_store_space(segment)
    }

    /// Reserves cache space for holes. A full store must not prevent that: discards free space in
    /// it.
    fn reserve_holes(&self, count: u64) -> Result<()> {
        match self.reserve_cache(count * HOLE_COST) {
            Err(e) if e.changed_nothing() => {
                self.cache.reserve_beyond_limit(count * HOLE_COST);
                Ok(())
            }
            made => made,
        }
    }

    /// If the store is full, performs the discard of a segment in it at once; otherwise pending
    /// cached writes would come first.
    fn free_store_space(&self, segment: Segment) -> Result<()> {
        if self.queue.store_refusal().is_none() {
            return Ok(());
        }
        match self.write_back.write_segment(segment) {
            Err(e) if e.changed_nothing() => Ok(()),
            written => written,
        }
    }

    /// Reserves cache space; this may wait for the background threads, or write segments in this
    /// thread.
    fn reserve_cache(&self, cost: u64) -> Result<()> {
        let enter = || self.cache.reserve(cost);
        while !enter() {
            self.write_back.check_alive()?;
            if self.has_threads() {
                if self.queue.wait_for_space(enter, || self.write_back.has_failed()) {
                    return Ok(());
                }
                self.write_back.check_alive()?;
                // The store is full, or the disk is being closed.
                return Err(self.queue.store_refusal().unwrap_or_else(closed_error));
            }
            match self.queue.pop() {
                Some(segment) => self.write_back.write_segment(segment)?,
                None => std::thread::yield_now(),
            }
        }
        Ok(())
    }

    fn wake_if_filling(&self) {
        if self.has_threads() && self.cache.is_filling() {
            self.queue.wake_idle();
        }
    }

    /// Writes all acknowledged data.
    pub(crate) fn flush(&self) -> Result<()> {
        self.write_back.flush()
    }

    /// Runs `f` while no write is in progress or begins, with all acknowledged data in the store.
    pub(crate) fn freeze<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.write_back.check_alive()?;
        let _frozen = self.call_lock.write();
        self.write_back.flush()?;
        f()
    }

    /// Writes everything, stops the threads, runs `f` if all data is in the store, and refuses
    /// later calls.
    pub(crate) fn close(&self, f: impl FnOnce() -> Result<()>) -> Result<()> {
        let written = self.freeze(|| {
            self.stop_threads();
            f().map_err(|e| self.fail(e))
        });
        self.stop_threads();
        self.fail(closed_error());
        written
    }

    fn stop_threads(&self) {
        if let Some(writers) = &self.threads {
            writers.stop();
        }
    }

    /// Counts for `status`: bytes in the cache, then those of [`WriteBack::counts`].
    pub(crate) fn counts(&self) -> [u64; 5] {
        let [transactions, blocks, direct, renewed] = self.write_back.counts();
        [self.cache.dirty_bytes(), transactions, blocks, direct, renewed]
    }

    /// The fail-stop error, after a failure on the write path.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.write_back.check_alive()
    }

    /// As [`WriteBack::fail_unless_refused`].
    pub(crate) fn fail_unless_refused(&self, e: Error) -> Error {
        self.write_back.fail_unless_refused(e)
    }

    /// Enters fail-stop for good and returns the error.
    pub(crate) fn fail(&self, e: Error) -> Error {
        self.write_back.fail(e)
    }
}
