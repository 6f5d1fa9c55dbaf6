//! How blocks are written and discarded: into the cache, or past it, and how long a writer waits.

use super::cache::{Content, HOLE_COST};
use super::disk::Core;
use super::read::segments;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, SEGMENT_BLOCKS, closed};
use std::sync::{Arc, PoisonError};

/// Writes of at least so many blocks go straight to their object: 1 MiB.
const DIRECT: usize = 256;
/// Blocks put into the cache at a time.
const PART: usize = 64;

impl Core {
    pub(crate) fn write(&self, first: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        let _call = self.calls.read().unwrap_or_else(PoisonError::into_inner);
        let mut rest = data;
        for (segment, range) in segments(first, (data.len() / BLOCK_SIZE) as u64) {
            let count = (range.end - range.start) as usize;
            let (piece, left) = rest.split_at(count * BLOCK_SIZE);
            rest = left;
            if self.write_through {
                self.write_now(segment, range.start, piece)?;
            } else if count < DIRECT || !self.write_direct(segment, range.start, piece)? {
                self.write_cached(segment, range.start, piece)?;
            }
        }
        Ok(())
    }

    /// Writes blocks of a segment past the cache, however long it takes.
    fn write_now(&self, segment: u64, index: u64, data: &[u8]) -> Result<()> {
        while !self.write_direct(segment, index, data)? {
            self.cache.wait_idle(segment, || self.has_failed());
            self.check_alive()?;
        }
        Ok(())
    }

    fn write_cached(&self, segment: u64, index: u64, data: &[u8]) -> Result<()> {
        for (nth, part) in data.chunks(PART * BLOCK_SIZE).enumerate() {
            let contents: Vec<_> =
                part.chunks_exact(BLOCK_SIZE).map(|block| Content::Data(Arc::from(block))).collect();
            self.make_room(contents.iter().map(Content::cost).sum())?;
            self.put(segment, index + (nth * PART) as u64, contents);
        }
        Ok(())
    }

    /// Puts into the cache what room was made for.
    fn put(&self, segment: u64, index: u64, contents: Vec<Content>) {
        if self.cache.put(segment, index, contents) {
            self.schedule.list(segment);
        }
        self.keep_writing();
    }

    pub(crate) fn discard(&self, first: u64, count: u64) -> Result<()> {
        self.check_writable()?;
        {
            let _call = self.calls.read().unwrap_or_else(PoisonError::into_inner);
            for (segment, range) in segments(first, count) {
                let whole =
                    range.end - range.start == SEGMENT_BLOCKS || self.is_rest_of_disk(segment, &range);
                if whole {
                    self.make_room_for_holes(1)?;
                    if self.cache.put_void(segment) {
                        self.schedule.list(segment);
                    }
                    self.schedule.freed();
                    self.keep_writing();
                } else if !self.cache.is_absent(segment) {
                    self.make_room_for_holes(range.end - range.start)?;
                    self.put(segment, range.start, range.map(|_| Content::Hole).collect());
                } else {
                    continue;
                }
                self.make_room_in_store(segment)?;
            }
        }
        if self.write_through { self.flush_cache() } else { Ok(()) }
    }

    /// Room in the cache for holes, which a full store must not be short of: they give it room.
    fn make_room_for_holes(&self, count: u64) -> Result<()> {
        match self.make_room(count * HOLE_COST) {
            Err(e) if e.kind() == Kind::NoSpace => {
                self.cache.take_room(count * HOLE_COST);
                Ok(())
            }
            made => made,
        }
    }

    /// If the store is full, discards in it at once what was just discarded of a segment: what is pending in the cache for
    /// room would otherwise come first.
    fn make_room_in_store(&self, segment: u64) -> Result<()> {
        if self.schedule.full().is_none() {
            return Ok(());
        }
        match self.write_segment(segment) {
            Err(e) if e.kind() == Kind::NoSpace => Ok(()),
            written => written,
        }
    }

    /// Whether the range covers all blocks that the disk has in its last segment.
    fn is_rest_of_disk(&self, segment: u64, range: &std::ops::Range<u64>) -> bool {
        range.start == 0 && segment * SEGMENT_BLOCKS + range.end == self.params.blocks
    }

    /// Reserves room in the cache, which may mean waiting for others or writing oneself.
    fn make_room(&self, cost: u64) -> Result<()> {
        let enter = || self.cache.reserve(cost, self.limits.dirty);
        while !enter() {
            self.check_alive()?;
            if self.background {
                // Who comes too late, when the disk is being closed, finds it closed.
                let entered = self.schedule.wait_room(enter, || self.has_failed());
                if entered {
                    return Ok(());
                }
                self.check_alive()?;
                return Err(self.schedule.full().unwrap_or_else(closed));
            }
            match self.schedule.pop() {
                Some(segment) => self.write_segment(segment)?,
                None => std::thread::yield_now(),
            }
        }
        Ok(())
    }

    fn keep_writing(&self) {
        if self.background && self.is_filling() {
            self.schedule.nudge();
        }
    }

    /// Whether there is enough in the cache to write without being asked.
    pub(crate) fn is_filling(&self) -> bool {
        self.cache.dirty_bytes() > self.limits.dirty_low
    }

    /// Writes everything acknowledged so far.
    pub(crate) fn flush_cache(&self) -> Result<()> {
        self.check_alive()?;
        if self.cache.dirty_bytes() == 0 {
            return Ok(());
        }
        let (segments, newest) = self.cache.unwritten();
        self.schedule.begin_drain(segments.len());
        let drained = segments.into_iter().try_for_each(|segment| self.drain(segment, newest));
        self.schedule.end_drain();
        drained
    }

    /// Writes, with others, until everything of a segment up to version `newest` is in the store.
    fn drain(&self, segment: u64, newest: u64) -> Result<()> {
        while !self.cache.is_written(segment, newest) {
            self.check_alive()?;
            match self.schedule.pop() {
                Some(next) => self.write_segment(next)?,
                None => self.cache.wait_flight(segment, newest, || self.has_failed()),
            }
        }
        Ok(())
    }

    /// Runs `f` while no write is under way or begins, and everything acknowledged is in the store.
    pub(crate) fn freeze<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let _frozen = self.calls.write().unwrap_or_else(PoisonError::into_inner);
        self.flush_cache()?;
        f()
    }

    /// Forgets everything about the store. Only while the disk is frozen.
    pub(crate) fn forget_all(&self) {
        self.cache.forget_absent();
        self.placement.forget_all();
    }

    /// Refuses what a disk opened for reading alone, or one that failed, cannot do.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(Kind::ReadOnly, "write refused")
                .found("a disk opened read-only")
                .remedy("open it without --read-only, and not at a snapshot"));
        }
        self.check_alive()
    }
}
