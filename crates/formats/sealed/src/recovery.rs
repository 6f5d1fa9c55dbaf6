//! Recovery: reads the journal once and finds the last entry for every block and segment.
//! `Committer::recover` applies only these.
//!
//! Two passes are needed because a batch may name a slot that was freed and taken over by another
//! segment's copy-on-write segment before the power failed. Applied in order, the old block would
//! overwrite the new owner's. So a move voids the earlier entries of its segment, and only the
//! remaining entries are written.
//!
//! On a full medium, blocks without space in their slots stay in the journal (`medium_full.rs`).
//!
//! A crash during recovery is harmless: recovery only repeats journal entries, and the journal is
//! retired at its end. A second opening starts over from the same journal and reaches the same
//! state. A disk with a background thread is in use while the thread makes the destaged entries
//! durable; nothing is appended to the journal before it is retired.

use crate::address::{SegmentNo, SlotNo, run};
use crate::caches::cache::{CommittedVersion, WriteCache};
use crate::geometry::Params;
use crate::journal::{BatchEntry, Journal, ParsedBatch};
use crate::kept_writes::{KeptVersion, KeptWrites};
use crate::map::SegmentMap;
use crate::segments::{Segments, header_too_old};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Kind, Result, SEGMENT_BLOCKS};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The replay index: the last entries of the journal.
#[derive(Default)]
pub(crate) struct ReplayIndex {
    /// The number of batches in the journal.
    pub(crate) batches: u64,
    /// The last version of each block.
    pub(crate) latest: BTreeMap<BlockAddr, CommittedVersion>,
    /// Segments with a move record.
    pub(crate) moved: Vec<SegmentNo>,
}

impl ReplayIndex {
    /// Reads the journal to its end, applies the moves to the map, and counts the map's free slots.
    pub(crate) fn of(journal: &mut Journal, map: &SegmentMap, params: &Params) -> Result<ReplayIndex> {
        let mut replayed = ReplayIndex::default();
        let batches = journal.replay(|batch| replayed.note(batch, map, params))?;
        replayed.batches = batches;
        map.count_free();
        // If the map entry of a segment does not verify, only that segment is lost, not the disk.
        replayed.latest.retain(|block, _| map.get(SegmentNo::of(*block)).is_ok());
        Ok(replayed)
    }

    fn note(&mut self, batch: ParsedBatch, map: &SegmentMap, params: &Params) -> Result<()> {
        let bytes = Arc::new(batch.bytes);
        let mut at = batch.data_at;
        for entry in batch.entries {
            match entry {
                BatchEntry::Write { block, meta } => {
                    check_blocks(params, block.0.saturating_add(1))?;
                    self.latest.insert(block, CommittedVersion::Data { batch: bytes.clone(), at, meta });
                    at += BLOCK_SIZE;
                }
                BatchEntry::Erase { block, count } => {
                    check_blocks(params, block.0.saturating_add(u64::from(count)))?;
                    self.latest.extend(run(block, u64::from(count)).map(|b| (b, CommittedVersion::Hole)));
                }
                BatchEntry::Move { segment, slot } => {
                    let (segment, slot) = checked(params, segment, slot)?;
                    map.set(segment, slot);
                    self.moved.push(segment);
                    let void: Vec<BlockAddr> = self.latest.range(segment.blocks()).map(|(b, _)| *b).collect();
                    for block in void {
                        self.latest.remove(&block);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Takes over the writes that a predecessor left in memory, and says whether it left any. The moves
/// of the journal have been applied to the map, and its blocks were not destaged yet. After an
/// error the memory is left as it is to a successor.
pub(crate) fn adopt_kept(
    kept: &KeptWrites,
    params: &Params,
    replayed: &ReplayIndex,
    segments: &Segments,
    cache: &WriteCache,
) -> Result<bool> {
    let (streams, discards) = (kept.adopt_streams(params)?, kept.adopt_discards(params)?);
    let (data, holes) = kept.adopt_versions(params.blocks)?;
    if streams.is_empty() && discards.is_empty() && data.is_empty() && holes.is_empty() {
        return Ok(false);
    }
    // If the map entry of a segment does not verify, only that segment is lost, not the disk.
    let readable = |kept: &KeptVersion| segments.slot(SegmentNo::of(kept.block)).is_ok();
    let only_readable = |all: Vec<KeptVersion>| all.into_iter().filter(readable).collect::<Vec<_>>();
    let (data, holes) = (only_readable(data), only_readable(holes));
    let blocks: Vec<BlockAddr> = data.iter().chain(&holes).map(|kept| kept.block).collect();
    cache.adopt(data, holes);
    // A slot that a segment got while its blocks were destaged is not on the medium yet, unlike the
    // blocks in the journal. A discard of the segment voids these blocks. A block in the cache gets
    // no hole: its version is not older than any acknowledged discard, and if this process died
    // here, the next one could take the hole for the later version.
    for (segment, _) in &discards {
        if let Ok(None) = segments.slot(*segment) {
            let journaled = replayed.latest.range(segment.blocks()).map(|(block, _)| *block);
            let mut void = journaled.filter(|block| !cache.contains(*block));
            void.try_for_each(|block| cache.put_hole(block)).inspect_err(|_| kept.leave())?;
        }
    }
    segments.adopt(kept, streams, discards)?;
    // A stream may hold a torn block where the cache has a version: the predecessor died while it
    // wrote there. The block must not become the slot's, which a power cut could leave alone.
    blocks.into_iter().for_each(|block| segments.uncover(block));
    Ok(true)
}

/// Checks that blocks end within the disk.
fn check_blocks(params: &Params, end: u64) -> Result<()> {
    if end <= params.blocks {
        return Ok(());
    }
    Err(unknown(params, end.div_ceil(SEGMENT_BLOCKS), format!("blocks up to number {end}")))
}

/// Checks the numbers of a segment and its slot against the disk.
fn checked(params: &Params, segment: u64, slot: Option<u64>) -> Result<(SegmentNo, Option<SlotNo>)> {
    let g = params.geometry();
    let known = SegmentNo::checked(segment, g.segments)
        .ok_or_else(|| unknown(params, segment.saturating_add(1), format!("segment {segment}")))?;
    let slot = slot.map(|slot| {
        let least = slot.saturating_add(1).saturating_sub(u64::from(params.spare));
        SlotNo::checked(slot, g.slots).ok_or_else(|| unknown(params, least, format!("slot {slot}")))
    });
    Ok((known, slot.transpose()?))
}

/// The error for an entry with `what`, which only a disk of at least `segments` segments can have.
fn unknown(params: &Params, segments: u64, what: String) -> Error {
    if segments <= u64::from(params.map_capacity) {
        return header_too_old::header_too_old(params, segments);
    }
    Error::new(Kind::Corrupt, "the journal has entries that no size of this disk allows")
        .found(what)
        .expected(format!("entries of a disk of at most {} segments", params.map_capacity))
        .hint("restore the medium from a backup")
}
