//! Commits: they make acknowledged writes durable.
//!
//! A commit turns copy-on-write segments into slots, then appends the cache's newest blocks to the
//! journal (a flush also appends them before). This order keeps invariant 1 of the crate: a
//! copy-on-write segment is synced before the record that makes it the slot is written; a slot is
//! freed only after that record is durable.

use crate::address::SegmentNo;
use crate::durability::batch_builder::BatchBuilder;
use crate::durability::destage::{BegunCheckpoint, Destager};
use crate::health::Health;
use crate::journal::JournalBatch;
use crate::limits::Limits;
use crate::log::Log;
use crate::medium_full::{MediumFull, no_space_error};
use crate::recovery::ReplayIndex;
use crate::segments::Segments;
use crate::segments::cow_segment::{CowSegment, Stream};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Result, SEGMENT_BLOCKS};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// If a stream wrote fewer blocks than this of a segment that has a slot, they go through the
/// journal. That costs three accesses for each block written (read back, journal, slot); completing
/// costs two for each block not written.
const WORTH_COMPLETING: u64 = SEGMENT_BLOCKS * 2 / 5;
/// Records in one batch of moves.
const MOVES_PER_BATCH: usize = 1024;
/// Room in the journal for records of moves only: five full batches of them.
const MOVES_RESERVE: usize = 256 << 10;

/// The copy-on-write segments that a commit ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitScope {
    /// All of them: everything acknowledged becomes durable.
    All,
    /// Whole ones, and discarded segments: no block has to be copied.
    Ready,
}

/// Commits. Used by one thread at a time (`flush.rs`).
pub(crate) struct Committer {
    log: Log,
    destager: Destager,
    batch_builder: BatchBuilder,
    medium_full: Arc<MediumFull>,
    segments: Arc<Segments>,
    health: Arc<Health>,
    limits: Limits,
    full_commits: Arc<AtomicU64>,
    /// Whether the last commit was refused, so that the blocks it took from the dirty list must be
    /// found again.
    was_refused: bool,
    /// Whether the replayed blocks were destaged and the journal is still to be retired. Nothing is
    /// appended to it before that.
    is_recovering: bool,
}

/// When recovery ends, in which the replayed blocks are destaged and the journal is retired.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecoveryEnd {
    /// Never: the disk is open read-only. The blocks stay in memory, at most the length of the
    /// journal.
    Never,
    /// Before the disk is open.
    Opening,
    /// The blocks are destaged before the disk is open, and durable before the first commit.
    FirstCommit,
}

impl Committer {
    pub(crate) fn new(
        log: Log,
        destager: Destager,
        gatherer: BatchBuilder,
        medium_full: Arc<MediumFull>,
        segments: Arc<Segments>,
        health: Arc<Health>,
        limits: Limits,
    ) -> Self {
        let (full_commits, refused, is_recovering) = (Arc::default(), false, false);
        Committer {
            log,
            destager,
            batch_builder: gatherer,
            medium_full,
            segments,
            health,
            limits,
            full_commits,
            was_refused: refused,
            is_recovering,
        }
    }

    /// Adds the replayed blocks and moves, and destages them if recovery ends.
    pub(crate) fn recover(&mut self, replayed: ReplayIndex, end: RecoveryEnd) -> Result<()> {
        let nothing = replayed.batches == 0;
        self.destager.remapper().add_replayed(replayed.moved);
        if end != RecoveryEnd::Never {
            self.destager.fetch_meta(replayed.latest.keys())?;
        }
        for (block, committed) in replayed.latest {
            self.log.add_replayed(block, committed);
        }
        if nothing || end == RecoveryEnd::Never {
            return Ok(());
        }
        self.is_recovering = true;
        if end == RecoveryEnd::FirstCommit {
            match self.destager.destage_all(&mut self.log) {
                // A full medium is handled below.
                Err(e) if e.changed_nothing() => {}
                done => return done,
            }
        }
        self.finish_recovery()
    }

    /// Whether recovery has not ended.
    pub(crate) fn is_recovering(&self) -> bool {
        self.is_recovering
    }

    /// Ends recovery if it has not ended: makes the replayed blocks durable in their slots and
    /// retires the journal.
    fn finish_recovery(&mut self) -> Result<()> {
        if self.is_recovering {
            self.medium_full.try_checkpoint(&mut self.destager, &mut self.log)?;
            self.is_recovering = false;
        }
        Ok(())
    }

    /// Adds the replayed blocks and moves, and destages them; then commits the writes that a
    /// predecessor left in memory, if any were adopted. A medium that refuses some of them leaves
    /// the disk in the full-medium state.
    pub(crate) fn recover_adopted(&mut self, replayed: ReplayIndex) -> Result<()> {
        self.recover(replayed, RecoveryEnd::Opening)?;
        // The state is that after a commit that was refused: the versions in the cache are later
        // than the streams, which are frozen.
        self.was_refused = true;
        match self.commit(CommitScope::All) {
            Err(e) if !e.changed_nothing() => Err(e),
            _ => Ok(()),
        }
    }

    /// Whether the last commit was refused, so that not all of its blocks are durable.
    pub(crate) fn was_refused(&self) -> bool {
        self.was_refused
    }

    /// The number of commits of [`CommitScope::All`] that have begun.
    pub(crate) fn full_commits(&self) -> &Arc<AtomicU64> {
        &self.full_commits
    }

    /// Commits within `scope`. A failure ends all writing. After a refusal or a failed read the
    /// next commit repeats the work, in the full-medium state.
    pub(crate) fn commit(&mut self, scope: CommitScope) -> Result<()> {
        self.health.check()?;
        self.finish_recovery().map_err(|e| self.health.fail(e))?;
        // After a refusal repeat everything.
        let scope = if self.was_refused { CommitScope::All } else { scope };
        if scope == CommitScope::All {
            self.full_commits.fetch_add(1, Ordering::SeqCst);
        }
        let result = self.commit_steps(scope);
        self.health.signals().wake_writers();
        result.map_err(|e| self.fail(e))
    }

    /// Accepts a write on a full medium, in pieces. Each piece is in the journal before the next is
    /// put into the cache. If the journal has no room for a piece, it is refused before it is put,
    /// so that it neither stays in memory nor fails a flush.
    pub(crate) fn write_on_full_medium(
        &mut self,
        first: BlockAddr,
        data: &[u8],
        put: impl Fn(BlockAddr, &[u8]) -> Result<()>,
    ) -> Result<()> {
        // Versions that are only in memory were acknowledged earlier.
        self.commit(CommitScope::All)?;
        let mut at = first;
        for piece in data.chunks(self.limits.batch_blocks * BLOCK_SIZE) {
            let blocks = piece.len() / BLOCK_SIZE;
            self.make_room(blocks).map_err(|e| self.fail(e))?;
            put(at, piece)?;
            self.commit(CommitScope::All)?;
            at.0 += blocks as u64;
        }
        self.maintain()
    }

    /// Appends the cache's blocks before the copy-on-write segments as well as after them: a block
    /// acknowledged in the cache before a flush may be covered by a copy-on-write segment that was
    /// opened meanwhile, and this flush does not wait for the commit of that one.
    fn commit_steps(&mut self, scope: CommitScope) -> Result<()> {
        let mut later = Vec::new();
        if scope == CommitScope::All {
            let mut first = self.batch_builder.take_dirty();
            if std::mem::take(&mut self.was_refused) {
                first = self.batch_builder.all_dirty();
            }
            // Blocks written since a refused commit froze their stream are later than the stream,
            // and follow it.
            (later, first) = first.into_iter().partition(|block| self.is_frozen(*block));
            self.commit_newest(&first)?;
        }
        self.commit_cow_segments(|cow_segment| match cow_segment {
            CowSegment::PendingDiscard => true,
            CowSegment::Stream(stream) => {
                scope == CommitScope::All || stream.is_whole() || stream.is_frozen()
            }
        })?;
        later.extend(self.batch_builder.take_dirty());
        self.commit_newest(&later)
    }

    fn is_frozen(&self, block: BlockAddr) -> bool {
        let cow_segment = self.segments.cow_segment(SegmentNo::of(block));
        matches!(cow_segment, Some(CowSegment::Stream(stream)) if stream.is_frozen())
    }

    /// Destages blocks and retires the journal if that is due. If there is a thread for
    /// checkpoints, it is woken before one has to be made here.
    pub(crate) fn maintain(&mut self) -> Result<()> {
        let (destager, log) = (&mut self.destager, &mut self.log);
        let result = if self.medium_full.is_full() {
            self.medium_full.maintain(destager, log)
        } else if log.used() > self.limits.max_used {
            destager.checkpoint(log)
        } else if log.bytes_to_destage() > self.limits.max_to_destage {
            destager.destage(log)
        } else {
            Ok(())
        };
        if self.log.bytes_to_destage() > self.limits.destage_at && !self.medium_full.is_full() {
            self.health.signals().wake_worker();
        }
        if self.log.used() > self.limits.checkpoint_at && !self.medium_full.is_full() {
            self.health.signals().wake_checkpointer();
        }
        self.tolerate_refusal(result)
    }

    /// Begins a checkpoint if one is due. The caller makes the slots durable without the commit
    /// lock and calls [`Committer::end_checkpoint`]; commits go on meanwhile.
    pub(crate) fn begin_checkpoint(&mut self) -> Result<Option<BegunCheckpoint>> {
        self.health.check()?;
        self.finish_recovery().map_err(|e| self.health.fail(e))?;
        if self.medium_full.is_full() || self.log.used() <= self.limits.checkpoint_at {
            return Ok(None);
        }
        match self.destager.begin_checkpoint(&mut self.log) {
            Err(e) => self.tolerate_refusal(Err(e)).map(|()| None),
            begun => begun,
        }
    }

    /// Retires the part of the journal that a checkpoint made durable in its slots. `synced` is the
    /// result of their sync.
    pub(crate) fn end_checkpoint(&mut self, begun: &BegunCheckpoint, synced: Result<()>) -> Result<()> {
        self.health.check()?;
        let retired = synced.and_then(|()| self.log.retire_before(begun.mark()));
        retired.map_err(|e| self.health.fail(e))
    }

    /// Blocks that the medium refuses, or that need a failed read, stay in the journal.
    fn tolerate_refusal(&mut self, destaged: Result<()>) -> Result<()> {
        match destaged {
            Err(e) if self.medium_full.enter(&e) => Ok(()),
            done => done.map_err(|e| self.fail(e)),
        }
    }

    /// One turn of the background thread. `idle`: whether the disk was unused for a while.
    /// `is_old`: whether something has been only in memory for long.
    pub(crate) fn background_step(&mut self, idle: bool, is_old: bool, spare_wanted: bool) -> Result<()> {
        self.health.check()?;
        self.finish_recovery().map_err(|e| self.health.fail(e))?;
        let nothing_ready = self.segments.ready() == (0, 0);
        // A full medium may have space again.
        let retries = idle && self.medium_full.is_full();
        if is_old || retries || (spare_wanted && nothing_ready) {
            if self.batch_builder.is_dirty() || self.segments.count_cow_segments() > 0 {
                self.commit(CommitScope::All)?;
            }
        } else if !idle {
            self.commit(CommitScope::Ready)?;
        }
        let pending = self.log.bytes_to_destage();
        if self.medium_full.is_full() {
            if idle {
                // Another program may have freed space.
                self.medium_full.note_discard();
            }
        } else if pending > self.limits.destage_at || (idle && pending > 0) {
            let destaged = self.destager.destage(&mut self.log);
            self.tolerate_refusal(destaged)?;
        }
        self.maintain()
    }

    /// Destages everything and empties the journal, as far as the medium has space. After a
    /// failure, returns its cause.
    pub(crate) fn close(&mut self) -> Result<()> {
        if let Some(cause) = self.health.cause() {
            return Err(cause.context("the disk stopped taking writes"));
        }
        match self.commit(CommitScope::All) {
            // The second commit finds room in the journal, if there is any.
            Err(e) if e.changed_nothing() && self.medium_full.is_full() => self.commit(CommitScope::All)?,
            done => done?,
        }
        // Blocks without space in their slots are durable in the journal.
        let destaged = if self.medium_full.is_full() {
            self.medium_full.destage_fitting(&mut self.destager, &mut self.log)
        } else {
            self.medium_full.try_checkpoint(&mut self.destager, &mut self.log)
        };
        destaged.map_err(|e| self.health.fail(e))?;
        self.destager.remapper().release_space();
        Ok(())
    }

    fn fail(&mut self, e: Error) -> Error {
        if self.medium_full.enter(&e) {
            self.was_refused = true;
            return e;
        }
        self.health.fail(e)
    }

    fn commit_cow_segments(&mut self, due: impl Fn(&CowSegment) -> bool) -> Result<()> {
        self.make_room(0)?;
        let mut moves = vec![];
        let mut declined = vec![];
        let mut streams = vec![];
        for (segment, cow_segment) in self.segments.cow_segments() {
            if !due(&cow_segment) {
                continue;
            }
            match self.segments.freeze(segment) {
                None => {}
                Some(CowSegment::PendingDiscard) => moves.push((segment, None)),
                Some(CowSegment::Stream(stream)) => {
                    let mapped = self.segments.slot(segment)?.is_some();
                    if mapped && stream.covered() < WORTH_COMPLETING {
                        declined.push((segment, stream));
                    } else {
                        match self.destager.remapper().complete(segment, &stream) {
                            Err(e) if self.medium_full.enter(&e) => declined.push((segment, stream)),
                            done => done.map(|()| streams.push((segment, stream)))?,
                        }
                    }
                }
            }
        }
        if !streams.is_empty() {
            match self.destager.remapper().sync_slots() {
                // The blocks that they cover go to the journal.
                Err(e) if self.medium_full.enter(&e) => declined.append(&mut streams),
                done => done?,
            }
        }
        moves.extend(streams.iter().map(|(segment, stream)| (*segment, Some(stream.slot))));
        for moves in moves.chunks(MOVES_PER_BATCH) {
            self.make_room(0)?;
            self.destager.remapper().record_moves(&mut self.log, moves)?;
        }
        declined.into_iter().try_for_each(|(segment, stream)| self.journal_instead(segment, &stream))
    }

    /// Sends the blocks of a frozen copy-on-write segment through the journal and frees its slot.
    fn journal_instead(&mut self, segment: SegmentNo, stream: &Stream) -> Result<()> {
        let covered: Vec<u64> = (0..SEGMENT_BLOCKS).filter(|index| stream.covers(*index)).collect();
        for indices in covered.chunks(self.limits.batch_blocks) {
            self.make_room(indices.len())?;
            let draft = self.batch_builder.covered(&mut self.log, segment, stream, indices)?;
            self.log.append(draft)?;
        }
        self.destager.remapper().abandon(segment, stream)
    }

    fn commit_newest(&mut self, blocks: &[BlockAddr]) -> Result<()> {
        let mut left = blocks;
        while !left.is_empty() {
            let full = self.medium_full.is_full();
            let most = if full { self.limits.batch_blocks } else { self.limits.commit_blocks };
            let (blocks, after) = left.split_at(most.min(left.len()));
            self.make_room(blocks.len())?;
            let draft = self.batch_builder.newest(&mut self.log, blocks);
            self.log.append(draft)?;
            left = after;
        }
        Ok(())
    }

    /// Makes room in the journal. Call it before gathering a batch or freezing a copy-on-write
    /// segment: it may run a checkpoint, which could record moves newer than the gathered blocks.
    /// It always leaves room for moves, and also the reserve unless the medium was full from the
    /// start.
    fn make_room(&mut self, blocks: usize) -> Result<()> {
        let len = JournalBatch::len_for(blocks, blocks);
        if !self.medium_full.is_full() {
            let fits = self.log.fits(len, self.log.reserve() + MOVES_RESERVE);
            // After a refusal the next commit continues the unfinished work before anything newer.
            return if fits { Ok(()) } else { self.destager.checkpoint(&mut self.log) };
        }
        // Moves free slots, so they may use the last room.
        let kept = match (self.medium_full.spends_reserve(), blocks) {
            (true, 0) => JournalBatch::len_for(MOVES_PER_BATCH, 0),
            (true, _) => MOVES_RESERVE,
            (false, 0) => self.log.reserve().saturating_sub(MOVES_RESERVE),
            (false, _) => self.log.reserve(),
        };
        if !self.log.fits(len, kept) {
            self.medium_full.destage_fitting(&mut self.destager, &mut self.log)?;
        }
        if self.log.fits(len, kept) { Ok(()) } else { Err(no_space_error(&self.log)) }
    }
}
