//! How blocks are read, written and discarded: which version counts, and which way a write takes.

use crate::cache::Committed;
use crate::cow_segment::{CowSegment, Stream};
use crate::disk::Core;
use crate::geometry::CHUNK_BLOCKS;
use crate::map::Slot;
use lacuna_core::{BLOCK_SIZE, Result, SEGMENT_BLOCKS};
use std::cell::RefCell;
use std::sync::Arc;

/// The least that a write at the start of a segment must bring to open a copy-on-write segment: 16 KiB.
const STREAM_START: u64 = 4;
/// The least that a write within a stream must bring to open a copy-on-write segment: 64 KiB.
const STREAM_MIDDLE: u64 = 16;

/// Copy-on-write segments at a time; each keeps up to 32 KiB of metadata in memory.
const MOST_COW_SEGMENTS: usize = 256;

thread_local! {
    /// Ciphertext and metadata of the chunk in hand. Never holds plaintext.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Where the latest version of a block is, once its newest was looked for in the cache.
#[derive(Clone, PartialEq, Eq)]
enum Source {
    Done,
    CowSegment,
    Slot,
    Committed,
    Zeros,
}

/// Runs of a range that lie in one chunk: `(first block, blocks)`.
fn chunks(first: u64, count: u64) -> impl Iterator<Item = (u64, u64)> {
    pieces(first, count, CHUNK_BLOCKS)
}

fn pieces(first: u64, count: u64, unit: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = first + count;
    std::iter::successors(Some(first), move |at| Some((at / unit + 1) * unit))
        .take_while(move |at| *at < end)
        .map(move |at| (at, ((at / unit + 1) * unit).min(end) - at))
}

impl Core {
    pub(crate) fn read(&self, first: u64, buf: &mut [u8]) -> Result<()> {
        for (at, count) in chunks(first, (buf.len() / BLOCK_SIZE) as u64) {
            let from = (at - first) as usize * BLOCK_SIZE;
            self.read_chunk(at, &mut buf[from..from + count as usize * BLOCK_SIZE])?;
        }
        Ok(())
    }

    fn read_chunk(&self, first: u64, buf: &mut [u8]) -> Result<()> {
        let _reading = self.locks.shared(first);
        let segment = first / SEGMENT_BLOCKS;
        let cow_segment = self.cow_segments.get(segment);
        if cow_segment.is_none() && !self.cache.touches(segment) {
            return match self.map.get(segment)? {
                Slot::At(slot) => self.read_slot(slot, first, buf),
                Slot::Nowhere => {
                    buf.fill(0);
                    Ok(())
                }
            };
        }
        let sources: Vec<Source> = buf
            .chunks_exact_mut(BLOCK_SIZE)
            .zip(first..)
            .map(|(out, block)| {
                if self.cache.read_newest(block, out) {
                    Ok(Source::Done)
                } else {
                    self.source_below_newest(block, cow_segment.as_ref())
                }
            })
            .collect::<Result<_>>()?;
        let mut start = 0;
        while start < sources.len() {
            let same = sources[start..].iter().take_while(|s| **s == sources[start]).count();
            let out = &mut buf[start * BLOCK_SIZE..(start + same) * BLOCK_SIZE];
            self.read_run(first + start as u64, &sources[start], cow_segment.as_ref(), out)?;
            start += same;
        }
        Ok(())
    }

    fn source_below_newest(&self, block: u64, cow_segment: Option<&CowSegment>) -> Result<Source> {
        match cow_segment {
            Some(CowSegment::Void) => return Ok(Source::Zeros),
            Some(CowSegment::Stream(stream)) if stream.state().covers(block % SEGMENT_BLOCKS) => {
                return Ok(Source::CowSegment);
            }
            _ => {}
        }
        Ok(match (self.cache.committed(block), self.map.get(block / SEGMENT_BLOCKS)?) {
            (Some(_), _) => Source::Committed,
            (None, Slot::At(_)) => Source::Slot,
            (None, Slot::Nowhere) => Source::Zeros,
        })
    }

    fn read_run(
        &self,
        first: u64,
        source: &Source,
        cow_segment: Option<&CowSegment>,
        out: &mut [u8],
    ) -> Result<()> {
        match (source, cow_segment) {
            (Source::Done, _) => Ok(()),
            (Source::Zeros, _) => {
                out.fill(0);
                Ok(())
            }
            (Source::CowSegment, Some(CowSegment::Stream(stream))) => {
                self.read_cow_segment(stream, first, out)
            }
            (Source::Slot | Source::CowSegment, _) => match self.map.get(first / SEGMENT_BLOCKS)? {
                Slot::At(slot) => self.read_slot(slot, first, out),
                Slot::Nowhere => {
                    out.fill(0);
                    Ok(())
                }
            },
            (Source::Committed, _) => {
                for (block, out) in (first..).zip(out.chunks_exact_mut(BLOCK_SIZE)) {
                    match self.cache.committed(block) {
                        Some(Committed::Data { batch, at, meta }) => {
                            let meta = &meta[..self.cipher.meta_size()];
                            self.cipher.open(block, &batch[at..at + BLOCK_SIZE], meta, out)?;
                        }
                        Some(Committed::Hole) | None => out.fill(0),
                    }
                }
                Ok(())
            }
        }
    }

    fn read_slot(&self, slot: u32, first: u64, out: &mut [u8]) -> Result<()> {
        self.with_scratch(out.len(), |data, meta| {
            self.store.read(slot, first % SEGMENT_BLOCKS, data, meta)?;
            self.cipher.open(first, data, meta, out)
        })
    }

    fn read_cow_segment(&self, stream: &Stream, first: u64, out: &mut [u8]) -> Result<()> {
        let index = first % SEGMENT_BLOCKS;
        self.with_scratch(out.len(), |data, meta| {
            self.store.read_data(stream.slot, index, data)?;
            let at = index as usize * self.cipher.meta_size();
            meta.copy_from_slice(&stream.state().meta[at..at + meta.len()]);
            self.cipher.open(first, data, meta, out)
        })
    }

    /// Lends buffers for `len` bytes of ciphertext and its metadata.
    pub(crate) fn with_scratch<R>(&self, len: usize, f: impl FnOnce(&mut [u8], &mut [u8]) -> R) -> R {
        SCRATCH.with_borrow_mut(|(data, meta)| {
            let meta_len = len / BLOCK_SIZE * self.cipher.meta_size();
            if data.len() < len {
                data.resize(len, 0);
            }
            if meta.len() < meta_len {
                meta.resize(meta_len, 0);
            }
            f(&mut data[..len], &mut meta[..meta_len])
        })
    }

    pub(crate) fn write(&self, first: u64, data: &[u8]) -> Result<()> {
        self.check_alive()?;
        let count = (data.len() / BLOCK_SIZE) as u64;
        // A flush closes every copy-on-write segment. If each write flushes, only a write of a whole segment opens one,
        // and on a full medium none does.
        let at_once = self.write_through || self.medium_full.is_so();
        let streaming = !at_once && count >= STREAM_MIDDLE && self.streams.note(first, count);
        for (at, part) in pieces(first, count, SEGMENT_BLOCKS) {
            let stream = match at_once {
                false => streaming || (at % SEGMENT_BLOCKS == 0 && part >= STREAM_START),
                true => part == SEGMENT_BLOCKS && !self.medium_full.is_so(),
            };
            for (at, part) in chunks(at, part) {
                let from = (at - first) as usize * BLOCK_SIZE;
                self.write_chunk(at, &data[from..from + part as usize * BLOCK_SIZE], stream)?;
            }
        }
        if at_once { self.flush() } else { self.keep_within_limits() }
    }

    fn write_chunk(&self, first: u64, data: &[u8], stream: bool) -> Result<()> {
        let segment = first / SEGMENT_BLOCKS;
        loop {
            match self.cow_segments.get(segment) {
                Some(CowSegment::Stream(stream)) if !stream.state().frozen => {
                    let _writing = self.locks.exclusive(first);
                    if self.is_current(segment, &stream) {
                        return self.write_cow_segment(&stream, first, data);
                    }
                    // Frozen or gone meanwhile: look again.
                    continue;
                }
                None if stream && self.open_cow_segment(segment)? => continue,
                _ => {}
            }
            let _placing = self.locks.shared(first);
            if let Some(CowSegment::Stream(stream)) = self.cow_segments.get(segment)
                && !stream.state().frozen
            {
                continue;
            }
            // A segment without a readable slot takes no writes, which could never be destaged.
            self.map.get(segment)?;
            for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
                self.cache.put(block, data);
            }
            return Ok(());
        }
    }

    /// Whether the copy-on-write segment still takes writes. Under a chunk lock the answer stays true.
    fn is_current(&self, segment: u64, stream: &Arc<Stream>) -> bool {
        let current = self.cow_segments.get(segment);
        matches!(current, Some(CowSegment::Stream(s)) if Arc::ptr_eq(&s, stream)) && !stream.state().frozen
    }

    fn write_cow_segment(&self, stream: &Stream, first: u64, data: &[u8]) -> Result<()> {
        let index = first % SEGMENT_BLOCKS;
        let count = (data.len() / BLOCK_SIZE) as u64;
        self.with_scratch(data.len(), |sealed, meta| {
            self.cipher.seal(first, data, sealed, meta, &*self.random);
            self.store.write_data(stream.slot, index, sealed, meta).map_err(|e| {
                // What was covered there may be torn now; what lies below is whole, but older than what was
                // acknowledged, so the write that failed takes its place.
                for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
                    if stream.state().covers(block % SEGMENT_BLOCKS) {
                        self.cache.put(block, data);
                    }
                }
                stream.state().uncover(index, count);
                self.fail(e.context(format!("write of {count} blocks at block {first}")))
            })?;
            stream.state().cover(index, count, meta);
            Ok::<(), lacuna_core::Error>(())
        })?;
        self.forget_newest(first, count);
        Ok(())
    }

    /// Opens a copy-on-write segment for a segment that has none, unless no slot can be spared. Says whether to look again.
    fn open_cow_segment(&self, segment: u64) -> Result<bool> {
        let mapped = matches!(self.map.get(segment)?, Slot::At(_));
        let crowded = || self.cow_segments.len() >= MOST_COW_SEGMENTS || (mapped && self.map.spare() == 0);
        if crowded() {
            self.wait_for_spare()?;
            if crowded() {
                return Ok(false);
            }
        }
        let _moving = self.locks.segment(segment);
        if self.cow_segments.get(segment).is_some() {
            return Ok(true);
        }
        let slot = match self.map.get(segment)? {
            Slot::At(_) => self.map.take_spare(),
            Slot::Nowhere => Some(self.map.take_first()?),
        };
        let Some(slot) = slot else { return Ok(false) };
        self.cow_segments
            .insert(segment, CowSegment::Stream(Arc::new(Stream::new(slot, self.cipher.meta_size()))));
        Ok(true)
    }

    pub(crate) fn discard(&self, first: u64, count: u64) -> Result<()> {
        self.check_alive()?;
        for (at, part) in pieces(first, count, SEGMENT_BLOCKS) {
            if self.is_untouched(at / SEGMENT_BLOCKS)? {
                continue;
            }
            let whole_disk_end = at + part == self.params.blocks;
            if at % SEGMENT_BLOCKS == 0 && (part == SEGMENT_BLOCKS || whole_disk_end) {
                self.discard_segment(at / SEGMENT_BLOCKS)?;
            } else {
                for (at, part) in chunks(at, part) {
                    self.discard_chunk(at, part)?;
                }
            }
        }
        self.medium_full.note_discard();
        if self.write_through { self.flush() } else { self.keep_within_limits() }
    }

    /// Whether nothing was ever written to a segment, as far as the map, the copy-on-write segments and the cache know.
    pub(crate) fn is_untouched(&self, segment: u64) -> Result<bool> {
        // Cache, copy-on-write segment, map: data moves in this order, so none slips past.
        if self.cache.touches(segment) || self.cow_segments.get(segment).is_some() {
            return Ok(false);
        }
        Ok(self.map.get(segment)? == Slot::Nowhere)
    }

    fn discard_segment(&self, segment: u64) -> Result<()> {
        let first = segment * SEGMENT_BLOCKS;
        let _moving = self.locks.segment(segment);
        let mapped = matches!(self.map.get(segment)?, Slot::At(_));
        let stream = match self.cow_segments.get(segment) {
            Some(CowSegment::Stream(stream)) => Some(stream),
            _ => None,
        };
        let frozen = stream.as_ref().is_some_and(|stream| stream.state().frozen);
        // Behind a frozen copy-on-write segment, or where an unmapped segment has blocks in the journal, holes go the way of
        // every small write. A commit lists copy-on-write segments without these locks: at no moment may it find neither the
        // stream nor what follows it.
        let void = mapped && !frozen;
        if void {
            self.cow_segments.insert(segment, CowSegment::Void);
        }
        for block in first..(first + SEGMENT_BLOCKS).min(self.params.blocks) {
            if void {
                self.cache.forget_newest(block);
            } else {
                self.cache.put_hole(block);
            }
        }
        if let Some(stream) = stream.filter(|_| !frozen) {
            if !void {
                self.cow_segments.remove(segment);
            }
            self.map.release(stream.slot, !mapped);
        }
        Ok(())
    }

    fn discard_chunk(&self, first: u64, count: u64) -> Result<()> {
        let segment = first / SEGMENT_BLOCKS;
        let _writing = self.locks.exclusive(first);
        if let Some(CowSegment::Stream(stream)) = self.cow_segments.get(segment)
            && !stream.state().frozen
        {
            let index = first % SEGMENT_BLOCKS;
            let meta = vec![0; count as usize * self.cipher.meta_size()];
            self.store
                .erase_data(stream.slot, index, count)
                .map_err(|e| self.fail(e.context(format!("discard of {count} blocks at block {first}"))))?;
            stream.state().cover(index, count, &meta);
            self.forget_newest(first, count);
            return Ok(());
        }
        for block in first..first + count {
            self.cache.put_hole(block);
        }
        Ok(())
    }

    fn forget_newest(&self, first: u64, count: u64) {
        if self.cache.touches(first / SEGMENT_BLOCKS) {
            (first..first + count).for_each(|block| self.cache.forget_newest(block));
        }
    }

    /// Which of the blocks of a range within one segment are written.
    pub(crate) fn written(&self, first: u64, count: u64) -> Result<Vec<bool>> {
        let mut all = vec![];
        for (at, part) in chunks(first, count) {
            let _reading = self.locks.shared(at);
            let segment = at / SEGMENT_BLOCKS;
            let cow_segment = self.cow_segments.get(segment);
            let slot = match self.map.get(segment)? {
                Slot::At(slot) => self.store.written(slot, at % SEGMENT_BLOCKS, part)?,
                Slot::Nowhere => vec![false; part as usize],
            };
            for (block, slot) in (at..at + part).zip(slot) {
                let written = match self.cache.newest_written(block) {
                    Some(written) => written,
                    None => match self.source_below_newest(block, cow_segment.as_ref())? {
                        Source::CowSegment => true,
                        Source::Committed => {
                            matches!(self.cache.committed(block), Some(Committed::Data { .. }))
                        }
                        Source::Slot => slot,
                        Source::Zeros | Source::Done => false,
                    },
                };
                all.push(written);
            }
        }
        Ok(all)
    }
}
