//! Opening after whatever happened: the journal is read once, the last word on every block and segment is found,
//! and only that is carried out.
//!
//! Why two passes: a batch may name a slot that was freed and taken over by another segment's copy-on-write segment before
//! power failed. Carried out in order, the old block would overwrite the new owner's. So a move voids what the
//! journal said of its segment before, and only what remains is written.
//!
//! On a full medium what finds no space in its slot stays in the journal (`medium_full.rs`).
//!
//! Crash during recovery: it only repeats what the journal holds, and the journal is retired at its end; a second
//! opening starts over from the same journal and reaches the same state.

use crate::cache::Committed;
use crate::disk::Core;
use crate::journal::{Entry, ParsedBatch};
use crate::map::Slot;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, SEGMENT_BLOCKS};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the journal says last of each block.
type LastWords = BTreeMap<u64, Committed>;

pub(crate) fn recover(core: &Core) -> Result<()> {
    let mut c = core.committer();
    let mut words = LastWords::new();
    let mut moved = vec![];
    let batches = c.journal.replay(|batch| note_batch(core, batch, &mut words, &mut moved))?;
    core.map.count_free();
    core.counters.replayed.store(batches, Ordering::Relaxed);
    if batches == 0 {
        return Ok(());
    }
    c.moved.extend(moved);
    for (block, committed) in words {
        if core.map.get(block / SEGMENT_BLOCKS).is_err() {
            // Its map entry does not verify: that segment is lost, not the disk.
            continue;
        }
        core.cache.commit(block, None, committed);
        c.to_destage.insert(block);
    }
    // A disk that is only read has in memory what the journal holds, as long as it is open: at most the length of the journal.
    if core.read_only { Ok(()) } else { core.checkpoint_or_stay(&mut c) }
}

fn note_batch(core: &Core, batch: ParsedBatch, words: &mut LastWords, moved: &mut Vec<u64>) -> Result<()> {
    let bytes = Arc::new(batch.bytes);
    let mut at = batch.data_at;
    for entry in batch.entries {
        match entry {
            Entry::Write { block, meta } => {
                check(block < core.params.blocks, "a block", block)?;
                words.insert(block, Committed::Data { batch: bytes.clone(), at, meta });
                at += BLOCK_SIZE;
            }
            Entry::Erase { block, count } => {
                let end = block.checked_add(u64::from(count)).filter(|end| *end <= core.params.blocks);
                check(end.is_some(), "blocks", block)?;
                words.extend((block..block + u64::from(count)).map(|b| (b, Committed::Hole)));
            }
            Entry::Move { segment, slot } => {
                let g = core.store.geometry;
                let known =
                    segment < u64::from(g.segments) && !matches!(slot, Slot::At(slot) if slot >= g.slots);
                check(known, "a segment", segment)?;
                core.map.set(segment, slot);
                moved.push(segment);
                let first = segment * SEGMENT_BLOCKS;
                let void: Vec<u64> = words.range(first..first + SEGMENT_BLOCKS).map(|(b, _)| *b).collect();
                void.iter().for_each(|b| {
                    words.remove(b);
                });
            }
        }
    }
    Ok(())
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
