//! From a medium to an open disk: which batch is the last, which cells are still in the ring, what the stash holds, and
//! what the last batches changed in the maps.
//!
//! A head says which batches were durable when it was written. After those the batches end before the first that is not
//! whole or does not follow the one before it. Writes nothing, and finds the same end whichever levels are opened
//! (deniability contract).

use crate::core::{Core, Source};
use crate::head::{Head, LevelRecord, PublicPart, batch_key};
use crate::params::Params;
use crate::place::{place, stash_place};
use crate::progress::Progress;
use crate::store::Store;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, Secret};
use lacuna_levels::{Entry, FANOUT, HiddenLevel, LOST, Tree, Waiting, again, corrupt};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Heads that are read at once.
const AT_ONCE: u64 = 256;

/// Finds the last batch, and takes up where it left off. Returns its head.
pub(crate) fn find_end(store: &Store, level0: &Secret<32>) -> Result<Head> {
    let durable = last_synced(store, level0)?;
    let mut end = durable.map(|seq| need_head(store, level0, seq, None)).transpose()?;
    loop {
        let (seq, name) = end.as_ref().map_or((0, None), |head| (head.public.seq, Some(head.name())));
        let follows = |next: &Head| name.is_none_or(|name| next.public.previous == name);
        match store.head(level0, seq + 1, follows)? {
            Some(next) if store.has_record(&next) => end = Some(next),
            _ => break,
        }
    }
    let end = end.ok_or_else(|| {
        Error::new(Kind::Corrupt, "cannot find the journal of this disk")
            .found("not one batch that verifies")
            .expected("at least the one that creation wrote")
            .remedy("the medium was overwritten: restore it from a backup")
    })?;
    let PublicPart { seq, previous, applied, .. } = end.public;
    let mut in_ring = vec![(seq, end.public.cells.clone())];
    let mut name = previous;
    for seq in (applied + 1..seq).rev() {
        let head = need_head(store, level0, seq, Some(name))?;
        name = head.public.previous;
        in_ring.push((seq, head.public.cells));
    }
    store.resume(Progress::at(seq, applied), in_ring.iter().rev().map(|(seq, cells)| (*seq, &cells[..])));
    Ok(end)
}

/// The last batch that any head calls durable. Reads the whole journal, and of its second copy the parts where the first one
/// is not whole.
fn last_synced(store: &Store, level0: &Secret<32>) -> Result<Option<u64>> {
    let journal = u64::from(store.params.journal);
    let mut synced = None;
    let mut buf = vec![0; AT_ONCE as usize * BLOCK_SIZE];
    for at in (0..journal).step_by(AT_ONCE as usize) {
        let buf = &mut buf[..(journal - at).min(AT_ONCE) as usize * BLOCK_SIZE];
        for copy in 0..2 {
            read_heads(store, at, copy, buf)?;
            let mut whole = true;
            for block in buf.as_chunks::<BLOCK_SIZE>().0 {
                let unwritten = block.iter().all(|byte| *byte == 0);
                let head = if unwritten { None } else { Head::open(&store.params, level0, block)? };
                whole &= head.is_some();
                synced = synced.max(head.map(|head| head.public.synced));
            }
            if whole {
                break;
            }
        }
    }
    Ok(synced.filter(|seq| *seq > 0))
}

/// Reads a part of a copy of the journal. What the medium does not give is zeros, unless that is all of it.
fn read_heads(store: &Store, at: u64, copy: u64, buf: &mut [u8]) -> Result<()> {
    let Err(e) = store.medium.read_at(store.params.head_offset(at, copy), buf) else { return Ok(()) };
    let mut given = false;
    for (at, block) in (at..).zip(buf.chunks_exact_mut(BLOCK_SIZE)) {
        match store.medium.read_at(store.params.head_offset(at, copy), block) {
            Ok(()) => given = true,
            Err(_) => block.fill(0),
        }
    }
    if given { Ok(()) } else { Err(e) }
}

/// A head that was durable, which the batch after it calls `name`.
fn need_head(store: &Store, level0: &Secret<32>, seq: u64, name: Option<[u8; 16]>) -> Result<Head> {
    let head = store.head(level0, seq, |head| name.is_none_or(|name| head.name() == name))?;
    head.ok_or_else(|| {
        corrupt("cannot open the disk").found(format!("both copies of the head of batch {seq} are damaged"))
    })
}

/// Rebuilds the map of a level as of batch `end`, and the blocks pending for a cell.
///
/// Without a batch that was written while the level was open the level is empty.
pub(crate) fn rebuild(core: &Core, level: u8, end: &Head, state: &mut HiddenLevel) -> Result<()> {
    let store = &core.store;
    let level_key = &core.keys[usize::from(level)].level;
    let Some(last) = last_record(core, level, end)? else { return Ok(()) };
    let said =
        last.level(&store.params, &batch_key(level_key, &last.salt)?, level).expect("it was just read");
    let root = said.state;
    if root.covered + u64::from(store.params.journal) <= end.public.seq {
        return Err(not_open_for_long(level, end.public.seq - last.public.seq));
    }
    let waiting = stash_of(core, level, &last, state)?;
    if level > 0 {
        // Pages above the leaves may be among it.
        waiting.into_iter().for_each(|waiting| waiting.restore(core, level, state));
        return replay(core, level, &last, said, state);
    }
    replay(core, level, &last, said, state)?;
    // It is later than whatever the map says.
    waiting.into_iter().for_each(|waiting| waiting.restore(core, level, state));
    Ok(())
}

/// Repeats what the map has not on its pages, up to batch `last`, which says `said` of it.
fn replay(core: &Core, level: u8, last: &Head, said: LevelRecord, state: &mut HiddenLevel) -> Result<()> {
    let (store, level0) = (&core.store, &core.keys[0].level);
    let level_key = &core.keys[usize::from(level)].level;
    let (root, tree) = (said.state, &mut state.tree);
    let mut changes = Changes::default();
    changes.add(&store.params, level, level_key, last)?;
    let mut name = last.public.previous;
    for seq in (root.covered + 1..last.public.seq).rev() {
        let head = need_head(store, level0, seq, Some(name))?;
        changes.add(&store.params, level, level_key, &head)?;
        name = head.public.previous;
    }
    tree.restore(root, &changes.moved, &Source { core, level, written: &[] })?;
    let early = changes.replay(tree, said.cycle);
    if said.cycle > 0 {
        tree.resume_cycle(said.cycle, |leaf| early.has(leaf));
    }
    Ok(())
}

fn not_open_for_long(level: u8, batches: u64) -> Error {
    if level == 0 {
        return corrupt("cannot open the disk")
            .found("a journal that no longer has what the map of level 0 needs");
    }
    Error::new(Kind::Corrupt, format!("cannot open level {level}"))
        .found(format!("it was not open while the last {batches} batches were written"))
        .expected("that it is opened whenever the disk is written to")
        .remedy("what it held was overwritten: open the disk without it, and restore the level from a backup")
}

/// What batches did to a map. They are added from the last one back, for each names the one before it.
#[derive(Default)]
struct Changes {
    /// Where pages were put last.
    moved: FxHashMap<(u8, u64), u64>,
    /// The batch that last wrote a leaf, with all changes before it.
    written: BTreeMap<u64, u64>,
    /// Each with its batch.
    newest_first: Vec<(u64, Change)>,
}

/// One change of a map.
enum Change {
    Put(u64, u64),
    Clear(u64, u64),
}

/// Leaves with changes from before the cycle that was writing pages began.
#[derive(Default)]
struct Early {
    leaves: FxHashSet<u64>,
    /// Ranges of leaves of which something was discarded.
    ranges: Vec<RangeInclusive<u64>>,
}

impl Early {
    fn has(&self, leaf: u64) -> bool {
        self.leaves.contains(&leaf) || self.ranges.iter().any(|range| range.contains(&leaf))
    }
}

impl Changes {
    fn add(&mut self, params: &Params, level: u8, level_key: &Secret<32>, head: &Head) -> Result<()> {
        let key = batch_key(level_key, &head.salt)?;
        // While the level was not open it put nothing anywhere.
        let Some(said) = head.level(params, &key, level) else { return Ok(()) };
        let seq = head.public.seq;
        for (cell, entry, as_before) in head.entries(params, &key, level).into_iter().rev() {
            let place = place(seq, cell);
            match entry {
                Entry::Data(addr) => self.newest_first.push((seq, Change::Put(addr, place))),
                Entry::Page { depth, index } => {
                    self.moved.entry((depth, index)).or_insert(place);
                    if depth == 0 && !as_before {
                        self.written.entry(index).or_insert(seq);
                    }
                }
                Entry::Empty | Entry::Trim { .. } | Entry::Lost(_) => {}
            }
        }
        // What was discarded comes before what the batch put anywhere.
        let trims = said.trims.into_iter().rev();
        self.newest_first.extend(trims.map(|(first, count)| (seq, Change::Clear(first, count))));
        Ok(())
    }

    /// Repeats what leaves do not say that were written since. Returns which of it is from before batch `cycle`.
    fn replay(self, tree: &mut Tree, cycle: u64) -> Early {
        let mut early = Early::default();
        let Changes { written, newest_first, .. } = self;
        for (seq, change) in newest_first.into_iter().rev() {
            match change {
                Change::Put(addr, place) => {
                    let leaf = addr / FANOUT;
                    if written.get(&leaf).is_some_and(|written| *written > seq) {
                        continue;
                    }
                    tree.replay(addr, place);
                    if seq < cycle {
                        early.leaves.insert(leaf);
                    }
                }
                Change::Clear(first, count) => {
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

/// The last head that was written while the level was open.
fn last_record(core: &Core, level: u8, end: &Head) -> Result<Option<Head>> {
    let key = &core.keys[usize::from(level)].level;
    let seq = end.public.seq;
    let mut name = Some(end.name());
    for seq in ((seq + 1).saturating_sub(u64::from(core.store.params.journal)).max(1)..=seq).rev() {
        let fits = |head: &Head| name.is_none_or(|name| head.name() == name);
        let head = core.store.head(&core.keys[0].level, seq, fits)?;
        name = head.as_ref().map(|head| head.public.previous);
        let Some(head) = head else { continue };
        if head.level(&core.store.params, &batch_key(key, &head.salt)?, level).is_some() {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

/// What a slot of the stash holds of a level; no block if it does not verify.
struct Stashed {
    entry: Entry,
    block: Option<Box<[u8]>>,
}

/// What the slots of the stash of a batch hold of a level.
fn stash_of(core: &Core, level: u8, last: &Head, state: &HiddenLevel) -> Result<Vec<Stashed>> {
    let key = batch_key(&core.keys[usize::from(level)].level, &last.salt)?;
    let mut found = Vec::new();
    for (slot, entry) in last.stash(&core.store.params, &key, level) {
        let mut buf = vec![0; core.store.params.cell_len()];
        let read = again(|| core.store.read_stash(last.public.seq, slot, &mut buf)).is_ok();
        let place = stash_place(last.public.seq, slot);
        let opened = read && core.open_cell(level, place, entry, &mut buf).is_ok();
        buf.truncate(BLOCK_SIZE);
        if state.tree.names(entry) {
            found.push(Stashed { entry, block: opened.then(|| buf.into()) });
        }
    }
    Ok(found)
}

impl Stashed {
    /// Puts it back to where it waits.
    fn restore(self, core: &Core, level: u8, state: &mut HiddenLevel) {
        match (self.entry, self.block, level) {
            (Entry::Data(addr), Some(block), 0) => {
                state.queue.put(addr, Waiting { block, first_write: false });
            }
            (Entry::Data(addr), None, 0) => state.tree.replay(addr, LOST),
            (entry, Some(block), 1..) => {
                core.displaced()[usize::from(level)].insert(entry.pack(), block);
            }
            // What a hidden level lost is found out by the reader of its cell.
            _ => {}
        }
    }
}
