//! From a medium to an open disk: which batch is the last, which cells are still in the ring, what waits in the stash, and
//! what the last batches changed in the maps.
//!
//! A head says which batches were durable when it was written. After those the batches end before the first that is not
//! whole or does not follow the one before it. Writes nothing, and finds the same end whichever levels are opened
//! (deniability contract).

use crate::cell::CELL_LEN;
use crate::core::{Core, Source};
use crate::head::{Head, PublicPart, batch_key};
use crate::place::{place, stash_place};
use crate::store::{Progress, Store};
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, Secret};
use lacuna_levels::{Entry, HiddenLevel, LOST, Waiting, again, corrupt};
use rustc_hash::FxHashMap;

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
            Some(next) if store.has_record(&next)? => end = Some(next),
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

/// Rebuilds the map of a level as of batch `end`, and what waits for a cell.
///
/// Without a batch that was written while the level was open the level is empty.
pub(crate) fn rebuild(core: &Core, level: u8, end: &Head, state: &mut HiddenLevel) -> Result<()> {
    let (store, level0) = (&core.store, &core.keys[0].level);
    let level_key = &core.keys[usize::from(level)].level;
    let Some(last) = last_record(core, level, end)? else { return Ok(()) };
    let root = last.level(&batch_key(level_key, &last.salt)?, level).expect("it was just read").state;
    if root.covered + u64::from(store.params.journal) <= end.public.seq {
        return Err(not_open_for_long(level, end.public.seq - last.public.seq));
    }
    let mut changes = Changes::default();
    changes.add(level, level_key, &last)?;
    let mut name = last.public.previous;
    for seq in (root.covered + 1..last.public.seq).rev() {
        let head = need_head(store, level0, seq, Some(name))?;
        changes.add(level, level_key, &head)?;
        name = head.public.previous;
    }
    state.tree.restore(root, &changes.moved, &Source { core, level, written: &[] })?;
    for change in changes.newest_first.into_iter().rev() {
        match change {
            Change::Put(addr, place) => state.tree.replay(addr, place),
            Change::Clear(first, count) => state.tree.replay_clear(first, count),
        }
    }
    restore_stash(core, level, &last, state)
}

fn not_open_for_long(level: u8, batches: u64) -> Error {
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
    newest_first: Vec<Change>,
}

/// One change of a map.
enum Change {
    Put(u64, u64),
    Clear(u64, u64),
}

impl Changes {
    fn add(&mut self, level: u8, level_key: &Secret<32>, head: &Head) -> Result<()> {
        let key = batch_key(level_key, &head.salt)?;
        for (cell, entry) in head.entries(&key).into_iter().rev() {
            let place = place(head.public.seq, cell);
            match entry {
                Entry::Data(addr) => self.newest_first.push(Change::Put(addr, place)),
                Entry::Page { depth, index } => drop(self.moved.entry((depth, index)).or_insert(place)),
                Entry::Empty | Entry::Trim { .. } | Entry::Lost(_) => {}
            }
        }
        // What was discarded comes before what the batch put anywhere.
        let trims = head.level(&key, level).unwrap_or_default().trims.into_iter().rev();
        self.newest_first.extend(trims.map(|(first, count)| Change::Clear(first, count)));
        Ok(())
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
        if head.level(&batch_key(key, &head.salt)?, level).is_some() {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

/// Puts what the slots of the stash hold of a level back to where it waits. It is later than whatever the map says.
fn restore_stash(core: &Core, level: u8, last: &Head, state: &mut HiddenLevel) -> Result<()> {
    let key = batch_key(&core.keys[usize::from(level)].level, &last.salt)?;
    let mut buf = vec![0; CELL_LEN];
    for (slot, entry) in last.stash(&key) {
        let read = again(|| core.store.read_stash(last.public.seq, slot, &mut buf)).is_ok();
        let cells = &core.keys[usize::from(level)].cells;
        let place = stash_place(last.public.seq, slot);
        let opened = read && cells.entry(&buf) == Some(entry) && cells.open(place, entry, &mut buf)?.is_ok();
        let block: Box<[u8]> = buf[..BLOCK_SIZE].into();
        match (entry, opened, level) {
            (Entry::Data(addr), true, 0) if addr < core.store.params.blocks => {
                state.queue.put(addr, Waiting { block, first_write: false });
            }
            (Entry::Data(addr), false, 0) => state.tree.replay(addr, LOST),
            (_, true, 1..) => core.displaced()[usize::from(level)].put(entry.pack(), block),
            // What a hidden level lost is found out by whoever looks in its cell.
            _ => {}
        }
    }
    Ok(())
}
