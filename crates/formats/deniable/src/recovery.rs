//! Recovery: finds the end of the log, and rebuilds the maps from its last stripes.
//!
//! A stripe names a stripe that was durable, with all before it, when it was closed. If a stripe
//! does not verify and no stripe calls it durable, a power cut may have torn it, and the log ends
//! before it. If it is called durable, or is a bad sector before a whole stripe, it was damaged
//! later: the echo in the next stripe names its blocks, and reads of them fail.
//!
//! Writes nothing, and finds the same end whichever levels are opened (deniability contract).

mod whole_stripes;

use crate::discard_record;
use crate::log::Log;
use crate::log::checkpoint::Checkpoint;
use crate::log::summary::{LogEnd, Summary};
use crate::place::{Slot, SlotPlace, StripeSeq};
use crate::stripe::map_page_reader::MapPageReader;
use crate::stripe::slot_buffer::LevelEntries;
use lacuna_contracts::{BLOCK_SIZE, Error, Hint, Kind, Result, Setting};
use lacuna_levels::{LevelMap, MapState, SlotEntry, corrupt};
use rustc_hash::FxHashMap;
use whole_stripes::WholeStripes;

/// Summaries of level 0 that the medium fetches beside the summary in use. Each lies alone, so a
/// medium needs many requests at once to read them at its speed.
const FETCHED_AHEAD: u64 = 64;

/// The end of the log as far as it has been followed.
struct FollowedEnd {
    last: LogEnd,
    /// The summary of the last stripe, as it was read when the end was found.
    summary: Option<Box<Summary>>,
    /// Whether the log goes on after an unreadable stripe that nothing calls durable: the stripes
    /// before and after it may not belong together.
    is_doubtful: bool,
}

impl FollowedEnd {
    /// An end at stripe `head`, without its summary.
    fn unknown(head: StripeSeq, doubtful: bool) -> FollowedEnd {
        FollowedEnd {
            last: LogEnd { head, name: [0; 16], echo: Vec::new() },
            summary: None,
            is_doubtful: doubtful,
        }
    }

    /// An end at the stripe with this summary.
    fn known(summary: Box<Summary>, doubtful: bool) -> FollowedEnd {
        FollowedEnd { last: summary.end(), summary: Some(summary), is_doubtful: doubtful }
    }

    fn head(&self) -> StripeSeq {
        self.last.head
    }
}

/// Finds the end of the log, and the summary to rebuild maps from: that of the last stripe, or of
/// the one before it if closing wrote the last one and it is damaged. The summary is not read again
/// for the maps: a second read may give different bytes, and end and maps would be of different
/// times. `read_only` says that the disk is opened to rescue data.
pub(crate) fn find_end(log: &Log, read_only: bool) -> Result<(LogEnd, Option<Box<Summary>>)> {
    let checkpoint = match Checkpoint::read(log.reader(), log.keys().level(0))? {
        Some(checkpoint) => checkpoint,
        None => Checkpoint { seq: last_synced(log)?, closed: false },
    };
    let durable = checkpoint.seq;
    let mut end = match log.summary_if_readable(durable)? {
        Some(summary) => FollowedEnd::known(Box::new(summary), false),
        None => FollowedEnd::unknown(durable, false),
    };
    // The checkpoint may be stale: look further as long as all stripes looked at belong to the log.
    loop {
        let from = end.head();
        let (found, looked) = read_summaries_after(log, from)?;
        end = follow(log, end, durable, found);
        if end.head() < looked || end.head() >= durable + log.params().stripes {
            break;
        }
    }
    if end.head() == StripeSeq::NONE {
        return Err(Error::new(Kind::Corrupt, "cannot find the log of this disk")
            .found("not one stripe that verifies")
            .expected("at least the stripe that creation wrote")
            .hint("the medium was overwritten: restore it from a backup"));
    }
    let was_closed = checkpoint.closed && checkpoint.seq == end.head();
    let read = end.summary.take();
    let summary = last_summary(log, end.head(), read, was_closed)?;
    if !read_only && !was_closed {
        check_next(log, &end)?;
    }
    Ok((end.last, summary))
}

/// The content of the place where the summary of a stripe belongs.
enum SummaryRead {
    Summary(Box<Summary>),
    /// Another stripe's summary, or none.
    Other,
    /// The medium cannot read it, after retries. A power cut does not cause this.
    Unreadable,
}

fn read_summary(log: &Log, seq: StripeSeq) -> Result<SummaryRead> {
    let mut block = [0; BLOCK_SIZE];
    match log.reader().read(0, log.params().offset(seq), &mut block) {
        Err(e) if e.kind() == Kind::Io => return Ok(SummaryRead::Unreadable),
        read => read?,
    }
    let summary = log.open_summary(seq, &block)?;
    Ok(summary.map_or(SummaryRead::Other, |found| SummaryRead::Summary(Box::new(found))))
}

/// The summaries after stripe `from`, and the last stripe looked at. The search ends after four
/// gaps, or after a gap without a summary, because no more than a gap is ever in flight.
fn read_summaries_after(log: &Log, from: StripeSeq) -> Result<(Vec<SummaryRead>, StripeSeq)> {
    let gap = u64::from(log.params().gap);
    let mut found: Vec<SummaryRead> = Vec::new();
    let (mut looked, mut last) = (from, from);
    for seq in fetching_summaries(log, 0, from.next(), from + 4 * gap) {
        if looked >= last + gap {
            break;
        }
        looked = seq;
        found.push(read_summary(log, seq)?);
        if let Some(SummaryRead::Summary(_)) = found.last() {
            last = seq;
        }
    }
    Ok((found, looked))
}

/// The stripes from `first` to `last`, whose summaries the caller reads in this order for a level.
/// The medium fetches those of level 0 ahead.
///
/// Deniability contract: the fetched summaries follow from the public part of the log alone.
/// Nothing is fetched for a hidden level, because its reads leave nothing in the system's cache.
fn fetching_summaries(
    log: &Log,
    level: u8,
    first: StripeSeq,
    last: StripeSeq,
) -> impl Iterator<Item = StripeSeq> {
    let fetch = move |seq: StripeSeq| {
        if level == 0 && seq <= last {
            log.reader().will_read_public(log.params().offset(seq));
        }
    };
    (0..FETCHED_AHEAD).for_each(|ahead| fetch(first + ahead));
    first.up_to(last).inspect(move |seq| fetch(*seq + FETCHED_AHEAD))
}

/// Follows the log over the summaries found after `end`.
fn follow(log: &Log, mut end: FollowedEnd, durable: StripeSeq, found: Vec<SummaryRead>) -> FollowedEnd {
    let claims = found.iter().filter_map(|found| match found {
        SummaryRead::Summary(summary) => Some(summary.public.synced),
        _ => None,
    });
    let synced = claims.fold(durable, StripeSeq::max);
    let unproven = found.iter().filter_map(|found| match found {
        SummaryRead::Summary(summary) if summary.public.seq > synced => Some(&**summary),
        _ => None,
    });
    let whole_stripes = WholeStripes::ahead(log, &unproven.collect::<Vec<_>>());
    let mut linked = !end.last.echo.is_empty();
    let mut found = found.into_iter().peekable();
    while let Some(here) = found.next() {
        let seq = end.head().next();
        match here {
            SummaryRead::Summary(summary) => {
                let whole = seq <= synced
                    || ((!linked || summary.public.previous == end.last.name)
                        && whole_stripes.has(log, &summary));
                if !whole {
                    break;
                }
                end = FollowedEnd::known(summary, end.is_doubtful);
                linked = true;
            }
            // An unreadable stripe is not the end of the log if the stripe after it was written
            // whole.
            SummaryRead::Unreadable
                if seq <= synced || is_followed(log, seq, found.peek(), synced, &whole_stripes) =>
            {
                end = FollowedEnd::unknown(seq, end.is_doubtful || seq > synced);
                linked = false;
            }
            _ if seq <= synced => {
                end = FollowedEnd::unknown(seq, end.is_doubtful);
                linked = false;
            }
            _ => break,
        }
    }
    end
}

/// Whether an unreadable stripe that nothing calls durable is followed by a whole one.
fn is_followed(
    log: &Log,
    seq: StripeSeq,
    next: Option<&SummaryRead>,
    synced: StripeSeq,
    whole_stripes: &WholeStripes,
) -> bool {
    matches!(next, Some(SummaryRead::Summary(next)) if seq < synced || whole_stripes.has(log, next))
}

/// The summary of the last stripe, which may have been read before. Errors: it cannot be read; the
/// blocks of the stripe would silently be missing. If closing wrote that stripe, it holds nothing
/// new: then the result is the summary of the stripe before, if there is one.
fn last_summary(
    log: &Log,
    head: StripeSeq,
    read: Option<Box<Summary>>,
    was_closed: bool,
) -> Result<Option<Box<Summary>>> {
    let again =
        |seq: StripeSeq| -> Result<Option<Box<Summary>>> { Ok(log.summary_if_readable(seq)?.map(Box::new)) };
    if let Some(summary) = read.map_or_else(|| again(head), |summary| Ok(Some(summary)))? {
        return Ok(Some(summary));
    }
    let before = head.back(1);
    let found = before.filter(|_| was_closed).map_or(Ok(None), again)?;
    if found.is_some() || (was_closed && before.is_none()) {
        return Ok(found);
    }
    Err(corrupt("cannot open the disk").found(format!("the last stripe of the log, {head}, is damaged")))
}

/// Refuses to write to a log that was not closed if its next stripe cannot be read, or its end is
/// doubtful: the last flushed stripe may be there, and its blocks would silently be older.
fn check_next(log: &Log, end: &FollowedEnd) -> Result<()> {
    let seq = end.head().next();
    if !end.is_doubtful && !matches!(read_summary(log, seq)?, SummaryRead::Unreadable) {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, "cannot open the disk for writing")
        .found(format!(
            "a bad sector in stripe {seq}, which may be the last one that was written before the power was cut"
        ))
        .expected("a log with a readable end")
        .hint(rescue("; blocks written in the last moments may be older than they should be")))
}

/// The advice to open the disk to read it, followed by `more`.
fn rescue(more: &'static str) -> Hint {
    Hint::from("open it with ").setting(Setting("read_only")).text(" and copy its content").text(more)
}

/// The last stripe that any summary calls durable, for a disk without a valid checkpoint. Reads the
/// whole ring.
fn last_synced(log: &Log) -> Result<StripeSeq> {
    let (mut synced, mut any, mut failed) = (StripeSeq::NONE, false, None);
    for at in fetching_summaries(log, 0, StripeSeq::NONE, StripeSeq(log.params().stripes - 1)) {
        let mut block = [0; BLOCK_SIZE];
        match log.reader().read(0, log.params().offset(at), &mut block) {
            Err(e) if e.kind() == Kind::Io => {
                failed.get_or_insert(e);
                continue;
            }
            read => read?,
        }
        if let Some(summary) = Summary::open(log.params(), log.keys().level(0), &block)? {
            any = true;
            synced = synced.max(summary.public.synced);
        }
    }
    match failed {
        // Nothing shows that the medium was overwritten.
        Some(e) if !any => Err(e.context("cannot find the log of this disk")),
        _ => Ok(synced),
    }
}

/// The entries of the hidden slots of the last stripe, as far as open levels show them.
pub(crate) fn hidden_echo(log: &Log, head: StripeSeq) -> LevelEntries {
    let mut echo = vec![(0, SlotEntry::Empty); log.params().hidden_slots()];
    for level in log.keys().open_hidden() {
        let Ok(found) = log.level_summary(level, head) else { continue };
        for (held, entry) in echo.iter_mut().zip(found.entries()).filter(|(_, e)| *e != SlotEntry::Empty) {
            *held = (level, entry);
        }
    }
    echo
}

/// A change that a stripe made to a map.
enum MapChange {
    Put(u64, SlotPlace),
    Clear(u64, u64),
}

/// The last stripe of a log, and its summary if it was read, as [`find_end`] returns them.
#[derive(Clone, Copy)]
pub(crate) struct LastStripe<'s> {
    pub(crate) seq: StripeSeq,
    pub(crate) summary: Option<&'s Summary>,
}

/// Rebuilds the map of a level. `log` must be complete up to the last stripe. The level is empty if
/// no stripe was written while it was open.
pub(crate) fn rebuild(
    log: &Log,
    level: u8,
    end: LastStripe<'_>,
    tree: &mut LevelMap,
    read_only: bool,
) -> Result<()> {
    let mut skipped = false;
    let last = last_root(log, level, end, &mut skipped)?;
    if level > 0 && skipped && last.is_some() && !read_only {
        return Err(last_of_level_missing(level));
    }
    let Some((last, root)) = last else { return Ok(()) };
    // Blocks older than a whole stride were carried since, and are in a later summary.
    let first = StripeSeq((root.covered + 1).max((last.0 + 1).saturating_sub(log.params().stride())));
    let mut moved: FxHashMap<(u8, u64), u64> = FxHashMap::default();
    let mut changes: Vec<MapChange> = Vec::new();
    for seq in fetching_summaries(log, level, first, last) {
        // If the level was closed meanwhile, its overwritten blocks are gone.
        let entries = if seq + log.params().stripes <= end.seq {
            Vec::new()
        } else {
            entries_of(log, level, seq, last)?
        };
        let mut puts = Vec::new();
        for (slot, entry) in Slot::all(entries.len()).zip(entries) {
            let place = SlotPlace { seq, slot };
            match entry {
                SlotEntry::Page { depth, index } => drop(moved.insert((depth, index), place.pack())),
                SlotEntry::Data(addr) | SlotEntry::Lost(addr) => puts.push(MapChange::Put(addr, place)),
                // A record that was carried was replayed where it was new.
                SlotEntry::Trim { origin } if origin == seq.0 => read_trims(log, level, place, &mut changes)?,
                SlotEntry::Trim { .. } | SlotEntry::Empty => {}
            }
        }
        // The records of a stripe come before its data.
        changes.append(&mut puts);
    }
    tree.restore(root, &moved, &MapPageReader::lenient(log, level))?;
    for change in changes {
        match change {
            MapChange::Put(addr, place) => tree.replay(addr, place.pack()),
            MapChange::Clear(first, count) => tree.replay_clear(first, count),
        }
    }
    Ok(())
}

/// The error of a hidden level that may have its last changes in a stripe that cannot be read:
/// blocks would silently be older than the flushed ones.
fn last_of_level_missing(level: u8) -> Error {
    corrupt(format!("cannot open level {level} for writing"))
        .found("a damaged stripe after the last one that the level is known to have written")
        .expected("that stripe, or a later one written with the level open")
        .hint(rescue(", or open the disk without the level"))
}

/// The last root record of a level, and its stripe.
///
/// Sets `skipped` if a later stripe cannot be read, which may have had a later record. The stripe
/// that closed the disk does not count, because it has nothing new.
fn last_root(
    log: &Log,
    level: u8,
    LastStripe { seq: head, summary: last }: LastStripe<'_>,
    skipped: &mut bool,
) -> Result<Option<(StripeSeq, MapState)>> {
    let first = head.back(log.params().stripes - 1).unwrap_or(StripeSeq(1));
    for seq in first.up_to(head).rev() {
        let read = match last {
            Some(last) if last.public.seq == seq => None,
            _ => log.summary_if_readable(seq)?,
        };
        let Some(summary) = read.as_ref().or(last.filter(|last| last.public.seq == seq)) else {
            *skipped |= seq < head;
            continue;
        };
        if level == 0 {
            return Ok(Some((seq, summary.public.root)));
        }
        let key = log.keys().stripe_key(level, &summary.salt)?;
        if let Some(root) = summary.hidden_root(&key, level) {
            return Ok(Some((seq, root)));
        }
    }
    Ok(None)
}

/// The entries of a level in a stripe; taken from the echo in the next stripe if the stripe cannot
/// be read.
fn entries_of(log: &Log, level: u8, seq: StripeSeq, last: StripeSeq) -> Result<Vec<SlotEntry>> {
    match log.level_summary(level, seq) {
        Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Io) => {}
        head => return Ok(head?.entries().collect()),
    }
    let next = if seq < last { log.summary_if_readable(seq.next())? } else { None };
    let Some(next) = next else {
        return Err(corrupt("cannot open the disk").found(format!(
            "two damaged stripes side by side ({seq} and {}) in the part that its map still needs",
            seq.next()
        )));
    };
    if level == 0 {
        return Ok(next.public.echo);
    }
    let key = log.keys().stripe_key(level, &next.salt)?;
    let slots = log.params().slots(level);
    let mut echo = vec![SlotEntry::Empty; log.params().hidden_slots()];
    echo[slots.clone()].copy_from_slice(&next.hidden_echo(&key, slots));
    Ok(echo)
}

fn read_trims(log: &Log, level: u8, place: SlotPlace, changes: &mut Vec<MapChange>) -> Result<()> {
    let mut block = [0; BLOCK_SIZE];
    let entry = SlotEntry::Trim { origin: place.seq.0 };
    // If a record is damaged or cannot be read, its discarded blocks read as they did before.
    match log.read_slots(level, place, &[entry], &mut block) {
        Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Io) => return Ok(()),
        read => read?,
    }
    changes.extend(discard_record::ranges(&block).map(|(first, count)| MapChange::Clear(first, count)));
    Ok(())
}
