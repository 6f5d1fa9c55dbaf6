//! From a medium to maps: where the log ends, and what its last stripes changed.
//!
//! A stripe tells which stripes were durable when it was closed. So a stripe that cannot be read is either among
//! those that a power cut may take, and the log ends before it, or it was damaged since: then what it held is named by
//! the echo in the stripe after it, and fails when it is read.
//!
//! Writes nothing, and finds the same end whichever levels are opened (deniability contract).

use crate::checkpoint::Checkpoint;
use crate::keys::{open_slot, stripe_key};
use crate::log::Log;
use crate::place::Place;
use crate::public::End;
use crate::source::Source;
use crate::summary::{Summary, name_of};
use crate::trims;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_levels::{Entry, MapState, Tree, corrupt};
use rustc_hash::FxHashMap;

/// Finds the end of the log. `read_only` says that the disk is opened to rescue what there is.
pub(crate) fn find_end(log: &Log, read_only: bool) -> Result<End> {
    let checkpoint = match Checkpoint::read(&*log.medium, &log.keys[0])? {
        Some(checkpoint) => checkpoint,
        None => Checkpoint { seq: last_synced(log)?, closed: false },
    };
    let durable = checkpoint.seq;
    let mut end = match log.summary_if_read(durable)? {
        Some(summary) => end_of(&summary),
        None => End { head: durable, name: [0; 16], echo: Vec::new(), doubtful: false },
    };
    // A checkpoint may be older than it should be: as long as all of what was looked at is whole, look on.
    loop {
        let from = end.head;
        let (found, looked) = look(log, from)?;
        end = follow(log, end, durable, &found)?;
        if end.head < looked || end.head >= durable + log.params.stripes {
            break;
        }
    }
    if end.head == 0 {
        return Err(Error::new(Kind::Corrupt, "cannot find the log of this disk")
            .found("not one stripe that verifies")
            .expected("at least the one that creation wrote")
            .remedy("the medium was overwritten: restore it from a backup"));
    }
    check_last(log, &end, checkpoint)?;
    let was_closed = checkpoint.closed && checkpoint.seq == end.head;
    if !read_only && !was_closed {
        check_next(log, &end)?;
    }
    Ok(end)
}

/// What lies where the summary of a stripe belongs.
enum Found {
    Summary(Box<Summary>),
    /// Another stripe's summary, or nothing.
    Other,
    /// The medium does not give it, after retries. A power cut leaves no such thing.
    Unreadable,
}

fn find(log: &Log, seq: u64) -> Result<Found> {
    let mut block = [0; BLOCK_SIZE];
    if log.read_medium(log.params.offset(seq), &mut block).is_err() {
        return Ok(Found::Unreadable);
    }
    let summary = Summary::open(&log.params, &log.keys[0], &block)?;
    Ok(summary
        .filter(|found| found.public.seq == seq)
        .map_or(Found::Other, |found| Found::Summary(Box::new(found))))
}

/// The summaries after stripe `from`, and the last that was looked for: at most four gaps, and no further than a gap in
/// which nothing is, because no more than a gap is ever in flight.
fn look(log: &Log, from: u64) -> Result<(Vec<Found>, u64)> {
    let gap = u64::from(log.params.gap);
    let mut found: Vec<Found> = Vec::new();
    let (mut seq, mut last) = (from, from);
    while seq < from + 4 * gap && seq < last + gap {
        seq += 1;
        found.push(find(log, seq)?);
        if let Some(Found::Summary(_)) = found.last() {
            last = seq;
        }
    }
    Ok((found, seq))
}

/// Follows the log from `end` over the summaries found after it.
fn follow(log: &Log, mut end: End, durable: u64, found: &[Found]) -> Result<End> {
    let from = end.head;
    let claims = found.iter().filter_map(|found| match found {
        Found::Summary(summary) => Some(summary.public.synced),
        _ => None,
    });
    let synced = claims.fold(durable, u64::max);
    let mut linked = !end.echo.is_empty();
    for (at, (seq, here)) in (from + 1..).zip(found).enumerate() {
        match here {
            Found::Summary(summary) => {
                let whole = seq <= synced
                    || ((!linked || summary.public.previous == end.name) && is_whole(log, seq, summary)?);
                if !whole {
                    break;
                }
                end = End { doubtful: end.doubtful, ..end_of(summary) };
                linked = true;
            }
            // A bad sector is no end of the log if the stripe after it was written, whole.
            Found::Unreadable if seq <= synced || is_followed(log, seq, found.get(at + 1), synced)? => {
                end.doubtful |= seq > synced;
                end = End { head: seq, name: [0; 16], echo: Vec::new(), doubtful: end.doubtful };
                linked = false;
            }
            _ if seq <= synced => {
                end = End { head: seq, name: [0; 16], echo: Vec::new(), doubtful: end.doubtful };
                linked = false;
            }
            _ => break,
        }
    }
    Ok(end)
}

/// Whether an unreadable stripe that nothing calls durable is followed by a whole one.
fn is_followed(log: &Log, seq: u64, next: Option<&Found>, synced: u64) -> Result<bool> {
    match next {
        Some(Found::Summary(next)) => Ok(seq < synced || is_whole(log, seq + 1, next)?),
        _ => Ok(false),
    }
}

/// Refuses a log whose last stripe cannot be read, unless that stripe is known to hold nothing new: what it held would
/// silently be missing.
fn check_last(log: &Log, end: &End, checkpoint: Checkpoint) -> Result<()> {
    let named = |seq: u64| -> Result<bool> { Ok(seq == 0 || log.summary_if_read(seq)?.is_some()) };
    if named(end.head)? || (checkpoint.closed && checkpoint.seq == end.head && named(end.head - 1)?) {
        return Ok(());
    }
    Err(corrupt("cannot open the disk")
        .found(format!("the last stripe of the log, {}, is damaged", end.head)))
}

/// Refuses to write to a log whose next stripe cannot be read, if it was not closed: that may be the last one that was
/// flushed, and the blocks in it would silently be older than that.
fn check_next(log: &Log, end: &End) -> Result<()> {
    let seq = end.head + 1;
    if !end.doubtful && !matches!(find(log, seq)?, Found::Unreadable) {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, "cannot open the disk for writing")
        .found(format!("a bad sector in stripe {seq}, which may be the last one that was written before the power was cut"))
        .expected("a log whose end can be read")
        .remedy(
            "open it with --read-only and copy what is there; blocks written in the last moments may be older than they \
             should be",
        ))
}

fn end_of(summary: &Summary) -> End {
    End {
        head: summary.public.seq,
        name: name_of(&summary.salt),
        echo: summary.public.entries.iter().map(|(entry, _)| *entry).collect(),
        doubtful: false,
    }
}

/// The last stripe that any summary calls durable, for a disk whose checkpoints are gone. Reads the whole ring.
fn last_synced(log: &Log) -> Result<u64> {
    let mut synced = 0;
    for at in 0..log.params.stripes {
        let mut block = [0; BLOCK_SIZE];
        if log.read_medium(log.params.offset(at), &mut block).is_err() {
            continue;
        }
        if let Some(summary) = Summary::open(&log.params, &log.keys[0], &block)? {
            synced = synced.max(summary.public.synced);
        }
    }
    Ok(synced)
}

/// Whether everything in a stripe is what it was written with: hidden slots too, of whatever level.
fn is_whole(log: &Log, seq: u64, summary: &Summary) -> Result<bool> {
    let public = log.params.public_slots() * BLOCK_SIZE;
    let mut slots = vec![0; log.params.stripe_len() - BLOCK_SIZE];
    // A power cut tears a stripe, it does not make it unreadable.
    if log.read_medium(log.slot_offset(0, seq, 0), &mut slots).is_err() {
        return Ok(true);
    }
    if !summary.has_hidden_slots(&slots[public..]) {
        return Ok(false);
    }
    let blocks = slots[..public].chunks_exact_mut(BLOCK_SIZE).zip(&summary.public.entries).enumerate();
    for (slot, (block, (entry, tag))) in blocks {
        if open_slot(&summary.key, seq, slot, entry.pack(), tag, block).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What the hidden slots of the last stripe hold, as far as open levels know.
pub(crate) fn hidden_echo(log: &Log, head: u64) -> Vec<(u8, Entry)> {
    let mut echo = vec![(0, Entry::Empty); log.params.hidden_slots()];
    for level in 1..log.levels() as u8 {
        let Ok(found) = log.head(level, head) else { continue };
        for (held, (entry, _)) in echo.iter_mut().zip(&found.entries).filter(|(_, (e, _))| *e != Entry::Empty)
        {
            *held = (level, *entry);
        }
    }
    echo
}

/// What a stripe did to a map.
enum Change {
    Put(u64, Place),
    Clear(u64, u64),
}

/// Rebuilds the map of a level. `log` must be complete up to `head`. Without a stripe that was written while the level was
/// open the level is empty.
pub(crate) fn rebuild(log: &Log, level: u8, head: u64, tree: &mut Tree, read_only: bool) -> Result<()> {
    let mut skipped = false;
    let last = last_root(log, level, head, &mut skipped)?;
    if level > 0 && skipped && last.is_some() && !read_only {
        return Err(last_of_level_missing(level));
    }
    let Some((last, root)) = last else { return Ok(()) };
    // What is older than a whole stride was carried on since, and is in a later summary.
    let first = (root.covered + 1).max((last + 1).saturating_sub(log.params.stride()));
    let mut moved: FxHashMap<(u8, u64), u64> = FxHashMap::default();
    let mut changes: Vec<Change> = Vec::new();
    for seq in first..=last {
        // Of a level that was closed meanwhile, what was overwritten is gone.
        let entries =
            if seq + log.params.stripes <= head { Vec::new() } else { entries_of(log, level, seq, last)? };
        let mut puts = Vec::new();
        for (slot, entry) in (0u8..).zip(entries) {
            let place = Place { seq, slot };
            match entry {
                Entry::Page { depth, index } => drop(moved.insert((depth, index), place.pack())),
                Entry::Data(addr) | Entry::Lost(addr) => puts.push(Change::Put(addr, place)),
                // One that was carried on was repeated where it was new.
                Entry::Trim { origin } if origin == seq => read_trims(log, level, place, &mut changes)?,
                Entry::Trim { .. } | Entry::Empty => {}
            }
        }
        // The records of a stripe come before its data.
        changes.append(&mut puts);
    }
    tree.restore(root, &moved, &Source::lenient(log, level))?;
    for change in changes {
        match change {
            Change::Put(addr, place) => tree.replay(addr, place.pack()),
            Change::Clear(first, count) => tree.replay_clear(first, count),
        }
    }
    Ok(())
}

/// The error of a hidden level whose last changes may be in a stripe that cannot be read: blocks would silently be older than
/// what was flushed.
fn last_of_level_missing(level: u8) -> Error {
    corrupt(format!("cannot open level {level} for writing"))
        .found("a damaged stripe after the last one that the level is known to have written")
        .expected("that stripe, or that the level was open in one after it")
        .remedy("open it with --read-only and copy what is there, or open the disk without it")
}

/// The last root record of a level, and its stripe.
///
/// `skipped` becomes whether a stripe after it cannot be read, which may have had a later one: but not the stripe that closed
/// the disk, which had nothing new.
fn last_root(log: &Log, level: u8, head: u64, skipped: &mut bool) -> Result<Option<(u64, MapState)>> {
    let first = (head + 1).saturating_sub(log.params.stripes).max(1);
    for seq in (first..=head).rev() {
        let Some(summary) = log.summary_if_read(seq)? else {
            *skipped |= seq < head;
            continue;
        };
        if level == 0 {
            return Ok(Some((seq, summary.public.root)));
        }
        let key = stripe_key(&log.keys[usize::from(level)], &summary.salt)?;
        if let Some(root) = summary.hidden_root(&key, usize::from(level)) {
            return Ok(Some((seq, root)));
        }
    }
    Ok(None)
}

/// What the slots of a stripe hold of a level; from the stripe after it if it cannot be read itself.
fn entries_of(log: &Log, level: u8, seq: u64, last: u64) -> Result<Vec<Entry>> {
    if let Ok(head) = log.head(level, seq) {
        return Ok(head.entries.iter().map(|(entry, _)| *entry).collect());
    }
    let next = if seq < last { log.summary_if_read(seq + 1)? } else { None };
    let Some(next) = next else {
        return Err(corrupt("cannot open the disk").found(format!(
            "two damaged stripes side by side ({seq} and {}) among those that its map still needs",
            seq + 1
        )));
    };
    if level == 0 {
        return Ok(next.public.echo);
    }
    let key = stripe_key(&log.keys[usize::from(level)], &next.salt)?;
    let slots = log.params.slots(level);
    let mut echo = vec![Entry::Empty; log.params.hidden_slots()];
    echo[slots.clone()].copy_from_slice(&next.hidden_echo(&key, slots));
    Ok(echo)
}

fn read_trims(log: &Log, level: u8, place: Place, changes: &mut Vec<Change>) -> Result<()> {
    let mut block = [0; BLOCK_SIZE];
    let entry = Entry::Trim { origin: place.seq };
    // Of one that is damaged or cannot be read, what was discarded reads as it did before.
    if log.read_listed(level, place.seq, usize::from(place.slot), entry, &mut block).is_ok() {
        changes.extend(trims::ranges(&block).map(|(first, count)| Change::Clear(first, count)));
    }
    Ok(())
}
