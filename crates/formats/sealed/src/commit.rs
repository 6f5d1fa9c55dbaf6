//! How acknowledged writes become durable: a commit.
//!
//! A commit turns copy-on-write segments into slots, then appends the cache's newest blocks to the
//! journal (a flush appends them before as well). The order within is what keeps invariant 1 of the
//! crate: a copy-on-write segment is synced before the record that makes it the slot is written; a
//! slot is freed only after that record is durable.

use crate::address::SegmentNo;
use crate::cow_segment::{CowSegment, Stream};
use crate::destage::Destager;
use crate::gather::Gatherer;
use crate::health::Health;
use crate::journal::Batch;
use crate::limits::Limits;
use crate::log::Log;
use crate::medium_full::{MediumFull, no_room};
use crate::recovery::Replayed;
use crate::segments::Segments;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Result, SEGMENT_BLOCKS};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// If a stream wrote fewer blocks than this of a segment that has a slot, they go through the
/// journal. That costs three accesses for each block written (read back, journal, slot); completing
/// costs two for each block not written.
const WORTH_COMPLETING: u64 = SEGMENT_BLOCKS * 2 / 5;
/// Records in one batch of moves.
const MOVES_PER_BATCH: usize = 1024;
/// Room in the journal that only records of moves may use: five full batches of them.
const MOVES_RESERVE: usize = 256 << 10;

/// Which copy-on-write segments a commit ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All: everything acknowledged becomes durable.
    All,
    /// Whole ones, and discarded segments: nothing has to be copied.
    Ready,
}

/// Commits. One thread at a time uses it (`flush.rs`).
pub(crate) struct Committer {
    log: Log,
    destager: Destager,
    gatherer: Gatherer,
    medium_full: Arc<MediumFull>,
    segments: Arc<Segments>,
    health: Arc<Health>,
    limits: Limits,
    full_commits: Arc<AtomicU64>,
    /// A commit was refused: what it had taken from the list of dirty blocks is to be found again.
    refused: bool,
}

impl Committer {
    pub(crate) fn new(
        log: Log,
        destager: Destager,
        gatherer: Gatherer,
        medium_full: Arc<MediumFull>,
        segments: Arc<Segments>,
        health: Arc<Health>,
        limits: Limits,
    ) -> Self {
        let (full_commits, refused) = (Arc::default(), false);
        Committer { log, destager, gatherer, medium_full, segments, health, limits, full_commits, refused }
    }

    /// Takes in what replay found, and destages it unless the disk is only read: then it stays in
    /// memory as long as the disk is open, at most as much as the length of the journal.
    pub(crate) fn recover(&mut self, replayed: Replayed, read_only: bool) -> Result<()> {
        let nothing = replayed.batches == 0;
        self.destager.mover().adopt(replayed.moved);
        for (block, committed) in replayed.latest {
            self.log.adopt(block, committed);
        }
        if nothing || read_only {
            Ok(())
        } else {
            self.medium_full.checkpoint_or_stay(&mut self.destager, &mut self.log)
        }
    }

    /// Whether the last commit was refused: what it was to make durable is not.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused
    }

    /// How many commits of [`Scope::All`] have begun.
    pub(crate) fn full_commits(&self) -> &Arc<AtomicU64> {
        &self.full_commits
    }

    /// Commits within `scope`. A failure ends all writing; after a refusal, or a read that failed,
    /// the next commit does it again, on a full medium.
    pub(crate) fn commit(&mut self, scope: Scope) -> Result<()> {
        self.health.check()?;
        // After a refusal all of it is done again.
        let scope = if self.refused { Scope::All } else { scope };
        if scope == Scope::All {
            self.full_commits.fetch_add(1, Ordering::SeqCst);
        }
        let result = self.commit_steps(scope);
        self.health.signals().wake_writers();
        result.map_err(|e| self.fail(e))
    }

    /// Takes a write on a full medium in pieces: each is in the journal before the next is put, and
    /// one that finds no room there is refused before it is put, so that what is refused neither
    /// stays in memory nor fails a flush.
    pub(crate) fn take(
        &mut self,
        first: BlockAddr,
        data: &[u8],
        put: impl Fn(BlockAddr, &[u8]) -> Result<()>,
    ) -> Result<()> {
        // What is in memory alone was acknowledged before.
        self.commit(Scope::All)?;
        let mut at = first;
        for piece in data.chunks(self.limits.batch_blocks * BLOCK_SIZE) {
            let blocks = piece.len() / BLOCK_SIZE;
            self.make_room(blocks).map_err(|e| self.fail(e))?;
            put(at, piece)?;
            self.commit(Scope::All)?;
            at.0 += blocks as u64;
        }
        self.upkeep()
    }

    /// The cache goes first as well as last: a block that was acknowledged there before a flush may
    /// be covered by a copy-on-write segment opened meanwhile, whose commit this flush does not
    /// wait for.
    fn commit_steps(&mut self, scope: Scope) -> Result<()> {
        let mut later = Vec::new();
        if scope == Scope::All {
            let mut first = self.gatherer.take_dirty();
            if std::mem::take(&mut self.refused) {
                first = self.gatherer.all_dirty();
            }
            // What was written since a stream was frozen, by a commit that was refused, is later
            // than the stream, and follows it.
            (later, first) = first.into_iter().partition(|block| self.is_frozen(*block));
            self.commit_newest(&first)?;
        }
        self.commit_cow_segments(|cow_segment| match cow_segment {
            CowSegment::PendingDiscard => true,
            CowSegment::Stream(stream) => scope == Scope::All || stream.is_whole() || stream.is_frozen(),
        })?;
        later.extend(self.gatherer.take_dirty());
        self.commit_newest(&later)
    }

    fn is_frozen(&self, block: BlockAddr) -> bool {
        let cow_segment = self.segments.cow_segment(SegmentNo::of(block));
        matches!(cow_segment, Some(CowSegment::Stream(stream)) if stream.is_frozen())
    }

    /// Destages blocks and retires the journal when it is time to.
    pub(crate) fn upkeep(&mut self) -> Result<()> {
        let (destager, log) = (&mut self.destager, &mut self.log);
        let result = if self.medium_full.is_so() {
            self.medium_full.upkeep(destager, log)
        } else if log.is_half_full() {
            destager.checkpoint(log)
        } else if log.bytes_to_destage() > self.limits.most_to_destage {
            destager.destage(log)
        } else {
            Ok(())
        };
        if self.log.bytes_to_destage() > self.limits.to_destage && !self.medium_full.is_so() {
            self.health.signals().wake_worker();
        }
        self.put_off(result)
    }

    /// What the medium refuses to take from the journal, or cannot read for that, stays there.
    fn put_off(&mut self, destaged: Result<()>) -> Result<()> {
        match destaged {
            Err(e) if self.medium_full.enter(&e) => Ok(()),
            done => done.map_err(|e| self.fail(e)),
        }
    }

    /// One turn of the background thread. `idle`: nobody has used the disk for a while.
    pub(crate) fn work(&mut self, idle: bool, spare_wanted: bool) -> Result<()> {
        self.health.check()?;
        let nothing_ready = self.segments.ready() == (0, 0);
        if idle || (spare_wanted && nothing_ready) {
            if self.gatherer.is_dirty() || self.segments.count_cow_segments() > 0 {
                self.commit(Scope::All)?;
            }
        } else {
            self.commit(Scope::Ready)?;
        }
        let pending = self.log.bytes_to_destage();
        if self.medium_full.is_so() {
            if idle {
                // Somebody else may have freed space.
                self.medium_full.note_discard();
            }
        } else if pending > self.limits.to_destage || (idle && pending > 0) {
            let destaged = self.destager.destage(&mut self.log);
            self.put_off(destaged)?;
        }
        self.upkeep()
    }

    /// Everything destaged and the journal empty, as far as the medium has space. After a failure,
    /// what was the cause of it.
    pub(crate) fn close(&mut self) -> Result<()> {
        if let Some(cause) = self.health.cause() {
            return Err(cause.context("the disk stopped taking writes"));
        }
        match self.commit(Scope::All) {
            // The second one finds room in the journal, if there is some.
            Err(e) if e.changed_nothing() && self.medium_full.is_so() => self.commit(Scope::All)?,
            done => done?,
        }
        // What finds no space in its slot is durable in the journal.
        let destaged = if self.medium_full.is_so() {
            self.medium_full.destage_what_fits(&mut self.destager, &mut self.log)
        } else {
            self.medium_full.checkpoint_or_stay(&mut self.destager, &mut self.log)
        };
        destaged.map_err(|e| self.health.fail(e))?;
        self.destager.mover().give_back();
        Ok(())
    }

    fn fail(&mut self, e: Error) -> Error {
        if self.medium_full.enter(&e) {
            self.refused = true;
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
                        match self.destager.mover().complete(segment, &stream) {
                            Err(e) if self.medium_full.enter(&e) => declined.push((segment, stream)),
                            done => done.map(|()| streams.push((segment, stream)))?,
                        }
                    }
                }
            }
        }
        if !streams.is_empty() {
            match self.destager.mover().settle_slots() {
                // The journal takes what they cover.
                Err(e) if self.medium_full.enter(&e) => declined.append(&mut streams),
                done => done?,
            }
        }
        moves.extend(streams.iter().map(|(segment, stream)| (*segment, Some(stream.slot))));
        for moves in moves.chunks(MOVES_PER_BATCH) {
            self.make_room(0)?;
            self.destager.mover().record(&mut self.log, moves)?;
        }
        declined.into_iter().try_for_each(|(segment, stream)| self.decline(segment, &stream))
    }

    /// Sends what a frozen copy-on-write segment covers through the journal and gives its slot up.
    fn decline(&mut self, segment: SegmentNo, stream: &Stream) -> Result<()> {
        let covered: Vec<u64> = (0..SEGMENT_BLOCKS).filter(|index| stream.covers(*index)).collect();
        for indices in covered.chunks(self.limits.batch_blocks) {
            self.make_room(indices.len())?;
            let draft = self.gatherer.covered(&mut self.log, segment, stream, indices)?;
            self.log.append(draft)?;
        }
        self.destager.mover().abandon(segment, stream)
    }

    fn commit_newest(&mut self, blocks: &[BlockAddr]) -> Result<()> {
        for blocks in blocks.chunks(self.limits.batch_blocks) {
            self.make_room(blocks.len())?;
            let draft = self.gatherer.newest(&mut self.log, blocks);
            self.log.append(draft)?;
        }
        Ok(())
    }

    /// Makes room in the journal. Call it before gathering a batch or freezing a copy-on-write
    /// segment: it may run a checkpoint, which could record moves newer than what was gathered. It
    /// always leaves room for moves, and unless the medium was full from the start also the reserve
    /// for opening on a full medium.
    fn make_room(&mut self, blocks: usize) -> Result<()> {
        let len = Batch::len_for(blocks, blocks);
        if !self.medium_full.is_so() {
            let fits = self.log.fits(len, self.log.reserve() + MOVES_RESERVE);
            // What a refusal leaves half done the next commit takes up, before anything newer.
            return if fits { Ok(()) } else { self.destager.checkpoint(&mut self.log) };
        }
        // Moves free slots, and for them there is room to the last.
        let kept = match (self.medium_full.spends_reserve(), blocks) {
            (true, 0) => Batch::len_for(MOVES_PER_BATCH, 0),
            (true, _) => MOVES_RESERVE,
            (false, 0) => self.log.reserve().saturating_sub(MOVES_RESERVE),
            (false, _) => self.log.reserve(),
        };
        if !self.log.fits(len, kept) {
            self.medium_full.destage_what_fits(&mut self.destager, &mut self.log)?;
        }
        if self.log.fits(len, kept) { Ok(()) } else { Err(no_room(&self.log)) }
    }
}
