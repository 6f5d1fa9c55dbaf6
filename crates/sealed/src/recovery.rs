//! Opening after whatever happened: the journal is read once, the last entry for every block and segment is found.
//! `Committer::recover` carries only that out.
//!
//! Why two passes: a batch may name a slot that was freed and taken over by another segment's copy-on-write segment before
//! power failed. Carried out in order, the old block would overwrite the new owner's. So a move voids what the
//! journal said of its segment before, and only what remains is written.
//!
//! On a full medium what finds no space in its slot stays in the journal (`medium_full.rs`).
//!
//! Crash during recovery: it only repeats what the journal holds, and the journal is retired at its end; a second
//! opening starts over from the same journal and reaches the same state.

use crate::address::{SegmentNo, SlotNo, run};
use crate::cache::Committed;
use crate::geometry::Params;
use crate::journal::{Entry, Journal, ParsedBatch};
use crate::map::SegmentMap;
use lacuna_core::{BLOCK_SIZE, BlockAddr, Error, Kind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The replay index: what the journal says last.
#[derive(Default)]
pub(crate) struct Replayed {
    /// How many batches it holds.
    pub(crate) batches: u64,
    /// Of each block.
    pub(crate) latest: BTreeMap<BlockAddr, Committed>,
    /// Segments whose slots it names.
    pub(crate) moved: Vec<SegmentNo>,
}

impl Replayed {
    /// Reads the journal to its end, moves segments in the map as it says, and counts the map's free slots.
    pub(crate) fn of(journal: &mut Journal, map: &SegmentMap, params: &Params) -> Result<Replayed> {
        let mut replayed = Replayed::default();
        let batches = journal.replay(|batch| replayed.note(batch, map, params))?;
        replayed.batches = batches;
        map.count_free();
        // If its map entry does not verify, that segment is lost, not the disk.
        replayed.latest.retain(|block, _| map.get(SegmentNo::of(*block)).is_ok());
        Ok(replayed)
    }

    fn note(&mut self, batch: ParsedBatch, map: &SegmentMap, params: &Params) -> Result<()> {
        let bytes = Arc::new(batch.bytes);
        let mut at = batch.data_at;
        for entry in batch.entries {
            match entry {
                Entry::Write { block, meta } => {
                    check(block.0 < params.blocks, "a block", block.0)?;
                    self.latest.insert(block, Committed::Data { batch: bytes.clone(), at, meta });
                    at += BLOCK_SIZE;
                }
                Entry::Erase { block, count } => {
                    let end = block.0.checked_add(u64::from(count)).filter(|end| *end <= params.blocks);
                    check(end.is_some(), "blocks", block.0)?;
                    self.latest.extend(run(block, u64::from(count)).map(|b| (b, Committed::Hole)));
                }
                Entry::Move { segment: number, slot: place } => {
                    let g = params.geometry();
                    let slot = place.and_then(|slot| SlotNo::checked(slot, g.slots));
                    let segment =
                        SegmentNo::checked(number, g.segments).filter(|_| slot.is_some() == place.is_some());
                    let Some(segment) = segment else { return check(false, "a segment", number) };
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

fn check(holds: bool, what: &str, number: u64) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, "the journal names what this disk does not have")
        .found(format!("{what}, number {number}"))
        .expected("numbers within the disk")
        .remedy("restore the medium from a backup"))
}
