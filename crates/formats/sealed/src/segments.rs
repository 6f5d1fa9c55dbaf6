//! The place of each segment: its slot, its copy-on-write segment, and the locks that guard changes
//! of both.
//!
//! Invariants: a segment's copy-on-write segment appears and disappears only under all its chunk
//! locks, and so does every slot except a first one, which appears under the lock of the chunk that
//! is written there. Data moves from the cache to the copy-on-write segment to the slot: a lookup
//! without a lock goes in this order, so that it misses nothing.

pub(crate) mod cow_segment;
pub(crate) mod header_too_old;
pub(crate) mod remapper;
pub(crate) mod stream;

use crate::address::{SegmentNo, SlotNo, index_of};
use crate::kept_writes::{KeptStream, KeptWrites};
use crate::limits::MAX_COW_SEGMENTS;
use crate::locks::ChunkLocks;
use crate::map::SegmentMap;
use crate::segments::cow_segment::{CowSegment, CowSegments, Stream};
use lacuna_contracts::{BlockAddr, Result};
use lacuna_kept_memory::KeptRecord;
use lacuna_medium::Medium;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use std::sync::Arc;

/// The segments of a disk.
pub(crate) struct Segments {
    map: SegmentMap,
    cow: CowSegments,
    locks: ChunkLocks,
}

/// How a segment is made to read as zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiscardMode {
    /// All versions below the cache are void; the next commit frees the slot.
    Whole,
    /// Block by block, as holes in the cache.
    ByHoles,
}

impl Segments {
    pub(crate) fn new(map: SegmentMap, kept: KeptWrites) -> Self {
        Segments { map, cow: CowSegments::new(kept), locks: ChunkLocks::new() }
    }

    /// Takes over the copy-on-write segments that a predecessor left. The journal was replayed: it
    /// may hold moves that the predecessor had recorded before it died.
    ///
    /// Errors: [`lacuna_contracts::Kind::Corrupt`] if they do not fit the map.
    pub(crate) fn adopt(
        &self,
        kept: &KeptWrites,
        streams: Vec<KeptStream>,
        discards: Vec<(SegmentNo, KeptRecord)>,
    ) -> Result<()> {
        // If the map entry of a segment does not verify, only that segment is lost, not the disk.
        for (segment, record) in discards {
            if let Ok(Some(_)) = self.map.get(segment) {
                self.cow.insert_discard(segment, record);
            }
        }
        for KeptStream { segment, slot, record } in streams {
            let Ok(mapped) = self.map.get(segment) else { continue };
            // A discard ends a stream, and no stream begins where one is pending.
            if mapped == Some(slot) || self.cow.get(segment).is_some() {
                continue;
            }
            if !self.map.take_free(slot, mapped.is_none()) {
                return Err(kept.refuse(format!("a stream to slot {}, which is in use", slot.get())));
            }
            self.cow.insert_frozen(segment, slot, record);
        }
        Ok(())
    }

    /// Marks a block as not covered by the stream of its segment, if it has one. The cache has a
    /// later version.
    pub(crate) fn uncover(&self, block: BlockAddr) {
        if let Some(CowSegment::Stream(stream)) = self.cow.get(SegmentNo::of(block)) {
            stream.uncover(index_of(block), 1);
        }
    }

    /// Locks the chunk of a block for reading, or for putting newer versions of its blocks into the
    /// cache.
    pub(crate) fn shared(&self, block: BlockAddr) -> RwLockReadGuard<'_, ()> {
        self.locks.shared(block)
    }

    /// Locks the chunk of a block for changing it on the medium.
    pub(crate) fn exclusive(&self, block: BlockAddr) -> RwLockWriteGuard<'_, ()> {
        self.locks.exclusive(block)
    }

    /// The slot of a segment, if it has one.
    pub(crate) fn slot(&self, segment: SegmentNo) -> Result<Option<SlotNo>> {
        self.map.get(segment)
    }

    /// The copy-on-write segment of a segment, if it has one.
    pub(crate) fn cow_segment(&self, segment: SegmentNo) -> Option<CowSegment> {
        self.cow.get(segment)
    }

    /// The open stream of a segment, if it has one. This does not change while the caller holds a
    /// chunk lock of the segment.
    pub(crate) fn open_stream(&self, segment: SegmentNo) -> Option<Arc<Stream>> {
        match self.cow.get(segment) {
            Some(CowSegment::Stream(stream)) if !stream.is_frozen() => Some(stream),
            _ => None,
        }
    }

    /// All copy-on-write segments, sorted by segment.
    pub(crate) fn cow_segments(&self) -> Vec<(SegmentNo, CowSegment)> {
        self.cow.list()
    }

    /// The number of copy-on-write segments.
    pub(crate) fn count_cow_segments(&self) -> usize {
        self.cow.len()
    }

    /// The numbers of whole streams and of pending discards.
    pub(crate) fn ready(&self) -> (usize, usize) {
        self.cow.ready()
    }

    /// Whether no copy-on-write segment can be opened for a segment now.
    pub(crate) fn is_at_cow_limit(&self, segment: SegmentNo) -> Result<bool> {
        let mapped = self.map.get(segment)?.is_some();
        Ok(self.cow.len() >= MAX_COW_SEGMENTS || (mapped && self.map.spare() == 0))
    }

    /// Begins a stream to a segment, unless it has a copy-on-write segment. Returns false if no
    /// slot can be spared.
    pub(crate) fn begin_stream(&self, segment: SegmentNo) -> Result<bool> {
        let _moving = self.locks.segment(segment);
        if self.cow.get(segment).is_some() {
            return Ok(true);
        }
        let mapped = self.map.get(segment)?.is_some();
        let slot = if mapped { self.map.take_spare() } else { Some(self.map.take_first()?) };
        let Some(slot) = slot else { return Ok(false) };
        self.cow.begin_stream(segment, slot).inspect_err(|_| self.map.release(slot, !mapped))?;
        Ok(true)
    }

    /// Freezes a copy-on-write segment: only the caller, which commits, writes to it afterwards.
    pub(crate) fn freeze(&self, segment: SegmentNo) -> Option<CowSegment> {
        let _moving = self.locks.segment(segment);
        let cow_segment = self.cow.get(segment)?;
        if let CowSegment::Stream(stream) = &cow_segment {
            stream.freeze();
        }
        Some(cow_segment)
    }

    /// Discards a segment. `empty_cache` changes its blocks in the cache accordingly.
    ///
    /// If the stream is frozen, or an unmapped segment has blocks in the journal, the discard goes
    /// through the cache as holes, like small writes. A commit lists copy-on-write segments without
    /// these locks: it must find either the stream or its successor at any moment.
    pub(crate) fn discard(
        &self,
        segment: SegmentNo,
        empty_cache: impl FnOnce(DiscardMode) -> Result<()>,
    ) -> Result<()> {
        let _moving = self.locks.segment(segment);
        let mapped = self.map.get(segment)?.is_some();
        let stream = match self.cow.get(segment) {
            Some(CowSegment::Stream(stream)) => Some(stream),
            _ => None,
        };
        let frozen = stream.as_ref().is_some_and(|stream| stream.is_frozen());
        let emptied = if mapped && !frozen { DiscardMode::Whole } else { DiscardMode::ByHoles };
        if emptied == DiscardMode::Whole {
            self.cow.discard(segment)?;
        }
        empty_cache(emptied)?;
        if let Some(stream) = stream.filter(|_| !frozen) {
            if emptied == DiscardMode::ByHoles {
                self.cow.remove(segment);
            }
            self.map.release(stream.slot, !mapped);
        }
        Ok(())
    }

    /// Gives a segment a slot that is durable as its slot, or none, and frees the old slot.
    /// `forget` drops the journal's blocks of the segment, which are void.
    pub(crate) fn move_to(
        &self,
        segment: SegmentNo,
        slot: Option<SlotNo>,
        forget: impl FnOnce(),
    ) -> Result<()> {
        let _moving = self.locks.segment(segment);
        let old = self.map.get(segment)?;
        self.map.set(segment, slot);
        self.cow.remove(segment);
        forget();
        // Free the old slot before another thread sees the segment without a slot and claims one
        // for it.
        if let Some(old) = old {
            self.map.release(old, slot.is_none());
        }
        Ok(())
    }

    /// Gives up a frozen stream. The journal holds its blocks by now.
    pub(crate) fn abandon(&self, segment: SegmentNo, stream: &Stream) -> Result<()> {
        let _moving = self.locks.segment(segment);
        let unassigned = self.map.get(segment)?.is_none();
        self.cow.remove(segment);
        self.map.release(stream.slot, unassigned);
        Ok(())
    }

    /// Gives a segment its first slot, after `prepare` made the slot read as unwritten. The caller
    /// holds the lock of the chunk to be written.
    pub(crate) fn assign_first(
        &self,
        segment: SegmentNo,
        prepare: impl FnOnce(SlotNo) -> Result<()>,
    ) -> Result<SlotNo> {
        let slot = self.map.take_first()?;
        // A full medium refuses this repeatedly; slots must not leak.
        prepare(slot).inspect_err(|_| self.map.release(slot, true))?;
        self.map.set(segment, Some(slot));
        Ok(slot)
    }

    /// Writes the map entries of these segments to the medium. Not synced.
    pub(crate) fn write_map(&self, medium: &dyn Medium, of: impl Iterator<Item = SegmentNo>) -> Result<()> {
        self.map.write(medium, of)
    }

    /// All free slots.
    pub(crate) fn free_slots(&self) -> Vec<SlotNo> {
        self.map.free_slots()
    }

    /// Slots that copy-on-write segments could still take.
    pub(crate) fn spare(&self) -> usize {
        self.map.spare()
    }

    /// The number of segments with a slot.
    pub(crate) fn mapped(&self) -> u64 {
        self.map.mapped()
    }
}
