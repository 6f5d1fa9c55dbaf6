//! From a medium to an open disk: which batch is the last, which cells are still in the ring, what waits in the stash, and
//! what the last batches changed in the maps.
//!
//! A head says which batches were durable when it was written. After those the batches end before the first that is not
//! whole or does not follow the one before it. Writes nothing, and finds the same end whichever levels are opened
//! (deniability contract).

use crate::cell::{CELL_LEN, Home};
use crate::core::{Core, Source};
use crate::head::{Head, batch_key};
use crate::params::JOURNAL_START;
use crate::store::{Progress, Store};
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, Secret};
use lacuna_levels::{Entry, HiddenLevel, LOST, Waiting, WriteKey, corrupt};
use rustc_hash::FxHashMap;

/// Heads that are read at once.
const AT_ONCE: u64 = 256;

/// Finds the last batch, and takes up where it left off. Returns its head.
pub(crate) fn find_end(store: &Store, level0: &Secret<32>) -> Result<Head> {
    let durable = last_synced(store, level0)?;
    let mut end = durable.map(|seq| need_head(store, level0, seq)).transpose()?;
    loop {
        let (seq, name) = end.as_ref().map_or((0, None), |head| (head.public.seq, Some(head.name())));
        match store.head(level0, seq + 1)? {
            Some(next)
                if name.is_none_or(|name| next.public.previous == name) && store.has_record(&next)? =>
            {
                end = Some(next);
            }
            _ => break,
        }
    }
    let end = end.ok_or_else(|| {
        Error::new(Kind::Corrupt, "cannot find the journal of this disk")
            .found("not one batch that verifies")
            .expected("at least the one that creation wrote")
            .remedy("the medium was overwritten: restore it from a backup")
    })?;
    let applied = end.public.applied;
    let in_ring: Vec<Head> =
        (applied + 1..=end.public.seq).map(|seq| need_head(store, level0, seq)).collect::<Result<_>>()?;
    let cells = in_ring.iter().map(|head| (head.public.seq, &head.public.cells[..]));
    store.resume(Progress::at(end.public.seq, applied), cells);
    Ok(end)
}

/// The last batch that any head calls durable. Reads the whole journal.
fn last_synced(store: &Store, level0: &Secret<32>) -> Result<Option<u64>> {
    let journal = u64::from(store.params.journal);
    let mut synced = None;
    let mut buf = vec![0; AT_ONCE as usize * BLOCK_SIZE];
    // The second copies as well only if the first ones are no use.
    for copy in 0..2 {
        for at in (0..journal).step_by(AT_ONCE as usize) {
            let some = (journal - at).min(AT_ONCE) as usize * BLOCK_SIZE;
            let from = JOURNAL_START + (copy * journal + at) * BLOCK_SIZE as u64;
            store.medium.read_at(from, &mut buf[..some])?;
            for block in buf[..some].as_chunks::<BLOCK_SIZE>().0 {
                let unwritten = block.iter().all(|byte| *byte == 0);
                let head = if unwritten { None } else { Head::open(&store.params, level0, block)? };
                synced = synced.max(head.map(|head| head.public.synced));
            }
        }
        if synced.is_some() {
            break;
        }
    }
    Ok(synced.filter(|seq| *seq > 0))
}

/// A head that was durable.
fn need_head(store: &Store, level0: &Secret<32>, seq: u64) -> Result<Head> {
    let head = store.head(level0, seq)?;
    head.ok_or_else(|| {
        corrupt("cannot open the disk").found(format!("both copies of the head of batch {seq} are damaged"))
    })
}

/// Rebuilds the map of a level as of batch `end`, and what waits for a cell.
///
/// Without a batch that was written while the level was open the level is empty.
pub(crate) fn rebuild(core: &Core, level: u8, end: &Head, state: &mut HiddenLevel) -> Result<()> {
    let (store, level0) = (&core.store, &core.keys[0].level);
    let Some(last) = last_record(core, level, end.public.seq)? else { return Ok(()) };
    let key = batch_key(&core.keys[usize::from(level)].level, &last.salt)?;
    let root = last.level(&key, level).expect("it was just read").state;
    restore_stash(core, level, &last, &key, state)?;
    if root.covered + u64::from(store.params.journal) <= end.public.seq {
        return Err(Error::new(Kind::Corrupt, format!("cannot open level {level}"))
            .found(format!(
                "it was not open while the last {} batches were written",
                end.public.seq - last.public.seq
            ))
            .expected("that it is opened whenever the disk is written to")
            .remedy(
                "what it held was overwritten: open the disk without it, and restore the level from a backup",
            ));
    }
    let mut moved: FxHashMap<(u8, u64), u64> = FxHashMap::default();
    let mut changes = Vec::new();
    for seq in root.covered + 1..=last.public.seq {
        let head = need_head(store, level0, seq)?;
        let key = batch_key(&core.keys[usize::from(level)].level, &head.salt)?;
        // What was discarded comes before what the batch put anywhere.
        let trims = head.level(&key, level).unwrap_or_default().trims;
        changes.extend(trims.into_iter().map(|(first, count)| Change::Clear(first, count)));
        for (cell, entry) in head.entries(&key) {
            match entry {
                Entry::Data(addr) => changes.push(Change::Put(addr, cell + 1)),
                Entry::Page { depth, index } => drop(moved.insert((depth, index), cell + 1)),
                Entry::Empty | Entry::Trim { .. } | Entry::Lost(_) => {}
            }
        }
    }
    state.tree.restore(root, &moved, &Source { core, level, written: &[] })?;
    for change in changes {
        match change {
            Change::Put(addr, place) => state.tree.replay(addr, place),
            Change::Clear(first, count) => state.tree.replay_clear(first, count),
        }
    }
    Ok(())
}

/// What a batch did to a map.
enum Change {
    Put(u64, u64),
    Clear(u64, u64),
}

/// The last head that was written while the level was open.
fn last_record(core: &Core, level: u8, end: u64) -> Result<Option<Head>> {
    let key = &core.keys[usize::from(level)].level;
    for seq in ((end + 1).saturating_sub(u64::from(core.store.params.journal)).max(1)..=end).rev() {
        let Some(head) = core.store.head(&core.keys[0].level, seq)? else { continue };
        if head.level(&batch_key(key, &head.salt)?, level).is_some() {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

/// Puts what the slots of the stash hold of a level back to where it waits.
fn restore_stash(core: &Core, level: u8, last: &Head, key: &WriteKey, state: &mut HiddenLevel) -> Result<()> {
    let mut buf = vec![0; CELL_LEN];
    for (slot, entry) in last.stash(key) {
        core.store.read_stash(last.public.seq, slot, &mut buf)?;
        let cells = &core.keys[usize::from(level)].cells;
        let home = Home::Stash(slot);
        let opened = cells.entry(&buf) == Some(entry) && cells.open(home, entry, &mut buf)?.is_ok();
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
