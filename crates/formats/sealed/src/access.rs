//! Reads, writes and discards: finds the latest version of a block, and chooses the path of a
//! write.

use crate::address::{CHUNK_BLOCKS, SegmentNo, SlotNo, index_of, pieces, run};
use crate::caches::cache::{BlockContent, CachedVersion, CommittedVersion, WriteCache};
use crate::caches::scratch::with_scratch;
use crate::geometry::NO_META;
use crate::health::Health;
use crate::read_ahead::ReadAhead;
use crate::sealer::Sealer;
use crate::segments::cow_segment::{CowSegment, Stream};
use crate::segments::stream::StreamDetector;
use crate::segments::{DiscardMode, Segments};
use crate::slot_store::SlotStore;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Extent, ExtentBuilder, Result, SEGMENT_BLOCKS};
use std::sync::Arc;

/// The fewest blocks of a write at the start of a segment that may open a copy-on-write segment: 16
/// KiB.
const STREAM_START: u64 = 4;
/// The fewest blocks of a write within a stream that may open a copy-on-write segment: 64 KiB.
const STREAM_MIDDLE: u64 = 16;
/// The fewest blocks of a read that may be one of a stream: 64 KiB.
const READ_STREAM_MIN: u64 = 16;
/// The most blocks in one request to fetch: 1 MiB. Systems fetch only the beginning of a range that
/// is longer than the largest request of the device.
const FETCH_BLOCKS: u64 = 256;

/// The writes that may open copy-on-write segments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamPolicy {
    /// Writes of streams, and writes at the start of a segment.
    Any,
    /// Writes of whole segments: every write is flushed, and a flush ends every copy-on-write
    /// segment.
    WholeSegments,
    /// None.
    None,
}

/// Reads, writes and discards blocks.
pub(crate) struct Access {
    /// Length of the disk.
    blocks: u64,
    cache: Arc<WriteCache>,
    segments: Arc<Segments>,
    store: Arc<SlotStore>,
    sealer: Arc<Sealer>,
    health: Arc<Health>,
    streams: StreamDetector,
    read_ahead: ReadAhead,
    /// The most copy-on-write segments at which a whole one is written back before a commit.
    write_back_at_most: usize,
}

/// The latest version of a block.
enum LatestVersion<'a> {
    Newest(BlockContent),
    Committed(CommittedVersion),
    OnMedium(BlockSource<'a>),
    Zeros,
}

/// The place of a block below the cache. The slot and the stream of a chunk do not change while it
/// is locked.
#[derive(Clone, Copy)]
enum BlockSource<'a> {
    Stream(&'a Stream),
    Slot(SlotNo),
}

impl BlockSource<'_> {
    fn is_same_kind(self, other: BlockSource<'_>) -> bool {
        matches!(
            (self, other),
            (BlockSource::Stream(_), BlockSource::Stream(_)) | (BlockSource::Slot(_), BlockSource::Slot(_))
        )
    }
}

impl Access {
    pub(crate) fn new(
        blocks: u64,
        cache: Arc<WriteCache>,
        segments: Arc<Segments>,
        store: Arc<SlotStore>,
        sealer: Arc<Sealer>,
        health: Arc<Health>,
        write_back_at_most: usize,
    ) -> Self {
        let (streams, read_ahead) = (StreamDetector::default(), ReadAhead::default());
        Access { blocks, cache, segments, store, sealer, health, streams, read_ahead, write_back_at_most }
    }

    // --- reading ---

    /// Fills `buf` from the blocks starting at `first`.
    pub(crate) fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        let count = (buf.len() / BLOCK_SIZE) as u64;
        if count >= READ_STREAM_MIN {
            self.prefetch(first, count);
        }
        let mut rest = buf;
        for (at, count) in pieces(first, count, CHUNK_BLOCKS) {
            let (chunk, after) = rest.split_at_mut(count as usize * BLOCK_SIZE);
            self.read_chunk(at, chunk)?;
            rest = after;
        }
        Ok(())
    }

    /// Asks the medium to prefetch a long read at once rather than chunk by chunk, and to prefetch
    /// ahead of a stream of reads, so that it works while earlier chunks are decrypted. The
    /// system's own read-ahead works only for sequential readers, which threads that share a stream
    /// are not. Blocks that are in a copy-on-write segment or in memory, or that move meanwhile,
    /// are fetched in vain.
    fn prefetch(&self, first: BlockAddr, count: u64) {
        let fetch = self.read_ahead.note_read(first, count, self.blocks);
        for (at, count) in pieces(BlockAddr(fetch.start), fetch.end - fetch.start, FETCH_BLOCKS) {
            if let Ok(Some(slot)) = self.segments.slot(SegmentNo::of(at)) {
                self.store.will_read(slot.at(at), count);
            }
        }
    }

    fn read_chunk(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        let segment = SegmentNo::of(first);
        let reading = self.segments.shared(first);
        let cow_segment = self.segments.cow_segment(segment);
        let in_slot_alone = cow_segment.is_none() && !self.cache.has_segment(segment);
        let slot = self.segments.slot(segment)?;
        if in_slot_alone {
            let Some(slot) = slot else {
                buf.fill(0);
                return Ok(());
            };
            return self.read_run(first, BlockSource::Slot(slot), buf, || drop(reading));
        }
        // Neighbours in the same place are read in one access. `pending` holds that place and the
        // first neighbour.
        let mut pending: Option<(BlockSource<'_>, usize)> = None;
        let read_pending = |(place, begin): (BlockSource<'_>, usize), end: usize, buf: &mut [u8]| {
            let out = &mut buf[begin * BLOCK_SIZE..end * BLOCK_SIZE];
            self.read_run(BlockAddr(first.0 + begin as u64), place, out, || ())
        };
        let blocks = buf.len() / BLOCK_SIZE;
        for at in 0..blocks {
            let block = BlockAddr(first.0 + at as u64);
            let latest = self.latest(block, cow_segment.as_ref(), slot);
            let place = self.read_cached(block, latest, &mut buf[at * BLOCK_SIZE..(at + 1) * BLOCK_SIZE])?;
            match (pending, place) {
                (Some((run, _)), Some(place)) if run.is_same_kind(place) => {}
                (run, place) => {
                    run.map_or(Ok(()), |run| read_pending(run, at, buf))?;
                    pending = place.map(|place| (place, at));
                }
            }
        }
        pending.map_or(Ok(()), |run| read_pending(run, blocks, buf))
    }

    /// The latest version of a block. The caller holds its chunk lock.
    fn latest<'a>(
        &self,
        block: BlockAddr,
        cow_segment: Option<&'a CowSegment>,
        slot: Option<SlotNo>,
    ) -> LatestVersion<'a> {
        // Look at the cache first: completing a stream removes a block from it only after the
        // stream covers the block.
        let cached = self.cache.find(block);
        match (cached, cow_segment) {
            (Some(CachedVersion::Newest(content)), _) => LatestVersion::Newest(content),
            (_, Some(CowSegment::PendingDiscard)) => LatestVersion::Zeros,
            (_, Some(CowSegment::Stream(stream))) if stream.covers(index_of(block)) => {
                LatestVersion::OnMedium(BlockSource::Stream(stream))
            }
            (Some(CachedVersion::Committed(committed)), _) => LatestVersion::Committed(committed),
            (None, _) => {
                slot.map_or(LatestVersion::Zeros, |slot| LatestVersion::OnMedium(BlockSource::Slot(slot)))
            }
        }
    }

    /// Fills `out` from memory, or returns the block's place on the medium.
    fn read_cached<'a>(
        &self,
        block: BlockAddr,
        latest: LatestVersion<'a>,
        out: &mut [u8],
    ) -> Result<Option<BlockSource<'a>>> {
        match latest {
            LatestVersion::OnMedium(place) => return Ok(Some(place)),
            LatestVersion::Newest(BlockContent::Data(data)) => out.copy_from_slice(data.bytes()),
            LatestVersion::Committed(CommittedVersion::Data { batch, at, meta }) => {
                let sealed = &batch[at..at + BLOCK_SIZE];
                self.sealer.open(block, sealed, &meta[..self.sealer.meta_len(1)], out)?;
            }
            LatestVersion::Newest(BlockContent::Hole)
            | LatestVersion::Committed(CommittedVersion::Hole)
            | LatestVersion::Zeros => out.fill(0),
        }
        Ok(None)
    }

    /// Reads blocks of one chunk that lie in one place. `unlock` is called before they are
    /// decrypted.
    fn read_run(
        &self,
        first: BlockAddr,
        from: BlockSource<'_>,
        out: &mut [u8],
        unlock: impl FnOnce(),
    ) -> Result<()> {
        with_scratch(self.sealer.meta_len((out.len() / BLOCK_SIZE) as u64), |meta| {
            let read = match from {
                BlockSource::Slot(slot) => self.store.read(slot.at(first), out, meta),
                BlockSource::Stream(stream) => self
                    .store
                    .read_data(stream.slot.at(first), out)
                    .map(|()| stream.copy_meta(index_of(first), meta)),
            };
            // Never return ciphertext to the caller.
            read.inspect_err(|_| out.fill(0))?;
            unlock();
            self.sealer.open_in_place(first, out, meta)
        })
    }

    /// The written and unwritten runs of a range.
    pub(crate) fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        let mut runs = ExtentBuilder::default();
        for (at, count) in pieces(first, count, SEGMENT_BLOCKS) {
            if self.is_untouched(SegmentNo::of(at))? {
                runs.add(count, false);
            } else {
                pieces(at, count, CHUNK_BLOCKS)
                    .try_for_each(|(at, count)| self.extents_of_chunk(at, count, &mut runs))?;
            }
        }
        Ok(runs.finish())
    }

    fn extents_of_chunk(&self, first: BlockAddr, count: u64, runs: &mut ExtentBuilder) -> Result<()> {
        let segment = SegmentNo::of(first);
        let _reading = self.segments.shared(first);
        let cow_segment = self.segments.cow_segment(segment);
        let slot = self.segments.slot(segment)?;
        let in_slot = match (&cow_segment, slot) {
            // Its space may already be on the way back to the medium.
            (Some(CowSegment::PendingDiscard), _) | (_, None) => 0,
            (_, Some(slot)) => self.store.written(slot.at(first), count)?,
        };
        for (i, block) in run(first, count).enumerate() {
            let written = match self.latest(block, cow_segment.as_ref(), slot) {
                LatestVersion::Newest(content) => matches!(content, BlockContent::Data(_)),
                LatestVersion::Committed(committed) => matches!(committed, CommittedVersion::Data { .. }),
                LatestVersion::OnMedium(BlockSource::Stream(_)) => true,
                LatestVersion::OnMedium(BlockSource::Slot(_)) => in_slot >> i & 1 == 1,
                LatestVersion::Zeros => false,
            };
            runs.add(1, written);
        }
        Ok(())
    }

    /// Whether a segment was never written, as far as the map, the copy-on-write segments and the
    /// cache know.
    fn is_untouched(&self, segment: SegmentNo) -> Result<bool> {
        // Look at the cache, the copy-on-write segment, the map: data moves in this order, so none
        // is missed.
        if self.cache.has_segment(segment) || self.segments.cow_segment(segment).is_some() {
            return Ok(false);
        }
        Ok(self.segments.slot(segment)?.is_none())
    }

    // --- writing ---

    /// Writes blocks. `wait_for_spare` waits until a commit has ended copy-on-write segments.
    pub(crate) fn write(
        &self,
        first: BlockAddr,
        data: &[u8],
        streams: StreamPolicy,
        wait_for_spare: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        self.health.check()?;
        let count = (data.len() / BLOCK_SIZE) as u64;
        let streaming =
            streams == StreamPolicy::Any && count >= STREAM_MIDDLE && self.streams.note_write(first, count);
        let mut rest = data;
        for (at, count) in pieces(first, count, SEGMENT_BLOCKS) {
            let stream = match streams {
                StreamPolicy::Any => streaming || (index_of(at) == 0 && count >= STREAM_START),
                StreamPolicy::WholeSegments => count == SEGMENT_BLOCKS,
                StreamPolicy::None => false,
            };
            for (at, count) in pieces(at, count, CHUNK_BLOCKS) {
                let (chunk, after) = rest.split_at(count as usize * BLOCK_SIZE);
                self.write_chunk(at, chunk, stream.then_some(wait_for_spare))?;
                rest = after;
            }
        }
        Ok(())
    }

    /// Writes blocks of one chunk. With `wait_for_spare` they may open a copy-on-write segment.
    fn write_chunk(
        &self,
        first: BlockAddr,
        data: &[u8],
        wait_for_spare: Option<&dyn Fn() -> Result<()>>,
    ) -> Result<()> {
        let segment = SegmentNo::of(first);
        loop {
            if let Some(stream) = self.segments.open_stream(segment) {
                if self.write_stream(&stream, first, data)? {
                    return Ok(());
                }
                // It was frozen or removed meanwhile: look again.
                continue;
            }
            if let Some(wait) = wait_for_spare
                && self.segments.cow_segment(segment).is_none()
                && self.begin_stream(segment, wait)?
            {
                continue;
            }
            let _placing = self.segments.shared(first);
            if self.segments.open_stream(segment).is_some() {
                continue;
            }
            // Refuse writes to a segment without a readable slot: they could never be destaged.
            self.segments.slot(segment)?;
            for (block, data) in run(first, u64::MAX - first.0).zip(data.chunks_exact(BLOCK_SIZE)) {
                self.cache.put(block, data)?;
            }
            return Ok(());
        }
    }

    /// Opens a copy-on-write segment, unless no slot can be spared. Returns true if the caller
    /// should look again.
    fn begin_stream(&self, segment: SegmentNo, wait_for_spare: &dyn Fn() -> Result<()>) -> Result<bool> {
        if self.segments.is_at_cow_limit(segment)? {
            wait_for_spare()?;
            if self.segments.is_at_cow_limit(segment)? {
                return Ok(false);
            }
        }
        self.segments.begin_stream(segment)
    }

    /// Writes blocks of one chunk to a copy-on-write segment. Returns false if it takes no more
    /// writes.
    fn write_stream(&self, stream: &Arc<Stream>, first: BlockAddr, data: &[u8]) -> Result<bool> {
        let count = (data.len() / BLOCK_SIZE) as u64;
        let to = stream.slot.at(first);
        let mut became_whole = false;
        let taken: Result<bool> = with_scratch(data.len() + self.sealer.meta_len(count), |scratch| {
            let (sealed, meta) = scratch.split_at_mut(data.len());
            self.sealer.seal(first, data, sealed, meta);
            let _writing = self.segments.exclusive(first);
            if !self.segments.open_stream(SegmentNo::of(first)).is_some_and(|open| Arc::ptr_eq(&open, stream))
            {
                return Ok(false);
            }
            // Covered blocks may be torn if the write fails or the process dies in it. The versions
            // below are whole, but older than the acknowledged ones, so the cache has them first.
            for (block, data) in run(first, count).zip(data.chunks_exact(BLOCK_SIZE)) {
                if stream.covers(index_of(block)) {
                    // After an error the blocks before have later versions than the stream.
                    let put = self.cache.put(block, data);
                    put.inspect_err(|_| stream.uncover(to.index, block.0 - first.0))?;
                }
            }
            self.store.write_data(to, sealed).map_err(|e| {
                stream.uncover(to.index, count);
                self.failed(e.context(format!("write of {count} blocks at block {}", first.0)))
            })?;
            let was_whole = stream.is_whole();
            stream.cover(to.index, count, meta);
            became_whole = !was_whole && stream.is_whole();
            self.drop_newest(first, count);
            Ok(true)
        });
        if became_whole {
            self.write_back(stream.slot);
        }
        taken
    }

    /// Lets the medium write a whole copy-on-write segment back while the next one is encrypted,
    /// not only when a commit syncs it.
    ///
    /// With too many of them, a commit is due or under way. Its sync would also wait for every
    /// segment that is being written back behind it, for as long as a stream goes on.
    fn write_back(&self, slot: SlotNo) {
        if self.segments.count_cow_segments() <= self.write_back_at_most {
            self.store.will_sync(slot);
        }
    }

    /// A failure ends all writing; a refusal by the medium fails only the request.
    fn failed(&self, e: Error) -> Error {
        if e.kind().is_refusal() { e } else { self.health.fail(e) }
    }

    fn drop_newest(&self, first: BlockAddr, count: u64) {
        if self.cache.has_segment(SegmentNo::of(first)) {
            run(first, count).for_each(|block| self.cache.drop_newest(block));
        }
    }

    // --- discarding ---

    /// Makes blocks read as zeros.
    pub(crate) fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.health.check()?;
        for (at, count) in pieces(first, count, SEGMENT_BLOCKS) {
            let segment = SegmentNo::of(at);
            let to_the_end = count == SEGMENT_BLOCKS || at.0 + count == self.blocks;
            if self.is_untouched(segment)? {
                continue;
            }
            if index_of(at) == 0 && to_the_end {
                self.discard_segment(segment, count)?;
            } else {
                pieces(at, count, CHUNK_BLOCKS).try_for_each(|(at, count)| self.discard_chunk(at, count))?;
            }
        }
        Ok(())
    }

    fn discard_segment(&self, segment: SegmentNo, count: u64) -> Result<()> {
        self.segments.discard(segment, |emptied| match emptied {
            DiscardMode::Whole => {
                run(segment.block(0), count).for_each(|block| self.cache.drop_newest(block));
                Ok(())
            }
            DiscardMode::ByHoles => self.put_holes(segment.block(0), count),
        })
    }

    fn put_holes(&self, first: BlockAddr, count: u64) -> Result<()> {
        run(first, count).try_for_each(|block| {
            // After an error the blocks before have later versions than the stream.
            self.cache.put_hole(block).inspect_err(|_| {
                run(first, block.0 - first.0).for_each(|block| self.segments.uncover(block));
            })
        })
    }

    fn discard_chunk(&self, first: BlockAddr, count: u64) -> Result<()> {
        let _writing = self.segments.exclusive(first);
        let Some(stream) = self.segments.open_stream(SegmentNo::of(first)) else {
            return self.put_holes(first, count);
        };
        let at = stream.slot.at(first);
        // As for a write to the stream: some blocks may be erased, and others not.
        for block in run(first, count).filter(|block| stream.covers(index_of(*block))) {
            let put = self.cache.put_hole(block);
            put.inspect_err(|_| stream.uncover(at.index, block.0 - first.0))?;
        }
        self.store.erase_data(at, count).map_err(|e| {
            stream.uncover(at.index, count);
            self.failed(e.context(format!("discard of {count} blocks at block {}", first.0)))
        })?;
        stream.cover(at.index, count, &NO_META[..self.sealer.meta_len(count)]);
        self.drop_newest(first, count);
        Ok(())
    }
}
