//! Moves segments to new slots: completes copy-on-write segments, syncs them, and records the moves
//! in the journal.
//!
//! Invariant: a slot is free only after the record of its segment's move away from it is durable,
//! and the slot in a record was synced before the record.

use crate::address::{CHUNK_BLOCKS, SegmentNo, SlotNo};
use crate::caches::cache::{BlockContent, CommittedVersion, WriteCache};
use crate::caches::scratch::with_scratch;
use crate::counters::{Count, Counters};
use crate::geometry::CHUNK_META;
use crate::log::Log;
use crate::sealer::Sealer;
use crate::segments::Segments;
use crate::segments::cow_segment::{CowSegment, Stream};
use crate::slot_store::SlotStore;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Result, SEGMENT_BLOCKS};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Moves segments. Used under the commit lock only.
pub(crate) struct Remapper {
    cache: Arc<WriteCache>,
    segments: Arc<Segments>,
    store: Arc<SlotStore>,
    sealer: Arc<Sealer>,
    counters: Arc<Counters>,
    /// Segments with an outdated map entry on the medium.
    stale_entries: BTreeSet<SegmentNo>,
    /// Slots freed since the disk was opened. Their space is given back when it is closed.
    freed: BTreeSet<SlotNo>,
}

impl Remapper {
    pub(crate) fn new(
        cache: Arc<WriteCache>,
        segments: Arc<Segments>,
        store: Arc<SlotStore>,
        sealer: Arc<Sealer>,
        counters: Arc<Counters>,
    ) -> Self {
        let (outdated, freed) = (BTreeSet::new(), BTreeSet::new());
        Remapper { cache, segments, store, sealer, counters, stale_entries: outdated, freed }
    }

    /// Adds segments that moved according to replay.
    pub(crate) fn add_replayed(&mut self, moved: impl IntoIterator<Item = SegmentNo>) {
        self.stale_entries.extend(moved);
    }

    /// Ends the streams of those segments that have one: the streams' slots become theirs, durably.
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
        self.store.make_durable()?;
        self.record_moves(log, &moves)
    }

    /// Fills the blocks that a frozen copy-on-write segment does not cover, so that it holds its
    /// whole segment. Not synced.
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
        // A copy, so that readers of the stream do not wait for its lock while the medium works.
        self.store.write_meta(stream.slot.start(), &stream.meta())
    }

    fn is_cached(&self, segment: SegmentNo, index: u64) -> bool {
        self.cache.has_segment(segment) && self.cache.contains(segment.block(index))
    }

    /// Copies blocks that are not in the cache, without decrypting them.
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
                (Some((BlockContent::Data(plain), _)), _) => {
                    self.sealer.seal(block, plain.bytes(), data, meta);
                    true
                }
                (None, Some(CommittedVersion::Data { batch, at, meta: entry })) => {
                    data.copy_from_slice(&batch[at..at + BLOCK_SIZE]);
                    meta.copy_from_slice(&entry[..meta.len()]);
                    true
                }
                (Some((BlockContent::Hole, _)) | None, _) => false,
            };
            if written { self.store.write_data(to, data) } else { self.store.erase_data(to, 1) }
        })?;
        stream.cover(to.index, 1, meta);
        if let Some((_, version)) = newest {
            // The block is covered now. A newer version than this one, written meanwhile, stays.
            self.cache.drop_version(block, version);
        }
        Ok(())
    }

    /// Records moves durably, then applies them in memory and frees the old slots.
    pub(crate) fn record_moves(
        &mut self,
        log: &mut Log,
        moves: &[(SegmentNo, Option<SlotNo>)],
    ) -> Result<()> {
        log.append_moves(moves)?;
        for &(segment, slot) in moves {
            let old = self.segments.slot(segment)?;
            if old == slot {
                continue;
            }
            if let (Some(old), None) = (old, slot) {
                // Optional: lets the host reuse the space. The next use of the slot clears it
                // again.
                let _ = self.store.release_space(old);
            }
            self.segments.move_to(segment, slot, || log.drop_segment(segment))?;
            self.freed.extend(old);
            self.stale_entries.insert(segment);
            if let Some(slot) = slot {
                self.freed.remove(&slot);
            }
            self.counters.add(Count::Moves, 1);
        }
        Ok(())
    }

    /// The slot of a segment that is about to be written. The caller holds one of its chunk locks.
    pub(crate) fn slot_to_write(&mut self, segment: SegmentNo) -> Result<SlotNo> {
        if let Some(slot) = self.segments.slot(segment)? {
            return Ok(slot);
        }
        let slot = self.segments.assign_first(segment, |slot| self.store.prepare(slot))?;
        self.stale_entries.insert(segment);
        self.freed.remove(&slot);
        Ok(slot)
    }

    /// Gives up a frozen stream. The journal holds its blocks by now.
    pub(crate) fn abandon(&mut self, segment: SegmentNo, stream: &Stream) -> Result<()> {
        self.segments.abandon(segment, stream)?;
        self.freed.insert(stream.slot);
        Ok(())
    }

    /// Makes the contents of all slots durable.
    pub(crate) fn sync_slots(&self) -> Result<()> {
        self.store.make_durable()
    }

    /// Whether any entry of the map on the medium is outdated.
    pub(crate) fn has_stale_entries(&self) -> bool {
        !self.stale_entries.is_empty()
    }

    /// Makes the contents of all slots durable, then the map.
    pub(crate) fn make_durable(&mut self) -> Result<()> {
        self.store.make_durable()?;
        if !self.stale_entries.is_empty() {
            self.segments.write_map(self.store.medium(), self.stale_entries.iter().copied())?;
            self.store.sync()?;
            self.stale_entries.clear();
        }
        Ok(())
    }

    /// Gives the space of slots that were moved away from back to the medium. Nothing depends on
    /// it, so nothing is synced.
    pub(crate) fn release_space(&self) {
        let mut free = self.segments.free_slots();
        free.sort_unstable();
        for slot in free.iter().filter(|slot| self.freed.contains(slot)) {
            let _ = self.store.release_space(*slot);
        }
    }
}
