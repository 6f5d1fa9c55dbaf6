//! The read path: cached blocks come from memory, all other blocks from the store, data and
//! metadata in one round trip.
//!
//! The order of the steps makes a read correct while other threads write:
//! 1. Entries are recalled from memory *before* the cache is consulted. A block that is not in the
//!    cache then had no transaction in flight at that moment, or the transaction is over. So a
//!    recalled entry is the entry of that moment or an older one, never one of a future
//!    transaction.
//! 2. After the answer, the recalled entries must still be cached unchanged. A transaction that
//!    changed the block in between changed the entry before it began: the read starts over.
//! 3. Entries that come with the data belong to the same version of the object, whatever happens
//!    meanwhile.

use crate::buffers::Buffers;
use crate::cache::{Cache, Content, Lookup};
use crate::chain::Tails;
use crate::chunks::{Chunks, chunks_of, has_chunk};
use crate::pages::Pages;
use crate::placement::{Answered, Placement, Source};
use crate::seal::{Counter, SEAL_LEN};
use crate::seals::{Fetched, missing};
use crate::segment::{Segment, blocks_in, segments};
use crate::snapshot_table::SnapshotNumber;
use crate::snapshots::Snapshots;
use crate::version_pages::Entry;
use crate::version_table::VersionTable;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Extent, ExtentRuns, Result};
use lacuna_crypto::{BlockCipher, is_zero};
use lacuna_medium::{Found, Keys, ObjectStore, Query, ReadExtent};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// After this many disturbed tries nothing is recalled; entries then come with the data.
const TRUSTING_TRIES: usize = 4;
/// The largest gap between wanted blocks that is read along instead of splitting the extent.
const GAP: u64 = 16;
/// Pieces with queries sent together.
const BATCH: usize = 32;

/// The blocks of one segment that a read covers.
struct Piece<'b> {
    segment: Segment,
    /// Indexes in the segment.
    range: Range<u64>,
    /// The destination of the blocks; `None`: the caller needs only the entries.
    out: Option<&'b mut [u8]>,
    entries: Vec<u8>,
    /// If there is no destination: which of the blocks are written.
    written: Vec<bool>,
}

/// One attempt to read a piece.
struct Try {
    seen: Lookup,
    /// Blocks to fetch from the store, as runs.
    wanted: Vec<Range<u64>>,
    /// Blocks with recalled entries, as runs.
    recalled: Vec<Range<u64>>,
    fetch: Fetch,
    /// If set, the seal must be fetched as well and compared with this entry. It is queried
    /// separately, or comes with the entries that it binds.
    expected: Option<Entry>,
    seal_apart: bool,
    seal: [u8; SEAL_LEN],
}

/// The data to fetch for the wanted blocks.
#[derive(Default)]
struct Fetch {
    /// Chunks with entries that must come with the data.
    missing: Chunks,
    /// Start of the first wanted block to the end of the last.
    span: Range<u64>,
    /// The extents to read, including blocks in small gaps between wanted ones.
    extents: Vec<Range<u64>>,
    /// The slots that were read, if the layout keeps entries between the blocks.
    slots: Vec<u8>,
}

/// The store's answer to one attempt.
struct Answer {
    found: Found,
    seal: Option<Found>,
}

/// The read path of a disk.
pub(crate) struct Reader {
    data: Arc<dyn ObjectStore>,
    cache: Arc<Cache>,
    cipher: Arc<BlockCipher>,
    placement: Arc<dyn Placement>,
    buffers: Arc<Buffers>,
    version_table: Option<Arc<VersionTable>>,
    view: Option<(SnapshotNumber, Arc<Snapshots>)>,
    reads: AtomicU64,
}

impl Reader {
    /// There is a version table only with a cipher that authenticates. `view`: the snapshot that
    /// this reader serves, with the table that says whether it still exists.
    pub(crate) fn new(
        data: Arc<dyn ObjectStore>,
        cache: Arc<Cache>,
        cipher: Arc<BlockCipher>,
        placement: Arc<dyn Placement>,
        buffers: Arc<Buffers>,
        version_table: Option<Arc<VersionTable>>,
        view: Option<(SnapshotNumber, Arc<Snapshots>)>,
    ) -> Reader {
        let reads = AtomicU64::new(0);
        Reader { data, cache, cipher, placement, buffers, version_table, view, reads }
    }

    /// Fills `buf` from the blocks starting at `first`.
    pub(crate) fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        let mut pieces = vec![];
        let mut rest = buf;
        for (segment, range) in segments(first, blocks_in(rest)) {
            let len = (range.end - range.start) as usize * BLOCK_SIZE;
            let (out, left) = rest.split_at_mut(len);
            pieces.push(self.piece(segment, range, Some(out)));
            rest = left;
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        pieces.chunks_mut(BATCH).try_for_each(|pieces| self.read_pieces(pieces))
    }

    /// The written and unwritten runs of a range. Ciphers without metadata cannot distinguish
    /// blocks within an object.
    pub(crate) fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        let mut runs = ExtentRuns::default();
        // Segments in an unknown state are queried together.
        let mut unknown = vec![];
        for (segment, range) in segments(first, count) {
            if self.cache.is_absent(segment) {
                self.add_written(std::mem::take(&mut unknown), &mut runs)?;
                runs.add(range.end - range.start, false);
            } else {
                unknown.push(self.piece(segment, range, None));
            }
        }
        self.add_written(unknown, &mut runs)?;
        Ok(runs.finish())
    }

    /// Adds the written state of the blocks of some pieces.
    fn add_written(&self, mut pieces: Vec<Piece<'_>>, runs: &mut ExtentRuns) -> Result<()> {
        pieces.chunks_mut(BATCH).try_for_each(|pieces| self.read_pieces(pieces))?;
        pieces.iter().flat_map(|piece| &piece.written).for_each(|written| runs.add(1, *written));
        Ok(())
    }

    fn piece<'b>(&self, segment: Segment, range: Range<u64>, out: Option<&'b mut [u8]>) -> Piece<'b> {
        let entries = vec![0; (range.end - range.start) as usize * self.cipher.meta_size()];
        Piece { segment, range, out, entries, written: vec![] }
    }

    /// Reads pieces, and repeats the disturbed ones.
    fn read_pieces(&self, pieces: &mut [Piece<'_>]) -> Result<()> {
        let mut left: Vec<&mut Piece<'_>> = pieces.iter_mut().collect();
        let mut tries = 0;
        while !left.is_empty() {
            let trusting = tries < TRUSTING_TRIES;
            let plans: Result<Vec<Try>> = left.iter_mut().map(|piece| self.plan(piece, trusting)).collect();
            let mut plans = plans?;
            let answers = self.ask(left.iter_mut().map(|piece| &mut **piece).zip(&mut plans));
            let mut disturbed = vec![];
            for ((piece, plan), answer) in left.into_iter().zip(plans).zip(answers) {
                let settled = answer.and_then(|answer| self.settle(piece, plan, answer));
                let doing = || format!("reading object {} of the disk", piece.segment.0);
                if !settled.map_err(|e| e.context(doing()))? {
                    disturbed.push(piece);
                }
            }
            left = disturbed;
            tries += 1;
        }
        Ok(())
    }

    /// Collects the state in memory and plans an attempt.
    fn plan(&self, piece: &mut Piece<'_>, trusting: bool) -> Result<Try> {
        let range = piece.range.clone();
        let mut missing = if trusting {
            self.placement.recall(piece.segment, &range, &mut piece.entries)
        } else {
            chunks_of(&range)
        };
        let mut seen = self.cache.look(piece.segment, range.clone());
        if let Some(why) = seen.stranded.take() {
            return Err(why.context(format!(
                "reading what was written to {} and never reached the store",
                piece.segment
            )));
        }
        // Blocks of a direct write may or may not be in the store yet.
        missing |= seen.passing.as_ref().map_or(0, chunks_of);
        let meta = self.cipher.meta_size();
        let (mut wanted, mut recalled): (Vec<Range<u64>>, Vec<Range<u64>>) = (vec![], vec![]);
        let mut here = seen.here.iter().map(|(index, _)| *index).peekable();
        let asked = if seen.empty { 0..0 } else { range.clone() };
        for index in asked {
            if here.next_if_eq(&index).is_some() {
                continue;
            }
            if has_chunk(missing, index) {
                extend(&mut wanted, index..index + 1, 0);
                continue;
            }
            extend(&mut recalled, index..index + 1, 0);
            let at = (index - range.start) as usize * meta;
            if piece.out.is_some() && !is_zero(&piece.entries[at..at + meta]) {
                extend(&mut wanted, index..index + 1, 0);
            }
        }
        let mut extents = vec![];
        wanted.iter().for_each(|run| extend(&mut extents, run.clone(), GAP));
        let span = match (wanted.first(), wanted.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        };
        let missing = wanted.iter().fold(0, |chunks, run| chunks | chunks_of(run)) & missing;
        let is_bound = missing != 0 && self.placement.is_chained();
        let expected = match &self.version_table {
            Some(version_table) if is_bound => Some(version_table.expect_again(piece.segment)?),
            Some(version_table) if !wanted.is_empty() => version_table.expect(piece.segment)?,
            _ => None,
        };
        let seal_apart = expected.is_some() && !is_bound;
        let fetch = Fetch { missing, span, extents, slots: vec![] };
        Ok(Try { seen, wanted, recalled, fetch, expected, seal_apart, seal: [0; SEAL_LEN] })
    }

    /// Queries the store for all pieces at once. An attempt without wanted blocks gets no answer.
    fn ask<'t, 'b: 't>(
        &self,
        tries: impl Iterator<Item = (&'t mut Piece<'b>, &'t mut Try)>,
    ) -> Vec<Result<Option<Answer>>> {
        let mut queries = vec![];
        // For each piece: whether it has a query, and whether its seal has one.
        let mut shape = vec![];
        for (piece, plan) in tries {
            let asks = !plan.wanted.is_empty();
            shape.push((asks, plan.seal_apart));
            if !asks {
                continue;
            }
            if let Some(version_table) = self.version_table.as_ref().filter(|_| plan.seal_apart) {
                queries.push(version_table.place().query(piece.segment, &mut plan.seal));
            }
            queries.push(self.query(piece, &mut plan.fetch));
        }
        let answers = if queries.is_empty() { vec![] } else { self.data.query(&mut queries) };
        let mut answers = answers.into_iter();
        let mut next = || answers.next().expect("an answer for each query");
        let mut pieced = |(asks, sealed): (bool, bool)| {
            if !asks {
                return Ok(None);
            }
            let seal = if sealed { Some(next()) } else { None };
            let found = next();
            Ok(Some(Answer { seal: seal.transpose()?, found: found? }))
        };
        shape.into_iter().map(&mut pieced).collect()
    }

    /// The query of one piece.
    fn query<'t>(&self, piece: &'t mut Piece<'_>, plan: &'t mut Fetch) -> Query<'t> {
        let (slot, meta) = (self.placement.slot(), self.cipher.meta_size());
        let Piece { segment, range, out, entries, .. } = piece;
        let mut query = Query { object: segment.0, extents: vec![], keys: Keys::None };
        let source = (plan.missing != 0).then(|| self.placement.source(&plan.span, plan.missing));
        if let Some(Source::Slots) = source {
            plan.slots = self.buffers.take(plan.extents.iter().map(blocks).sum::<usize>() * slot);
            let mut rest = &mut plan.slots[..];
            for extent in &plan.extents {
                let (buf, left) = std::mem::take(&mut rest).split_at_mut(blocks(extent) * slot);
                query.extents.push(ReadExtent { offset: extent.start * slot as u64, buf });
                rest = left;
            }
            return query;
        }
        if let Some(out) = out {
            let (mut rest, mut at) = (&mut out[..], range.start);
            for extent in &plan.extents {
                let (_, left) =
                    std::mem::take(&mut rest).split_at_mut(blocks(&(at..extent.start)) * BLOCK_SIZE);
                let (buf, left) = left.split_at_mut(blocks(extent) * BLOCK_SIZE);
                query.extents.push(ReadExtent { offset: extent.start * BLOCK_SIZE as u64, buf });
                (rest, at) = (left, extent.end);
            }
        }
        match source {
            Some(Source::Bytes(offset)) if meta > 0 => {
                let buf = &mut entries[within(range, &plan.span, meta)];
                query.extents.push(ReadExtent { offset, buf });
            }
            Some(Source::Keys(keys)) => query.keys = keys,
            _ => {}
        }
        query
    }

    /// Turns the store's answer into blocks, or into their written state. `false`: the read was
    /// disturbed and must be repeated.
    fn settle(&self, piece: &mut Piece<'_>, plan: Try, answer: Option<Answer>) -> Result<bool> {
        let mut there = false;
        if let Some(answer) = answer {
            there = answer.found.version.is_some();
            if let Some((view, snapshots)) = self.view.as_ref().filter(|_| !there) {
                // If the snapshot is gone too, the object is neither missing nor zeros.
                snapshots.confirm(*view)?;
            }
            let mut tails = Tails::default();
            if let (Some(version_table), Some(expected)) = (&self.version_table, plan.expected) {
                let beside = answer.seal.as_ref().unwrap_or(&answer.found);
                let seal = version_table.place().found(beside, &plan.seal);
                let fetched = Fetched { version: beside.version, seal };
                tails = version_table.verify(piece.segment, expected, &fetched)?;
            }
            if !self.take_entries(piece, &plan, &answer.found, &tails)? {
                return Ok(false);
            }
        }
        let meta = self.cipher.meta_size();
        let still = plan.recalled.iter().all(|run| {
            let entries = &piece.entries[within(&piece.range, run, meta)];
            self.placement.is_still(piece.segment, run, entries)
        });
        if !still {
            return Ok(false);
        }
        match piece.out {
            Some(_) => self.open(piece, &plan)?,
            None => piece.written = self.written_of(piece, &plan, there),
        }
        self.buffers.give(plan.fetch.slots);
        Ok(true)
    }

    /// Takes the entries from an answer and caches the pages learned from it. `false`: the object
    /// has changed without this session.
    fn take_entries(&self, piece: &mut Piece<'_>, plan: &Try, found: &Found, tails: &Tails) -> Result<bool> {
        let (slot, meta) = (self.placement.slot(), self.cipher.meta_size());
        let fetch = &plan.fetch;
        let mut learned = vec![];
        if slot != BLOCK_SIZE {
            let mut slots = fetch.slots.chunks_exact(slot);
            for extent in &fetch.extents {
                let entries = piece.entries[within(&piece.range, extent, meta)].chunks_exact_mut(meta);
                entries.zip(&mut slots).for_each(|(entry, slot)| entry.copy_from_slice(&slot[BLOCK_SIZE..]));
            }
        } else if fetch.missing != 0 && meta > 0 {
            let entries = &mut piece.entries[within(&piece.range, &fetch.span, meta)];
            let (segment, pairs) = (piece.segment, &found.pairs);
            let answer = Answered { segment, range: &fetch.span, missing: fetch.missing, pairs, tails };
            learned = self.placement.take(&answer, entries)?;
        }
        let is_absent = found.version.is_none();
        let counter = match &self.version_table {
            Some(version_table) if is_absent => version_table.expect_again(piece.segment)?.counter,
            _ => Counter::default(),
        };
        let (mut is_missing, mut is_same) = (false, true);
        if let Some(moment) = plan.seen.moment {
            self.cache.if_quiet(piece.segment, moment, || {
                // An object with a counter existed before the query.
                is_missing = counter > Counter::default();
                is_same = self.version_table.as_ref().is_none_or(|l| l.is_same(piece.segment, found.version));
                if !is_same {
                    self.placement.forget(piece.segment);
                    return;
                }
                if is_absent && !is_missing {
                    self.cache.set_absent(piece.segment);
                }
                self.placement.learn(piece.segment, learned);
            });
        }
        if is_missing { Err(missing(piece.segment, counter)) } else { Ok(is_same) }
    }

    /// Decrypts the fetched blocks in place, and adds zeros and cached blocks.
    fn open(&self, piece: &mut Piece<'_>, plan: &Try) -> Result<()> {
        let Piece { segment, range, out: Some(out), entries, .. } = piece else { return Ok(()) };
        let (slot, meta) = (self.placement.slot(), self.cipher.meta_size());
        if slot != BLOCK_SIZE {
            let mut slots = plan.fetch.slots.chunks_exact(slot);
            for extent in &plan.fetch.extents {
                let blocks = out[within(range, extent, BLOCK_SIZE)].chunks_exact_mut(BLOCK_SIZE);
                blocks.zip(&mut slots).for_each(|(block, slot)| block.copy_from_slice(&slot[..BLOCK_SIZE]));
            }
        }
        let mut at = range.start;
        for run in &plan.wanted {
            out[within(range, &(at..run.start), BLOCK_SIZE)].fill(0);
            let blocks = &mut out[within(range, run, BLOCK_SIZE)];
            let first = segment.block(run.start).0;
            self.cipher.open_in_place(first, blocks, &entries[within(range, run, meta)])?;
            at = run.end;
        }
        out[within(range, &(at..range.end), BLOCK_SIZE)].fill(0);
        for (index, content) in &plan.seen.here {
            if let Content::Data(data) = content {
                out[within(range, &(*index..index + 1), BLOCK_SIZE)].copy_from_slice(&data[..]);
            }
        }
        Ok(())
    }

    /// Drops all cached knowledge of the store. No transaction may be in flight.
    pub(crate) fn forget_all(&self) {
        self.cache.forget_absent();
        if let Some(pages) = self.placement.pages() {
            pages.forget_all();
        }
    }

    /// Counts for `status`: reads, metadata pages found in memory, and pages not found there.
    pub(crate) fn counts(&self) -> [u64; 3] {
        let (hits, misses) = self.placement.pages().map_or((0, 0), Pages::counts);
        [self.reads.load(Ordering::Relaxed), hits, misses]
    }

    /// Which blocks are written, in the cache or in the object; `there` says whether the object
    /// exists.
    fn written_of(&self, piece: &Piece<'_>, plan: &Try, there: bool) -> Vec<bool> {
        let meta = self.cipher.meta_size();
        let mut here = plan.seen.here.iter().peekable();
        let stored = |index: u64| {
            let entry = &piece.entries[within(&piece.range, &(index..index + 1), meta)];
            !plan.seen.empty && if meta == 0 { there } else { !is_zero(entry) }
        };
        let written = |index| match here.next_if(|(cached, _)| *cached == index) {
            Some((_, content)) => matches!(content, Content::Data(_)),
            None => stored(index),
        };
        piece.range.clone().map(written).collect()
    }
}

/// Appends a run, merged with the last one if at most `gap` blocks lie between them.
fn extend(runs: &mut Vec<Range<u64>>, run: Range<u64>, gap: u64) {
    match runs.last_mut() {
        Some(last) if run.start - last.end <= gap => last.end = run.end,
        _ => runs.push(run),
    }
}

fn blocks(run: &Range<u64>) -> usize {
    (run.end - run.start) as usize
}

/// The position of the part `run` of `range` in a buffer with `unit` bytes per block.
fn within(range: &Range<u64>, run: &Range<u64>, unit: usize) -> Range<usize> {
    (run.start - range.start) as usize * unit..(run.end - range.start) as usize * unit
}
