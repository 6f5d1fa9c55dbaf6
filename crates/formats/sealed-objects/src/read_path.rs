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

use crate::layouts::chain::ChainTails;
use crate::layouts::chunks::{ChunkSet, chunks_of, has_chunk};
use crate::layouts::metadata_pages::MetadataPages;
use crate::layouts::placement::{EntryAnswer, EntrySource, Placement};
use crate::segment::{Segment, blocks_in, segments_of};
use crate::snapshots::DiskSnapshots;
use crate::snapshots::table::SnapshotNumber;
use crate::versions::pages::{StoreVersion, VersionEntry};
use crate::versions::seal::{SEAL_LEN, WriteCounter};
use crate::versions::seals::{FetchedSeal, missing_object};
use crate::versions::table::VersionTable;
use crate::writing::buffers::CiphertextBuffers;
use crate::writing::dirty_cache::{CacheLookup, DirtyCache};
use crate::writing::pending_segment::BlockContent;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Extent, ExtentBuilder, Result};
use lacuna_crypto::{BlockCipher, is_zero};
use lacuna_medium::{KeySelection, ObjectStore, Query, QueryAnswer, ReadExtent};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// After this many disturbed tries nothing is recalled; entries then come with the data.
const RECALL_ATTEMPTS: usize = 4;
/// The largest gap between wanted blocks that is read along instead of splitting the extent.
const GAP: u64 = 16;
/// Pieces with queries sent together.
const BATCH: usize = 32;

/// The blocks of one segment that a read covers.
struct ReadPiece<'b> {
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
struct ReadAttempt {
    lookup: CacheLookup,
    /// Blocks to fetch from the store, as runs.
    wanted: Vec<Range<u64>>,
    /// Blocks with recalled entries, as runs.
    recalled: Vec<Range<u64>>,
    fetch: FetchPlan,
    /// If set, the seal must be fetched as well and compared with this entry. It is queried
    /// separately, or comes with the entries that it binds.
    expected: Option<VersionEntry>,
    needs_seal_query: bool,
    seal: [u8; SEAL_LEN],
}

/// The data to fetch for the wanted blocks.
#[derive(Default)]
struct FetchPlan {
    /// Chunks with entries that must come with the data.
    missing: ChunkSet,
    /// Start of the first wanted block to the end of the last.
    span: Range<u64>,
    /// The extents to read, including blocks in small gaps between wanted ones.
    extents: Vec<Range<u64>>,
    /// The slots that were read, if the layout keeps entries between the blocks.
    slots: Vec<u8>,
}

/// The store's answer to one attempt.
struct PieceAnswer {
    found: QueryAnswer,
    seal: Option<QueryAnswer>,
}

/// The read path of a disk.
pub(crate) struct ReadPath {
    data: Arc<dyn ObjectStore>,
    cache: Arc<DirtyCache>,
    cipher: Arc<BlockCipher>,
    placement: Arc<dyn Placement>,
    buffers: Arc<CiphertextBuffers>,
    version_table: Option<Arc<VersionTable>>,
    view: Option<(SnapshotNumber, Arc<DiskSnapshots>)>,
    reads: AtomicU64,
}

impl ReadPath {
    /// There is a version table only with a cipher that authenticates. `view`: the snapshot that
    /// this reader serves, with the table that says whether it still exists.
    pub(crate) fn new(
        data: Arc<dyn ObjectStore>,
        cache: Arc<DirtyCache>,
        cipher: Arc<BlockCipher>,
        placement: Arc<dyn Placement>,
        buffers: Arc<CiphertextBuffers>,
        version_table: Option<Arc<VersionTable>>,
        view: Option<(SnapshotNumber, Arc<DiskSnapshots>)>,
    ) -> ReadPath {
        let reads = AtomicU64::new(0);
        ReadPath { data, cache, cipher, placement, buffers, version_table, view, reads }
    }

    /// Fills `buf` from the blocks starting at `first`.
    pub(crate) fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        let mut pieces = vec![];
        let mut rest = buf;
        for (segment, range) in segments_of(first, blocks_in(rest)) {
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
        let mut runs = ExtentBuilder::default();
        // Segments in an unknown state are queried together.
        let mut unknown = vec![];
        for (segment, range) in segments_of(first, count) {
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
    fn add_written(&self, mut pieces: Vec<ReadPiece<'_>>, runs: &mut ExtentBuilder) -> Result<()> {
        pieces.chunks_mut(BATCH).try_for_each(|pieces| self.read_pieces(pieces))?;
        pieces.iter().flat_map(|piece| &piece.written).for_each(|written| runs.add(1, *written));
        Ok(())
    }

    fn piece<'b>(&self, segment: Segment, range: Range<u64>, out: Option<&'b mut [u8]>) -> ReadPiece<'b> {
        let entries = vec![0; (range.end - range.start) as usize * self.cipher.meta_size()];
        ReadPiece { segment, range, out, entries, written: vec![] }
    }

    /// Reads pieces, and repeats the disturbed ones.
    fn read_pieces(&self, pieces: &mut [ReadPiece<'_>]) -> Result<()> {
        let mut left: Vec<&mut ReadPiece<'_>> = pieces.iter_mut().collect();
        let mut attempts = 0;
        while !left.is_empty() {
            let may_recall = attempts < RECALL_ATTEMPTS;
            let plans: Result<Vec<ReadAttempt>> =
                left.iter_mut().map(|piece| self.plan_attempt(piece, may_recall)).collect();
            let mut plans = plans?;
            let answers = self.query_store(left.iter_mut().map(|piece| &mut **piece).zip(&mut plans));
            let mut disturbed = vec![];
            for ((piece, plan), answer) in left.into_iter().zip(plans).zip(answers) {
                let settled = answer.and_then(|answer| self.complete(piece, plan, answer));
                let doing = || format!("reading object {} of the disk", piece.segment.0);
                if !settled.map_err(|e| e.context(doing()))? {
                    disturbed.push(piece);
                }
            }
            left = disturbed;
            attempts += 1;
        }
        Ok(())
    }

    /// Collects the state in memory and plans an attempt.
    fn plan_attempt(&self, piece: &mut ReadPiece<'_>, may_recall: bool) -> Result<ReadAttempt> {
        let range = piece.range.clone();
        let mut missing = if may_recall {
            self.placement.recall(piece.segment, &range, &mut piece.entries)
        } else {
            chunks_of(&range)
        };
        let mut lookup = self.cache.lookup(piece.segment, range.clone());
        if let Some(why) = lookup.write_failure.take() {
            return Err(why
                .context(format!("reading data written to {} that never reached the store", piece.segment)));
        }
        // Blocks of a direct write may or may not be in the store yet.
        missing |= lookup.bypassing.as_ref().map_or(0, chunks_of);
        let meta = self.cipher.meta_size();
        let (mut wanted, mut recalled): (Vec<Range<u64>>, Vec<Range<u64>>) = (vec![], vec![]);
        let mut cached_blocks = lookup.cached.iter().map(|(index, _)| *index).peekable();
        let uncached_range = if lookup.rest_is_zeros { 0..0 } else { range.clone() };
        for index in uncached_range {
            if cached_blocks.next_if_eq(&index).is_some() {
                continue;
            }
            if has_chunk(missing, index) {
                append_run(&mut wanted, index..index + 1, 0);
                continue;
            }
            append_run(&mut recalled, index..index + 1, 0);
            let at = (index - range.start) as usize * meta;
            if piece.out.is_some() && !is_zero(&piece.entries[at..at + meta]) {
                append_run(&mut wanted, index..index + 1, 0);
            }
        }
        let mut extents = vec![];
        wanted.iter().for_each(|run| append_run(&mut extents, run.clone(), GAP));
        let span = match (wanted.first(), wanted.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        };
        let missing = wanted.iter().fold(0, |chunks, run| chunks | chunks_of(run)) & missing;
        let is_bound = missing != 0 && self.placement.is_chained();
        let expected = match &self.version_table {
            Some(version_table) if is_bound => Some(version_table.expected_entry(piece.segment)?),
            Some(version_table) if !wanted.is_empty() => version_table.unverified_entry(piece.segment)?,
            _ => None,
        };
        let needs_seal_query = expected.is_some() && !is_bound;
        let fetch = FetchPlan { missing, span, extents, slots: vec![] };
        Ok(ReadAttempt { lookup, wanted, recalled, fetch, expected, needs_seal_query, seal: [0; SEAL_LEN] })
    }

    /// Queries the store for all pieces at once. An attempt without wanted blocks gets no answer.
    fn query_store<'t, 'b: 't>(
        &self,
        attempts: impl Iterator<Item = (&'t mut ReadPiece<'b>, &'t mut ReadAttempt)>,
    ) -> Vec<Result<Option<PieceAnswer>>> {
        let mut queries = vec![];
        // For each piece: whether it has a query, and whether its seal has one.
        let mut shape = vec![];
        for (piece, plan) in attempts {
            let asks = !plan.wanted.is_empty();
            shape.push((asks, plan.needs_seal_query));
            if !asks {
                continue;
            }
            if let Some(version_table) = self.version_table.as_ref().filter(|_| plan.needs_seal_query) {
                queries.push(version_table.seal_place().query(piece.segment, &mut plan.seal));
            }
            queries.push(self.query_of(piece, &mut plan.fetch));
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
            Ok(Some(PieceAnswer { seal: seal.transpose()?, found: found? }))
        };
        shape.into_iter().map(&mut pieced).collect()
    }

    /// The query of one piece.
    fn query_of<'t>(&self, piece: &'t mut ReadPiece<'_>, plan: &'t mut FetchPlan) -> Query<'t> {
        let (slot, meta) = (self.placement.slot(), self.cipher.meta_size());
        let ReadPiece { segment, range, out, entries, .. } = piece;
        let mut query = Query { object: segment.0, extents: vec![], keys: KeySelection::None };
        let source = (plan.missing != 0).then(|| self.placement.source(&plan.span, plan.missing));
        if let Some(EntrySource::Slots) = source {
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
            Some(EntrySource::Bytes(offset)) if meta > 0 => {
                let buf = &mut entries[within(range, &plan.span, meta)];
                query.extents.push(ReadExtent { offset, buf });
            }
            Some(EntrySource::Keys(keys)) => query.keys = keys,
            _ => {}
        }
        query
    }

    /// Turns the store's answer into blocks, or into their written state. `false`: the read was
    /// disturbed and must be repeated.
    fn complete(
        &self,
        piece: &mut ReadPiece<'_>,
        plan: ReadAttempt,
        answer: Option<PieceAnswer>,
    ) -> Result<bool> {
        let mut exists = false;
        if let Some(answer) = answer {
            exists = answer.found.version.is_some();
            if let Some((view, snapshots)) = self.view.as_ref().filter(|_| !exists) {
                // If the snapshot is gone too, the object is neither missing nor zeros.
                snapshots.check_exists(*view)?;
            }
            let (mut tails, mut compared) = (ChainTails::default(), None);
            if let (Some(version_table), Some(expected)) = (&self.version_table, plan.expected) {
                let seal_answer = answer.seal.as_ref().unwrap_or(&answer.found);
                let seal = version_table.seal_place().extract(seal_answer, &plan.seal);
                let fetched = FetchedSeal { version: seal_answer.version, seal };
                tails = version_table.verify(piece.segment, expected, &fetched)?;
                compared = Some(StoreVersion::of(fetched.version));
            }
            if !self.take_entries(piece, &plan, &answer.found, &tails, compared)? {
                return Ok(false);
            }
        }
        let meta = self.cipher.meta_size();
        let is_unchanged = plan.recalled.iter().all(|run| {
            let entries = &piece.entries[within(&piece.range, run, meta)];
            self.placement.is_unchanged(piece.segment, run, entries)
        });
        if !is_unchanged {
            return Ok(false);
        }
        match piece.out {
            Some(_) => self.decrypt(piece, &plan)?,
            None => piece.written = self.written_blocks(piece, &plan, exists),
        }
        self.buffers.put_back(plan.fetch.slots);
        Ok(true)
    }

    /// Takes the entries from an answer and caches the pages fetched with it. `false`: the object
    /// has changed without this session. `compared` is the version of the object with the seal that
    /// this attempt has compared, if it has.
    fn take_entries(
        &self,
        piece: &mut ReadPiece<'_>,
        plan: &ReadAttempt,
        found: &QueryAnswer,
        tails: &ChainTails,
        compared: Option<StoreVersion>,
    ) -> Result<bool> {
        let (slot, meta) = (self.placement.slot(), self.cipher.meta_size());
        let fetch = &plan.fetch;
        let mut fetched = vec![];
        if slot != BLOCK_SIZE {
            let mut slots = fetch.slots.chunks_exact(slot);
            for extent in &fetch.extents {
                let entries = piece.entries[within(&piece.range, extent, meta)].chunks_exact_mut(meta);
                entries.zip(&mut slots).for_each(|(entry, slot)| entry.copy_from_slice(&slot[BLOCK_SIZE..]));
            }
        } else if fetch.missing != 0 && meta > 0 {
            let entries = &mut piece.entries[within(&piece.range, &fetch.span, meta)];
            let (segment, pairs) = (piece.segment, &found.pairs);
            let answer = EntryAnswer { segment, range: &fetch.span, missing: fetch.missing, pairs, tails };
            fetched = self.placement.extract_entries(&answer, entries)?;
        }
        let is_absent = found.version.is_none();
        let counter = match &self.version_table {
            Some(version_table) if is_absent => version_table.expected_entry(piece.segment)?.counter,
            _ => WriteCounter::default(),
        };
        let (mut is_missing, mut is_same) = (false, true);
        if let Some(moment) = plan.lookup.begin_count {
            self.cache.if_none_begun(piece.segment, moment, || {
                // An object with a counter existed before the query.
                is_missing = counter > WriteCounter::default();
                let is_unchanged =
                    |table: &Arc<VersionTable>| table.is_unchanged(piece.segment, found.version, compared);
                is_same = self.version_table.as_ref().is_none_or(is_unchanged);
                if !is_same {
                    self.placement.invalidate(piece.segment);
                    return;
                }
                if is_absent && !is_missing {
                    self.cache.set_absent(piece.segment);
                }
                self.placement.cache_pages(piece.segment, fetched);
            });
        }
        if is_missing { Err(missing_object(piece.segment, counter)) } else { Ok(is_same) }
    }

    /// Decrypts the fetched blocks in place, and adds zeros and cached blocks.
    fn decrypt(&self, piece: &mut ReadPiece<'_>, plan: &ReadAttempt) -> Result<()> {
        let ReadPiece { segment, range, out: Some(out), entries, .. } = piece else { return Ok(()) };
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
        for (index, content) in &plan.lookup.cached {
            if let BlockContent::Data(data) = content {
                out[within(range, &(*index..index + 1), BLOCK_SIZE)].copy_from_slice(data.bytes());
            }
        }
        Ok(())
    }

    /// Drops all cached knowledge of the store. No transaction may be in flight.
    pub(crate) fn invalidate_all(&self) {
        self.cache.forget_absent();
        if let Some(pages) = self.placement.pages() {
            pages.invalidate_all();
        }
    }

    /// Counts for `status`: reads, metadata pages found in memory, and pages not found there.
    pub(crate) fn counts(&self) -> [u64; 3] {
        let (hits, misses) = self.placement.pages().map_or((0, 0), MetadataPages::counts);
        [self.reads.load(Ordering::Relaxed), hits, misses]
    }

    /// Which blocks are written, in the cache or in the object; `exists` says whether the object
    /// exists.
    fn written_blocks(&self, piece: &ReadPiece<'_>, plan: &ReadAttempt, exists: bool) -> Vec<bool> {
        let meta = self.cipher.meta_size();
        let mut cached_blocks = plan.lookup.cached.iter().peekable();
        let stored = |index: u64| {
            let entry = &piece.entries[within(&piece.range, &(index..index + 1), meta)];
            !plan.lookup.rest_is_zeros && if meta == 0 { exists } else { !is_zero(entry) }
        };
        let written = |index| match cached_blocks.next_if(|(cached, _)| *cached == index) {
            Some((_, content)) => matches!(content, BlockContent::Data(_)),
            None => stored(index),
        };
        piece.range.clone().map(written).collect()
    }
}

/// Appends a run, merged with the last one if at most `gap` blocks lie between them.
fn append_run(runs: &mut Vec<Range<u64>>, run: Range<u64>, gap: u64) {
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
