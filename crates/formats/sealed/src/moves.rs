//! How segments change their slots: a copy-on-write segment is completed, synced, and recorded in
//! the journal.
//!
//! Invariant: a slot is free only after the record by which its segment left it is durable, and the
//! slot that a record names was synced before.

use crate::address::{CHUNK_BLOCKS, SegmentNo, SlotNo};
use crate::cache::{Cache, Committed, Content};
use crate::counters::{Count, Counters};
use crate::cow_segment::{CowSegment, Stream};
use crate::geometry::CHUNK_META;
use crate::log::Log;
use crate::scratch::with_scratch;
use crate::sealer::Sealer;
use crate::segments::Segments;
use crate::store::Store;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Result, SEGMENT_BLOCKS};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Moves segments. Only the thread that commits uses it.
pub(crate) struct Mover {
    cache: Arc<Cache>,
    segments: Arc<Segments>,
    store: Arc<Store>,
    sealer: Arc<Sealer>,
    counters: Arc<Counters>,
    /// Segments whose map entry on the medium is out of date.
    outdated: BTreeSet<SegmentNo>,
    /// Slots freed since the disk was opened, whose space goes back when it is closed.
    freed: BTreeSet<SlotNo>,
}

impl Mover {
    pub(crate) fn new(
        cache: Arc<Cache>,
        segments: Arc<Segments>,
        store: Arc<Store>,
        sealer: Arc<Sealer>,
        counters: Arc<Counters>,
    ) -> Self {
        let (outdated, freed) = (BTreeSet::new(), BTreeSet::new());
        Mover { cache, segments, store, sealer, counters, outdated, freed }
    }

    /// Takes in segments that moved as replay found.
    pub(crate) fn adopt(&mut self, moved: impl IntoIterator<Item = SegmentNo>) {
        self.outdated.extend(moved);
    }

    /// Ends the streams of these segments, those that have one: their slots are theirs, durably.
    pub(crate) fn complete_all(
        &mut self,
        log: &mut Log,
        segments: impl IntoIterator<Item = SegmentNo>,
    ) -> Result<()> {
        let mut moves = vec![];
        for segment in segments {
            if let Some(CowSegment::Stream(stream)) = self.segments.freeze(segment) {
                self.complete(segment, &stream)?;
                moves.push((segment, Some(stream.slot)));
            }
        }
        if moves.is_empty() {
            return Ok(());
        }
        self.store.settle()?;
        self.record(log, &moves)
    }

    /// Fills what a frozen copy-on-write segment does not cover, so that it holds all of its
    /// segment. Not synced.
    pub(crate) fn complete(&self, segment: SegmentNo, stream: &Stream) -> Result<()> {
        let slot = self.segments.slot(segment)?;
        let mut index = 0;
        while index < SEGMENT_BLOCKS {
            if stream.covers(index) {
                index += 1;
                continue;
            }
            let end = SEGMENT_BLOCKS.min(index + CHUNK_BLOCKS);
            if self.is_cached(segment, index) {
                self.complete_from_cache(stream, segment.block(index))?;
                index += 1;
            }
            let bare = |i: &u64| !stream.covers(*i) && !self.is_cached(segment, *i);
            let count = (index..end).take_while(bare).count() as u64;
            self.complete_from_slot(stream, slot, segment.block(index), count)?;
            index += count;
        }
        // A copy: readers of the stream want its lock while the medium works.
        let meta = stream.meta().clone();
        self.store.write_meta(stream.slot.start(), &meta)
    }

    fn is_cached(&self, segment: SegmentNo, index: u64) -> bool {
        self.cache.touches(segment) && self.cache.has(segment.block(index))
    }

    /// Copies blocks that the cache does not know, as they are.
    fn complete_from_slot(
        &self,
        stream: &Stream,
        slot: Option<SlotNo>,
        first: BlockAddr,
        count: u64,
    ) -> Result<()> {
        let to = stream.slot.at(first);
        match slot {
            _ if count == 0 => Ok(()),
            None => self.store.erase_data(to, count),
            Some(slot) => with_scratch(count as usize * BLOCK_SIZE, |data| {
                let mut meta = [0; CHUNK_META];
                let meta = &mut meta[..self.sealer.meta_len(count)];
                self.store.read(slot.at(first), data, meta)?;
                self.store.write_data(to, data)?;
                stream.cover(to.index, count, meta);
                Ok(())
            }),
        }
    }

    fn complete_from_cache(&self, stream: &Stream, block: BlockAddr) -> Result<()> {
        let to = stream.slot.at(block);
        let mut meta = [0; 32];
        let meta = &mut meta[..self.sealer.meta_len(1)];
        let newest = self.cache.newest(block);
        with_scratch(BLOCK_SIZE, |data| {
            let written = match (&newest, self.cache.committed(block)) {
                (Some((Content::Data(plain), _)), _) => {
                    self.sealer.seal(block, &plain[..], data, meta);
                    true
                }
                (None, Some(Committed::Data { batch, at, meta: entry })) => {
                    data.copy_from_slice(&batch[at..at + BLOCK_SIZE]);
                    meta.copy_from_slice(&entry[..meta.len()]);
                    true
                }
                (Some((Content::Hole, _)) | None, _) => false,
            };
            if written { self.store.write_data(to, data) } else { self.store.erase_data(to, 1) }
        })?;
        stream.cover(to.index, 1, meta);
        if let Some((_, version)) = newest {
            // Covered now, and nothing later than the copy-on-write segment unless it was written
            // meanwhile.
            self.cache.forget_version(block, version);
        }
        Ok(())
    }

    /// Records moves durably, then makes them so in memory and frees the old slots.
    pub(crate) fn record(&mut self, log: &mut Log, moves: &[(SegmentNo, Option<SlotNo>)]) -> Result<()> {
        log.append_moves(moves)?;
        for &(segment, slot) in moves {
            let old = self.segments.slot(segment)?;
            if old == slot {
                continue;
            }
            if let (Some(old), None) = (old, slot) {
                // A courtesy to the host. The next use of this slot makes it blank again.
                let _ = self.store.give_back(old);
            }
            self.segments.move_to(segment, slot, || log.forget(segment))?;
            self.freed.extend(old);
            self.outdated.insert(segment);
            if let Some(slot) = slot {
                self.freed.remove(&slot);
            }
            self.counters.add(Count::Moves, 1);
        }
        Ok(())
    }

    /// The slot of a segment that is about to be written, under one of its chunk locks.
    pub(crate) fn slot_to_write(&mut self, segment: SegmentNo) -> Result<SlotNo> {
        if let Some(slot) = self.segments.slot(segment)? {
            return Ok(slot);
        }
        let slot = self.segments.assign_first(segment, |slot| self.store.prepare(slot))?;
        self.outdated.insert(segment);
        self.freed.remove(&slot);
        Ok(slot)
    }

    /// Gives up a frozen stream, whose blocks the journal holds by now.
    pub(crate) fn abandon(&mut self, segment: SegmentNo, stream: &Stream) -> Result<()> {
        self.segments.abandon(segment, stream)?;
        self.freed.insert(stream.slot);
        Ok(())
    }

    /// Makes what is in slots durable there.
    pub(crate) fn settle_slots(&self) -> Result<()> {
        self.store.settle()
    }

    /// Makes what is in slots durable there, then the map.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.store.settle()?;
        if !self.outdated.is_empty() {
            self.segments.write_map(self.store.medium(), self.outdated.iter().copied())?;
            self.store.sync()?;
            self.outdated.clear();
        }
        Ok(())
    }

    /// Gives the space of slots that moves left behind back to the medium. Nothing depends on it,
    /// so nothing is synced.
    pub(crate) fn give_back(&self) {
        let mut free = self.segments.free_slots();
        free.sort_unstable();
        for slot in free.iter().filter(|slot| self.freed.contains(slot)) {
            let _ = self.store.give_back(*slot);
        }
    }
}
