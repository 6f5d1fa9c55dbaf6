//! Recovery: finds the last batch, the cells that are still in the ring, the contents of the stash,
//! and the changes of the last batches to the maps.
//!
//! A head names the batches that were durable when it was written. After those, the batches end
//! before the first one that is not whole or does not follow the one before it. This part writes
//! nothing (`ObliviousDisk::recover` writes, with its results), and finds the same end whichever
//! levels are opened (deniability contract).

use crate::batch::head::{JournalHead, LevelRecord, PublicHead, batch_key};
use crate::cells::level_cells::LevelCells;
use crate::cells::place::{BatchSeq, CellNo, CellPlace};
use crate::journal::{COPIES, Journal};
use crate::keys::OpenLevelKeys;
use crate::limits::CELL_LEN;
use crate::params::Params;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result, Secret, WipeOnDrop};
use lacuna_levels::{FANOUT, LOST_PLACE, LevelMap, PendingBlock, QueuedLevel, SlotEntry, corrupt};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Heads that are read at once.
const HEADS_AT_ONCE: u64 = 256;

/// The entry of a slot of the stash, and its block if it verifies.
type StashedBlock = (SlotEntry, Option<PendingBlock>);

/// The end of the batches of a disk.
pub(crate) struct JournalEnd {
    /// The last head.
    pub(crate) head: JournalHead,
    /// The cells of batches that may not be in place yet, oldest first.
    pub(crate) in_flight: Vec<(BatchSeq, Vec<CellNo>)>,
}

/// Reads the medium of a disk that is being opened.
pub(crate) struct Recovery<'a> {
    pub(crate) params: &'a Params,
    pub(crate) keys: &'a OpenLevelKeys,
    pub(crate) journal: &'a Journal,
}

impl Recovery<'_> {
    /// The key that opens heads.
    fn level0(&self) -> &Secret<32> {
        &self.keys.level(0).level
    }

    /// Finds the last batch.
    pub(crate) fn find_end(&self) -> Result<JournalEnd> {
        // A head is used as it was read first: a second read may give different bytes, and the
        // batches would end before one that was there.
        let (durable, mut seen) = self.last_synced()?;
        let first = |seq: BatchSeq| seen.remove(&seq).map_or_else(|| self.require_head(seq, None), Ok);
        let mut end = durable.map(first).transpose()?;
        loop {
            let (seq, name) =
                end.as_ref().map_or((BatchSeq(0), None), |head| (head.public.seq, Some(head.name())));
            let follows = |next: &JournalHead| name.is_none_or(|name| next.public.previous == name);
            let next = match seen.remove(&seq.next()).filter(follows) {
                Some(next) => Some(next),
                None => self.journal.head(self.level0(), seq.next(), follows)?,
            };
            match next {
                Some(next) if self.journal.has_record(&next)? => end = Some(next),
                Some(next) => {
                    self.check_not_overwritten(next.public.seq)?;
                    break;
                }
                None => break,
            }
        }
        let end = end.ok_or_else(|| {
            Error::new(Kind::Corrupt, "cannot find the journal of this disk")
                .found("not one batch that verifies")
                .expected("at least the batch that creation wrote")
                .hint("the medium was overwritten: restore it from a backup")
        })?;
        let PublicHead { seq, previous, claims, .. } = end.public;
        let mut in_flight = vec![(seq, end.public.cells.clone())];
        let mut name = previous;
        for seq in (claims.applied.next().0..seq.0).rev().map(BatchSeq) {
            let head = self.require_head(seq, Some(name))?;
            name = head.public.previous;
            in_flight.push((seq, head.public.cells));
        }
        in_flight.reverse();
        Ok(JournalEnd { head: end, in_flight })
    }

    /// Called if the ring does not have the record of a batch. Either a power cut tore it, and the
    /// batches end here. Or the ring has wrapped around since, and unreadable heads lie between: to
    /// end here would open an older state. Errors: [`Kind::Corrupt`] in the second case.
    fn check_not_overwritten(&self, seq: BatchSeq) -> Result<()> {
        let over = BatchSeq(seq.0.saturating_add(u64::from(self.params.ring)));
        match self.journal.head(self.level0(), over, |_| true)? {
            None => Ok(()),
            Some(_) => Err(corrupt("cannot open the disk")
                .found(format!("a head of batch {}, and none that leads to it", over.0))),
        }
    }

    /// The last batch that any head calls durable, and that head and all later ones. Reads the
    /// whole journal, and its second copy where the first is not whole.
    fn last_synced(&self) -> Result<(Option<BatchSeq>, BTreeMap<BatchSeq, JournalHead>)> {
        let journal = u64::from(self.params.journal);
        let mut synced = None;
        let mut seen = BTreeMap::new();
        let mut buf = vec![0; HEADS_AT_ONCE as usize * BLOCK_SIZE];
        for at in (0..journal).step_by(HEADS_AT_ONCE as usize) {
            let buf = &mut buf[..(journal - at).min(HEADS_AT_ONCE) as usize * BLOCK_SIZE];
            for copy in 0..COPIES {
                self.journal.read_heads(BatchSeq(at), copy, buf)?;
                let mut whole = true;
                for block in buf.as_chunks::<BLOCK_SIZE>().0 {
                    let unwritten = block.iter().all(|byte| *byte == 0);
                    let head =
                        if unwritten { None } else { JournalHead::open(self.params, self.level0(), block)? };
                    whole &= head.is_some();
                    if let Some(head) = head {
                        synced = synced.max(Some(head.public.claims.synced));
                        seen.entry(head.public.seq).or_insert(head);
                    }
                }
                seen = seen.split_off(&synced.unwrap_or(BatchSeq(0)));
                if whole {
                    break;
                }
            }
        }
        Ok((synced.filter(|seq| *seq > BatchSeq(0)), seen))
    }

    /// The head of batch `seq`, which was durable, and which the next head calls `name`.
    fn require_head(&self, seq: BatchSeq, name: Option<[u8; 16]>) -> Result<JournalHead> {
        let fits = |head: &JournalHead| name.is_none_or(|name| head.name() == name);
        self.journal.head(self.level0(), seq, fits)?.ok_or_else(|| {
            corrupt("cannot open the disk")
                .found(format!("both copies of the head of batch {} are damaged", seq.0))
        })
    }

    /// Rebuilds the map of a level as of batch `end`, and its pending blocks.
    ///
    /// The level is empty if no batch was written while it was open.
    pub(crate) fn rebuild(
        &self,
        level: u8,
        end: &JournalHead,
        state: &mut QueuedLevel,
        cells: &LevelCells,
    ) -> Result<()> {
        let level_key = &self.keys.level(level).level;
        let earlier;
        // The last head is not read again: a second read may give different bytes, and the map
        // would be of another batch than the ring.
        let last = if end.level_record(self.params, &batch_key(level_key, &end.salt)?, level).is_some() {
            end
        } else {
            earlier = self.last_head_with_level(level, end)?;
            let Some(earlier) = &earlier else { return Ok(()) };
            earlier
        };
        let record = last
            .level_record(self.params, &batch_key(level_key, &last.salt)?, level)
            .expect("it was just read");
        let end = end.public.seq;
        if record.state.covered + u64::from(self.params.journal) <= end.0 {
            return Err(level_expired(level, end.0 - last.public.seq.0));
        }
        // A hidden level has no stash.
        let stashed = if level == 0 { self.stash_of(last, state, cells)? } else { Vec::new() };
        self.replay(level, last, &record, &mut state.tree, cells)?;
        // The stash is newer than the map.
        for (entry, block) in stashed {
            match (entry, block) {
                (SlotEntry::Data(addr), Some(block)) => {
                    state.queue.put(addr, block);
                }
                (SlotEntry::Data(addr), None) => state.tree.replay(addr, LOST_PLACE),
                _ => {}
            }
        }
        Ok(())
    }

    /// Replays the changes that the pages of the map do not have, up to batch `last`, with `said`
    /// as the record of the level.
    fn replay(
        &self,
        level: u8,
        last: &JournalHead,
        said: &LevelRecord,
        tree: &mut LevelMap,
        cells: &LevelCells,
    ) -> Result<()> {
        let level_key = &self.keys.level(level).level;
        let mut changes = MapChanges::default();
        changes.add(self.params, level, level_key, last)?;
        let mut name = last.public.previous;
        for seq in (said.state.covered + 1..last.public.seq.0).rev() {
            let head = self.require_head(BatchSeq(seq), Some(name))?;
            changes.add(self.params, level, level_key, &head)?;
            name = head.public.previous;
        }
        tree.restore(said.state, &changes.moved, cells)?;
        let early = changes.replay(tree, said.cycle);
        if said.cycle > BatchSeq(0) {
            tree.resume_cycle(said.cycle.0, |leaf| early.contains(leaf));
        }
        Ok(())
    }

    /// The last head before `end` that was written while the level was open.
    fn last_head_with_level(&self, level: u8, end: &JournalHead) -> Result<Option<JournalHead>> {
        let key = &self.keys.level(level).level;
        let seq = end.public.seq.0;
        let mut name = Some(end.public.previous);
        for seq in ((seq + 1).saturating_sub(u64::from(self.params.journal)).max(1)..seq).rev() {
            let fits = |head: &JournalHead| name.is_none_or(|name| head.name() == name);
            let head = self.journal.head(self.level0(), BatchSeq(seq), fits)?;
            name = head.as_ref().map(|head| head.public.previous);
            let Some(head) = head else { continue };
            if head.level_record(self.params, &batch_key(key, &head.salt)?, level).is_some() {
                return Ok(Some(head));
            }
        }
        Ok(None)
    }

    /// The slots of the stash that level 0 filled in a batch. `state` and `cells` are those of
    /// level 0.
    fn stash_of(
        &self,
        last: &JournalHead,
        state: &QueuedLevel,
        cells: &LevelCells,
    ) -> Result<Vec<StashedBlock>> {
        let key = batch_key(self.level0(), &last.salt)?;
        let seq = last.public.seq;
        let mut found = Vec::new();
        for (slot, entry) in last.stash(&key) {
            let mut buf = WipeOnDrop::new(vec![0u8; CELL_LEN]);
            let read = cells.check_read(self.journal.read_stash(seq, slot, &mut buf))?;
            let opened =
                read && cells.check_read(cells.open(CellPlace::in_stash(seq, slot), entry, &mut buf))?;
            if state.tree.contains(entry) {
                found.push((entry, opened.then(|| PendingBlock::new(Box::from(&buf[..BLOCK_SIZE])))));
            }
        }
        Ok(found)
    }
}

fn level_expired(level: u8, batches: u64) -> Error {
    if level == 0 {
        return corrupt("cannot open the disk")
            .found("a journal without the batches that the map of level 0 needs");
    }
    Error::new(Kind::Corrupt, format!("cannot open level {level}"))
        .found(format!("it was not open while the last {batches} batches were written"))
        .expected("that it is opened whenever the disk is opened for writing")
        .hint("its data was overwritten: open the disk without it, and restore the level from a backup")
}

/// The changes of a map by batches. They are added from the last batch back, because each head
/// names the one before it.
#[derive(Default)]
struct MapChanges {
    /// The last places of pages.
    moved: FxHashMap<(u8, u64), u64>,
    /// The batch that last wrote a leaf, with all changes before it.
    written: BTreeMap<u64, BatchSeq>,
    /// The changes, each with its batch.
    newest_first: Vec<(BatchSeq, MapChange)>,
}

/// One change of a map.
enum MapChange {
    /// A block, and its place.
    Put(u64, CellPlace),
    /// First block and length of a range.
    Clear(u64, u64),
}

/// Leaves with changes from before the running cycle began.
#[derive(Default)]
struct EarlyLeaves {
    leaves: FxHashSet<u64>,
    /// Ranges of leaves with discards.
    ranges: Vec<RangeInclusive<u64>>,
}

impl EarlyLeaves {
    fn contains(&self, leaf: u64) -> bool {
        self.leaves.contains(&leaf) || self.ranges.iter().any(|range| range.contains(&leaf))
    }
}

impl MapChanges {
    fn add(&mut self, params: &Params, level: u8, level_key: &Secret<32>, head: &JournalHead) -> Result<()> {
        let key = batch_key(level_key, &head.salt)?;
        // A level that was not open wrote nothing.
        let Some(said) = head.level_record(params, &key, level) else { return Ok(()) };
        let seq = head.public.seq;
        for (cell, entry) in head.entries(params, &key, level).into_iter().rev() {
            let place = CellPlace::new(seq, cell);
            match entry {
                SlotEntry::Data(addr) => self.newest_first.push((seq, MapChange::Put(addr, place))),
                SlotEntry::Page { depth, index } => {
                    self.moved.entry((depth, index)).or_insert(place.word());
                    if depth == 0 {
                        self.written.entry(index).or_insert(seq);
                    }
                }
                SlotEntry::Empty | SlotEntry::Trim { .. } | SlotEntry::Lost(_) => {}
            }
        }
        // The discards of a batch precede its writes.
        let trims = said.trims.into_iter().rev();
        self.newest_first.extend(trims.map(|(first, count)| (seq, MapChange::Clear(first, count))));
        Ok(())
    }

    /// Replays changes newer than the leaves that have been written. Returns the leaves with
    /// changes from before batch `cycle`.
    fn replay(self, tree: &mut LevelMap, cycle: BatchSeq) -> EarlyLeaves {
        let mut early = EarlyLeaves::default();
        let MapChanges { written, newest_first, .. } = self;
        for (seq, change) in newest_first.into_iter().rev() {
            match change {
                MapChange::Put(addr, place) => {
                    let leaf = addr / FANOUT;
                    if written.get(&leaf).is_some_and(|written| *written > seq) {
                        continue;
                    }
                    tree.replay(addr, place.word());
                    if seq < cycle {
                        early.leaves.insert(leaf);
                    }
                }
                MapChange::Clear(first, count) => {
                    let end = first.saturating_add(count);
                    let touched = written.range(first / FANOUT..=end / FANOUT);
                    let mut at = first;
                    for (leaf, _) in touched.filter(|(_, written)| **written > seq) {
                        tree.replay_clear(at, (leaf * FANOUT).saturating_sub(at).min(end.saturating_sub(at)));
                        at = at.max((leaf + 1) * FANOUT);
                    }
                    tree.replay_clear(at, end.saturating_sub(at));
                    if seq < cycle && count > 0 {
                        early.ranges.push(first / FANOUT..=(end - 1) / FANOUT);
                    }
                }
            }
        }
        early
    }
}
