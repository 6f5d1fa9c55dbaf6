//! How acknowledged writes become durable: a commit.
//!
//! A commit turns copy-on-write segments into slots, then appends the cache's newest blocks to the journal (a flush appends
//! them before as well). The order within is what keeps invariant 1 of the crate: a copy-on-write segment is synced before the
//! record that makes it the slot is written; a slot is freed only after that record is durable.

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
use lacuna_core::{BlockAddr, Error, Kind, Result, SEGMENT_BLOCKS};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// If a stream wrote fewer blocks than this of a segment that has a slot, they go through the journal. That costs three
/// accesses for each block written (read back, journal, slot); completing costs two for each block not written.
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
    emergency_flushed: bool,
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
        let (full_commits, emergency_flushed) = (Arc::default(), false);
        Committer {
            log,
            destager,
            gatherer,
            medium_full,
            segments,
            health,
            limits,
            full_commits,
            emergency_flushed,
        }
    }

    /// Takes in what replay found, and destages it unless the disk is only read: then it stays in memory as long as the disk
    /// is open, at most as much as the length of the journal.
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

    /// How many commits of [`Scope::All`] have begun.
    pub(crate) fn full_commits(&self) -> &Arc<AtomicU64> {
        &self.full_commits
    }

    /// Commits within `scope`; a failure ends all writing.
    pub(crate) fn commit(&mut self, scope: Scope) -> Result<()> {
        self.health.check()?;
        if scope == Scope::All {
            self.full_commits.fetch_add(1, Ordering::SeqCst);
        }
        let result = self.commit_steps(scope);
        self.health.signals().wake_writers();
        result.map_err(|e| self.fail(e))
    }

    /// The cache goes first as well as last: a block that was acknowledged there before a flush may be covered
    /// by a copy-on-write segment opened meanwhile, whose commit this flush does not wait for.
    fn commit_steps(&mut self, scope: Scope) -> Result<()> {
        if scope == Scope::All {
            self.commit_newest(&self.gatherer.take_dirty())?;
        }
        self.commit_cow_segments(|cow_segment| match cow_segment {
            CowSegment::PendingDiscard => true,
            CowSegment::Stream(stream) => scope == Scope::All || stream.is_whole(),
        })?;
        self.commit_newest(&self.gatherer.take_dirty())
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
        if self.log.bytes_to_destage() > self.limits.to_destage {
            self.health.signals().wake_worker();
        }
        result.map_err(|e| self.fail(e))
    }

    /// One turn of the background thread. `idle`: nobody has used the disk for a while.
    pub(crate) fn work(&mut self, idle: bool, spare_wanted: bool) -> Result<()> {
        if self.health.cause().is_some() {
            self.emergency_flush();
            return self.health.check();
        }
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
            self.destager.destage(&mut self.log).map_err(|e| self.health.fail(e))?;
        }
        self.upkeep()
    }

    /// Everything destaged and the journal empty, as far as the medium has space. After a failure, what was the cause of it.
    pub(crate) fn close(&mut self) -> Result<()> {
        if let Some(cause) = self.health.cause() {
            self.emergency_flush();
            return Err(cause.context("the disk stopped taking writes"));
        }
        self.commit(Scope::All)?;
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
        let e = self.health.fail(e);
        self.emergency_flush();
        e
    }

    /// After the medium was found full: what was acknowledged still fits the journal, which has its space since
    /// the disk was created. One attempt to put it there, whatever of it succeeds; after any other failure,
    /// none, for nobody knows what such a medium keeps.
    fn emergency_flush(&mut self) {
        let full = self.health.cause().is_some_and(|e| e.kind() == Kind::NoSpace);
        if !full || std::mem::replace(&mut self.emergency_flushed, true) {
            return;
        }
        // What was written since a stream was frozen is later than the stream, and follows it.
        let mut first = self.gatherer.all_dirty();
        first.retain(|block| {
            let cow_segment = self.segments.cow_segment(SegmentNo::of(*block));
            !matches!(cow_segment, Some(CowSegment::Stream(stream)) if stream.is_frozen())
        });
        let _ = self.commit_newest(&first);
        for (segment, _) in self.segments.cow_segments() {
            match self.segments.freeze(segment) {
                Some(CowSegment::Stream(stream)) => {
                    // Nothing has to be copied for these two; the others need room in the journal.
                    let easy = stream.is_whole() || matches!(self.segments.slot(segment), Ok(None));
                    let moved = easy && self.destager.mover().complete_all(&mut self.log, [segment]).is_ok();
                    if !moved {
                        let _ = self.decline(segment, &stream);
                    }
                }
                Some(CowSegment::PendingDiscard) => {
                    drop(self.destager.mover().record(&mut self.log, &[(segment, None)]));
                }
                None => {}
            }
        }
        let _ = self.commit_newest(&self.gatherer.all_dirty());
    }

    fn commit_cow_segments(&mut self, due: impl Fn(&CowSegment) -> bool) -> Result<()> {
        self.make_room(0)?;
        let mut moves = vec![];
        let mut declined = vec![];
        let mut streams = false;
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
                        self.destager.mover().complete(segment, &stream)?;
                        moves.push((segment, Some(stream.slot)));
                        streams = true;
                    }
                }
            }
        }
        if streams {
            self.destager.mover().settle_slots()?;
        }
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

    /// Makes room in the journal. Call it before gathering a batch or freezing a copy-on-write segment: it may run a
    /// checkpoint, which could record moves newer than what was gathered. It always leaves room for moves, and while the
    /// medium is not full also the reserve for opening on a full medium.
    fn make_room(&mut self, blocks: usize) -> Result<()> {
        let len = Batch::len_for(blocks, blocks);
        let moves = if self.emergency_flushed { 0 } else { MOVES_RESERVE };
        if !self.medium_full.is_so() {
            let fits = self.log.fits(len, self.log.reserve() + moves);
            return if fits { Ok(()) } else { self.destager.checkpoint(&mut self.log) };
        }
        // Moves free slots, and for them there is room to the last.
        let kept = if blocks == 0 { Batch::len_for(MOVES_PER_BATCH, 0) } else { moves };
        if !self.log.fits(len, kept) {
            self.medium_full.destage_what_fits(&mut self.destager, &mut self.log)?;
        }
        if self.log.fits(len, kept) { Ok(()) } else { Err(no_room(&self.log)) }
    }
}
