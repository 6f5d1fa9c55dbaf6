//! How acknowledged writes become durable: a commit.
//!
//! One thread at a time commits: it holds the [`Committer`]. A commit turns copy-on-write segments into slots, then appends
//! the cache's newest blocks to the journal (a flush appends them before as well). The order within is what keeps
//! invariant 1 of the crate: a copy-on-write segment is synced before the record that makes it the slot is written; a
//! slot is freed only after that record is durable. What comes after, destaging, is in `destage.rs`.

use crate::cache::{Committed, Content};
use crate::cow_segment::{CowSegment, Stream};
use crate::disk::Core;
use crate::geometry::CHUNK_BLOCKS;
use crate::journal::{Batch, Journal};
use crate::map::Slot;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_crypto::is_zero;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// If a stream wrote fewer blocks than this of a segment that has a slot, they go through the journal. That costs three
/// accesses for each block written (read back, journal, slot); completing costs two for each block not written.
const WORTH_COMPLETING: u64 = SEGMENT_BLOCKS * 2 / 5;
/// Records in one batch of moves.
const MOVES_PER_BATCH: usize = 1024;
/// Room in the journal that only records of moves may use: five full batches of them.
const MOVES_RESERVE: usize = 256 << 10;

/// Buffers of batches kept for reuse.
const BUFFERS: usize = 4;

/// Which copy-on-write segments a commit ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All: everything acknowledged becomes durable.
    All,
    /// Whole ones, and discarded segments: nothing has to be copied.
    Ready,
}

/// What only the thread that commits may touch.
pub(crate) struct Committer {
    pub(crate) journal: Journal,
    /// Blocks with a committed version that is not yet destaged.
    pub(crate) to_destage: BTreeSet<u64>,
    /// Bytes of batches kept in memory for them.
    pub(crate) bytes_to_destage: u64,
    /// Those batches, so that their buffers serve again.
    pub(crate) batches: Vec<Arc<Vec<u8>>>,
    buffers: Vec<Vec<u8>>,
    /// Segments whose map entry on the medium is out of date.
    pub(crate) moved: BTreeSet<u64>,
    /// Slots freed since the disk was opened, whose space goes back when it is closed.
    pub(crate) released: BTreeSet<u32>,
    /// The number of the last commit of [`Scope::All`].
    last_full: u64,
    last_stand_done: bool,
}

/// A batch under construction with what the cache must learn once it is durable.
struct Draft {
    batch: Batch,
    notes: Vec<(u64, Option<u64>, Note)>,
}

enum Note {
    Data { at: usize, meta: [u8; 32] },
    Hole,
}

impl Committer {
    pub(crate) fn new(journal: Journal) -> Self {
        Committer {
            journal,
            to_destage: BTreeSet::new(),
            bytes_to_destage: 0,
            batches: vec![],
            buffers: vec![],
            moved: BTreeSet::new(),
            released: BTreeSet::new(),
            last_full: 0,
            last_stand_done: false,
        }
    }
}

impl Committer {
    /// Takes back the buffers of batches that nobody reads any more.
    pub(crate) fn recycle(&mut self) {
        for batch in std::mem::take(&mut self.batches) {
            match Arc::try_unwrap(batch) {
                Ok(buffer) if self.buffers.len() < BUFFERS => self.buffers.push(buffer),
                Ok(_) => {}
                Err(read) => self.batches.push(read),
            }
        }
    }
}

impl Core {
    /// Makes everything acknowledged before the call durable. Callers that wait while another commits share
    /// the commit that starts after both called.
    pub(crate) fn flush(&self) -> Result<()> {
        self.check_alive()?;
        let before = self.full_commits.load(Ordering::SeqCst);
        let mut c = self.committer();
        if c.last_full > before {
            return self.check_alive();
        }
        self.commit(&mut c, Scope::All)?;
        self.upkeep(&mut c)
    }

    /// Commits within `scope`; a failure ends all writing.
    pub(crate) fn commit(&self, c: &mut Committer, scope: Scope) -> Result<()> {
        self.check_alive()?;
        if scope == Scope::All {
            c.last_full = self.full_commits.fetch_add(1, Ordering::SeqCst) + 1;
        }
        let result = self.commit_steps(c, scope);
        self.signals.wake_writers();
        result.map_err(|e| self.fail_in_commit(c, e))
    }

    /// The cache goes first as well as last: a block that was acknowledged there before a flush may be covered
    /// by a copy-on-write segment opened meanwhile, whose commit this flush does not wait for.
    fn commit_steps(&self, c: &mut Committer, scope: Scope) -> Result<()> {
        if scope == Scope::All {
            self.commit_newest(c, &self.cache.take_dirty())?;
        }
        self.commit_cow_segments(c, |cow_segment| match cow_segment {
            CowSegment::Void => true,
            CowSegment::Stream(stream) => scope == Scope::All || stream.state().is_full(),
        })?;
        self.commit_newest(c, &self.cache.take_dirty())
    }

    /// Destages blocks and retires the journal when it is time to.
    pub(crate) fn upkeep(&self, c: &mut Committer) -> Result<()> {
        let result = if self.medium_full.is_so() {
            self.upkeep_when_full(c)
        } else if c.journal.is_half_full() {
            self.checkpoint(c)
        } else if c.bytes_to_destage > self.limits.to_destage * if self.background { 2 } else { 1 } {
            self.destage(c)
        } else {
            Ok(())
        };
        if c.bytes_to_destage > self.limits.to_destage && self.background {
            self.signals.wake_worker();
        }
        result.map_err(|e| self.fail_in_commit(c, e))
    }

    pub(crate) fn fail_in_commit(&self, c: &mut Committer, e: Error) -> Error {
        let e = self.fail(e);
        self.last_stand(c);
        e
    }

    /// After the medium was found full: what was acknowledged still fits the journal, which has its space since
    /// the disk was created. One attempt to put it there, whatever of it succeeds; after any other failure,
    /// none, for nobody knows what such a medium keeps.
    pub(crate) fn last_stand(&self, c: &mut Committer) {
        let full = self.failure().is_some_and(|e| e.kind() == Kind::NoSpace);
        if !full || std::mem::replace(&mut c.last_stand_done, true) {
            return;
        }
        let _ = self.commit_newest(c, &self.cache.all_dirty());
        for (segment, _) in self.cow_segments.list() {
            match self.freeze(segment) {
                Some(CowSegment::Stream(stream)) => {
                    // Nothing has to be copied for these two; the others need room in the journal.
                    let easy = stream.state().is_full() || self.map.get(segment).ok() == Some(Slot::Nowhere);
                    let moved = easy && self.commit_one_cow_segment(c, segment).is_ok();
                    if !moved {
                        let _ = self.decline(c, segment, &stream);
                    }
                }
                Some(CowSegment::Void) => drop(self.commit_moves(c, &[(segment, Slot::Nowhere)])),
                None => {}
            }
        }
        let _ = self.commit_newest(c, &self.cache.all_dirty());
    }

    // --- copy-on-write segments ---

    fn commit_cow_segments(&self, c: &mut Committer, due: impl Fn(&CowSegment) -> bool) -> Result<()> {
        self.make_room(c, 0)?;
        let mut moves = vec![];
        let mut declined = vec![];
        let mut streams = false;
        for (segment, cow_segment) in self.cow_segments.list() {
            if !due(&cow_segment) {
                continue;
            }
            let Some(cow_segment) = self.freeze(segment) else { continue };
            match cow_segment {
                CowSegment::Void => moves.push((segment, Slot::Nowhere)),
                CowSegment::Stream(stream) => {
                    let mapped = self.map.get(segment)? != Slot::Nowhere;
                    if mapped && stream.state().covered() < WORTH_COMPLETING {
                        declined.push((segment, stream));
                    } else {
                        self.complete(segment, &stream)?;
                        moves.push((segment, Slot::At(stream.slot)));
                        streams = true;
                    }
                }
            }
        }
        if streams {
            self.store.settle()?;
        }
        for moves in moves.chunks(MOVES_PER_BATCH) {
            self.make_room(c, 0)?;
            self.commit_moves(c, moves)?;
        }
        for (segment, stream) in declined {
            self.decline(c, segment, &stream)?;
        }
        Ok(())
    }

    /// From here on nobody else writes to the copy-on-write segment.
    pub(crate) fn freeze(&self, segment: u64) -> Option<CowSegment> {
        let _moving = self.locks.segment(segment);
        let cow_segment = self.cow_segments.get(segment)?;
        if let CowSegment::Stream(stream) = &cow_segment {
            stream.state().frozen = true;
        }
        Some(cow_segment)
    }

    /// Fills what a frozen copy-on-write segment does not cover, so that it holds all of its segment.
    pub(crate) fn complete(&self, segment: u64, stream: &Stream) -> Result<()> {
        let slot = self.map.get(segment)?;
        let first = segment * SEGMENT_BLOCKS;
        let mut index = 0;
        while index < SEGMENT_BLOCKS {
            if stream.state().covers(index) {
                index += 1;
                continue;
            }
            let end = (index..SEGMENT_BLOCKS.min(index + CHUNK_BLOCKS))
                .take_while(|i| !stream.state().covers(*i) && (*i == index || !self.has_version(first + i)))
                .count() as u64;
            self.complete_run(stream, slot, first, index, end)?;
            index += end;
        }
        let meta = stream.state().meta.clone();
        self.store.write_meta(stream.slot, 0, &meta)
    }

    fn has_version(&self, block: u64) -> bool {
        self.cache.touches(block / SEGMENT_BLOCKS)
            && (self.cache.has_newest(block) || self.cache.committed(block).is_some())
    }

    /// Completes one block that the cache may know of, and blocks after it that it does not.
    fn complete_run(&self, stream: &Stream, slot: Slot, first: u64, index: u64, count: u64) -> Result<()> {
        let block = first + index;
        if self.has_version(block) {
            self.complete_from_cache(stream, block, index)?;
            return if count > 1 {
                self.complete_run(stream, slot, first, index + 1, count - 1)
            } else {
                Ok(())
            };
        }
        match slot {
            Slot::Nowhere => self.store.erase_data(stream.slot, index, count),
            Slot::At(slot) => self.with_scratch(count as usize * BLOCK_SIZE, |data, meta| {
                self.store.read(slot, index, data, meta)?;
                self.store.write_data(stream.slot, index, data, meta)?;
                stream.state().cover(index, count, meta);
                Ok(())
            }),
        }
    }

    fn complete_from_cache(&self, stream: &Stream, block: u64, index: u64) -> Result<()> {
        self.with_scratch(BLOCK_SIZE, |data, meta| {
            let newest = self.cache.with_newest(block, |content, version| {
                if let Content::Data(plain) = content {
                    self.cipher.seal(block, &plain[..], data, meta, &*self.random);
                    (true, version)
                } else {
                    (false, version)
                }
            });
            let written = match (&newest, self.cache.committed(block)) {
                (Some((written, _)), _) => *written,
                (None, Some(Committed::Data { batch, at, meta: entry })) => {
                    data.copy_from_slice(&batch[at..at + BLOCK_SIZE]);
                    meta.copy_from_slice(&entry[..meta.len()]);
                    true
                }
                (None, _) => false,
            };
            if written {
                self.store.write_data(stream.slot, index, data, meta)?;
            } else {
                meta.fill(0);
                self.store.erase_data(stream.slot, index, 1)?;
            }
            stream.state().cover(index, 1, meta);
            if let Some((_, version)) = newest {
                // Covered now, and nothing later than the copy-on-write segment unless it was written meanwhile.
                self.cache.forget_version(block, version);
            }
            Ok(())
        })
    }

    /// Records moves durably, then makes them so in memory and frees the old slots.
    pub(crate) fn commit_moves(&self, c: &mut Committer, moves: &[(u64, Slot)]) -> Result<()> {
        let mut draft = Draft { batch: Batch::with_room(vec![], moves.len(), 0), notes: vec![] };
        for (segment, slot) in moves {
            draft.batch.move_segment(*segment, *slot);
        }
        self.append(c, draft)?;
        for &(segment, slot) in moves {
            let old = self.map.get(segment)?;
            if old == slot {
                continue;
            }
            if let (Slot::At(old), Slot::Nowhere) = (old, slot) {
                // A courtesy to the host. The next use of this slot makes it blank again.
                let _ = self.store.give_back(old);
            }
            {
                let _moving = self.locks.segment(segment);
                self.map.set(segment, slot);
                self.cow_segments.remove(segment);
                let first = segment * SEGMENT_BLOCKS;
                let gone: Vec<u64> = c.to_destage.range(first..first + SEGMENT_BLOCKS).copied().collect();
                for block in gone {
                    self.cache.forget_committed(block);
                    c.to_destage.remove(&block);
                }
                // Before anybody sees the segment without a slot and claims one for it.
                if let Slot::At(old) = old {
                    self.map.release(old, slot == Slot::Nowhere);
                    c.released.insert(old);
                }
            }
            c.moved.insert(segment);
            if let Slot::At(slot) = slot {
                c.released.remove(&slot);
            }
            self.counters.moves.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sends what a frozen copy-on-write segment covers through the journal and gives its slot up.
    fn decline(&self, c: &mut Committer, segment: u64, stream: &Arc<Stream>) -> Result<()> {
        let first = segment * SEGMENT_BLOCKS;
        let size = self.cipher.meta_size();
        let covered: Vec<u64> = (0..SEGMENT_BLOCKS).filter(|i| stream.state().covers(*i)).collect();
        for indices in covered.chunks(self.limits.batch_blocks) {
            self.make_room(c, indices.len())?;
            let mut draft = Draft::with_room(c, indices.len());
            for &index in indices {
                self.with_scratch(BLOCK_SIZE, |data, meta| {
                    self.store.read_data(stream.slot, index, data)?;
                    meta.copy_from_slice(&stream.state().meta[index as usize * size..][..size]);
                    if is_zero(if size == 0 { &*data } else { &*meta }) {
                        draft.hole(first + index, None);
                    } else {
                        draft.data(first + index, None, |to, entry| {
                            to.copy_from_slice(data);
                            entry[..size].copy_from_slice(meta);
                        });
                    }
                    Ok::<(), Error>(())
                })?;
            }
            self.append(c, draft)?;
        }
        let _moving = self.locks.segment(segment);
        self.cow_segments.remove(segment);
        self.map.release(stream.slot, self.map.get(segment)? == Slot::Nowhere);
        c.released.insert(stream.slot);
        Ok(())
    }

    // --- the journal ---

    fn commit_newest(&self, c: &mut Committer, blocks: &[u64]) -> Result<()> {
        let size = self.cipher.meta_size();
        for blocks in blocks.chunks(self.limits.batch_blocks) {
            self.make_room(c, blocks.len())?;
            let mut draft = Draft::with_room(c, blocks.len());
            for &block in blocks {
                // The lock keeps a discard of the whole segment from coming between the look and the copy.
                let _reading = self.locks.shared(block);
                if let Some(CowSegment::Void) = self.cow_segments.get(block / SEGMENT_BLOCKS) {
                    // Its move, not recorded yet, would void this block as well.
                    self.cache.put_off(block);
                    continue;
                }
                self.cache.with_newest(block, |content, version| match content {
                    Content::Hole => draft.hole(block, Some(version)),
                    Content::Data(plain) => draft.data(block, Some(version), |to, entry| {
                        self.cipher.seal(block, &plain[..], to, &mut entry[..size], &*self.random);
                    }),
                });
            }
            self.append(c, draft)?;
        }
        Ok(())
    }

    /// Makes room in the journal. Call it before gathering a batch or freezing a copy-on-write segment: it may run a
    /// checkpoint, which could record moves newer than what was gathered. It always leaves room for moves, and while the
    /// medium is not full also the reserve for opening on a full medium.
    fn make_room(&self, c: &mut Committer, blocks: usize) -> Result<()> {
        let len = Batch::len_for(blocks, blocks);
        let moves = if c.last_stand_done { 0 } else { MOVES_RESERVE };
        if !self.medium_full.is_so() {
            let kept = c.journal.reserve() + moves;
            return if c.journal.fits(len + kept) { Ok(()) } else { self.checkpoint(c) };
        }
        // Moves free slots, and for them there is room to the last.
        let kept = if blocks == 0 { Batch::len_for(MOVES_PER_BATCH, 0) } else { moves };
        if !c.journal.fits(len + kept) {
            self.send_what_fits(c)?;
        }
        if c.journal.fits(len + kept) { Ok(()) } else { Err(self.no_room(c)) }
    }

    /// Appends committed blocks once more.
    pub(crate) fn append_again(&self, c: &mut Committer, blocks: &[u64]) -> Result<()> {
        let mut draft = Draft::with_room(c, blocks.len());
        for &block in blocks {
            match self.cache.committed(block) {
                Some(Committed::Data { batch, at, meta }) => draft.data(block, None, |to, entry| {
                    to.copy_from_slice(&batch[at..at + BLOCK_SIZE]);
                    *entry = meta;
                }),
                Some(Committed::Hole) => draft.hole(block, None),
                None => {}
            }
        }
        self.append(c, draft)
    }

    fn append(&self, c: &mut Committer, draft: Draft) -> Result<()> {
        if draft.batch.is_empty() {
            return Ok(());
        }
        let batch = c.journal.append(draft.batch)?;
        self.counters.journal_used.store(c.journal.used(), Ordering::Relaxed);
        c.bytes_to_destage += batch.len() as u64;
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        self.counters.journal_bytes.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if !draft.notes.is_empty() {
            c.batches.push(batch.clone());
        }
        for (block, version, note) in draft.notes {
            let committed = match note {
                Note::Data { at, meta } => Committed::Data { batch: batch.clone(), at, meta },
                Note::Hole => Committed::Hole,
            };
            self.cache.commit(block, version, committed);
            c.to_destage.insert(block);
        }
        Ok(())
    }
}

impl Draft {
    fn with_room(c: &mut Committer, blocks: usize) -> Draft {
        let buffer = c.buffers.pop().unwrap_or_default();
        Draft { batch: Batch::with_room(buffer, blocks, blocks), notes: Vec::with_capacity(blocks) }
    }

    fn data(&mut self, block: u64, version: Option<u64>, fill: impl FnOnce(&mut [u8], &mut [u8; 32])) {
        let mut entry = [0; 32];
        let at = self.batch.write(block, |to, meta| {
            fill(to, meta);
            entry = *meta;
        });
        self.notes.push((block, version, Note::Data { at, meta: entry }));
    }

    fn hole(&mut self, block: u64, version: Option<u64>) {
        self.batch.erase(block, 1);
        self.notes.push((block, version, Note::Hole));
    }
}
