//! Everything that changes the disk, one thread at a time: writes of the buffer to the log,
//! discards, purges, checkpoints.

use crate::checkpoint::Checkpoints;
use crate::ids::NodePlace;
use crate::index::Index;
use crate::key_storage::KeyStorage;
use crate::key_storage::assignment::Lifetime;
use crate::key_storage::purger::{PurgeHost, PurgeResult, Purger};
use crate::log::collector::GarbageCollector;
use crate::log::group::DiscardedBlock;
use crate::log::log_writer::LogWriter;
use crate::params::INDEX_FANOUT;
use crate::purge_status::{PurgeStats, PurgeStatus};
use crate::reader::BlockReader;
use crate::write_buffer::{PlainBlock, WriteBuffer};
use lacuna_contracts::{BLOCK_SIZE, Error, FailStop, Kind, OnPanic, Result, panic_error};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The state under the writer's lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriterState {
    /// The last complete purge.
    pub(crate) epoch: u64,
    /// Whether a purge has begun and is not complete.
    pub(crate) purging: bool,
    /// Whether versions of sensitive blocks still have to be deleted and purged. Any later
    /// operation that deletes them, including a write of the buffer to the log, purges as well.
    pub(crate) is_purge_owed: bool,
    /// Whether versions may be recoverable that a process before this one deleted. It may have died
    /// with an owed purge, which is in no log: so a purge is owed as soon as any blocks are
    /// sensitive.
    pub(crate) has_inherited: bool,
}

impl WriterState {
    /// The state after an opening. `has_inherited`: whether versions may be recoverable.
    pub(crate) fn new(epoch: u64, purging: bool, has_inherited: bool) -> WriterState {
        WriterState { epoch, purging, is_purge_owed: false, has_inherited }
    }
}

/// See the module documentation.
pub(crate) struct DiskWriter {
    state: Mutex<WriterState>,
    buffer: Arc<WriteBuffer>,
    index: Arc<Index>,
    keys: Arc<KeyStorage>,
    log_writer: Arc<LogWriter>,
    checkpoints: Arc<Checkpoints>,
    collector: GarbageCollector,
    purger: Purger,
    reader: Arc<BlockReader>,
    pub(crate) health: FailStop,
    /// Blocks that are purged as soon as they are deleted.
    sensitive: RwLock<Vec<Range<u64>>>,
    /// Whether a purge has begun and is not finished.
    purge_wanted: AtomicBool,
    /// Counts blocks that were written to the log or discarded, and purges. After a change, an
    /// operation that was refused before may succeed.
    progress: AtomicU64,
    purge_stats: PurgeStats,
}

/// The parts of a writer.
pub(crate) struct WriterParts {
    pub(crate) buffer: Arc<WriteBuffer>,
    pub(crate) index: Arc<Index>,
    pub(crate) keys: Arc<KeyStorage>,
    pub(crate) log_writer: Arc<LogWriter>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) collector: GarbageCollector,
    pub(crate) purger: Purger,
    pub(crate) reader: Arc<BlockReader>,
    pub(crate) purge_stats: PurgeStats,
}

impl DiskWriter {
    pub(crate) fn new(parts: WriterParts, turn: WriterState) -> DiskWriter {
        DiskWriter {
            purge_wanted: AtomicBool::new(turn.purging),
            state: Mutex::new(turn),
            buffer: parts.buffer,
            index: parts.index,
            keys: parts.keys,
            log_writer: parts.log_writer,
            checkpoints: parts.checkpoints,
            collector: parts.collector,
            purger: parts.purger,
            reader: parts.reader,
            health: FailStop::of_disk("flash"),
            sensitive: RwLock::default(),
            progress: AtomicU64::new(0),
            purge_stats: parts.purge_stats,
        }
    }

    /// Runs `f` under the writer's lock. An error or panic in `f` ends all writing, unless the
    /// flash refused a call, or a read failed, and nothing was changed.
    fn with_state<R>(&self, f: impl FnOnce(&mut WriterState) -> Result<R>) -> Result<R> {
        let mut turn: MutexGuard<'_, WriterState> = self.state.lock();
        self.health.check()?;
        let _guard = OnPanic::new(|| drop(self.health.fail(panic_error())));
        let began = self.purge_stats.now();
        let done = f(&mut turn).map_err(|e| if changed_nothing(&e) { e } else { self.health.fail(e) });
        self.purge_stats.note_operation(began, || self.recoverable() == 0);
        done
    }

    /// Writes blocks. They are in the buffer when this returns, or in the log.
    pub(crate) fn write(&self, first: u32, data: &[u8]) -> Result<()> {
        self.health.check()?;
        if self.buffer.is_overfull() {
            // The flash refused a write that would have made room: accept nothing more until it
            // succeeds.
            self.flush()?;
        }
        let full = match self.buffer.put(first, data) {
            Err(e) if e.kind() == Kind::Memory => {
                // Many requests came at once.
                self.flush()?;
                self.buffer.put(first, data)?
            }
            added => added?,
        };
        self.purge_stats.note_write();
        let sensitive = self.sensitive_among(first, (data.len() / BLOCK_SIZE) as u32);
        if !sensitive.is_empty() {
            return self.purge_sensitive(&sensitive);
        }
        if full { self.flush() } else { Ok(()) }
    }

    /// Writes everything acknowledged to the log, where it is durable, and completes an owed purge.
    pub(crate) fn flush(&self) -> Result<()> {
        self.with_state(|turn| self.flush_in(turn))
    }

    fn flush_in(&self, turn: &mut WriterState) -> Result<()> {
        if turn.is_purge_owed { self.purge_if_needed_in(turn) } else { self.flush_buffer(turn) }
    }

    fn flush_buffer(&self, turn: &WriterState) -> Result<()> {
        let blocks = self.buffer.take();
        self.place_all(turn, &blocks, |placed| self.buffer.mark_clean(placed.iter().map(|(block, _)| *block)))
            .inspect_err(|_| self.buffer.put_back())
    }

    fn place_all(
        &self,
        turn: &WriterState,
        blocks: &[(u32, PlainBlock)],
        placed: impl Fn(&[(u32, PlainBlock)]),
    ) -> Result<()> {
        let lifetimes = Lifetime::of(blocks);
        let mut at = 0;
        while at < blocks.len() {
            self.collector.make_room(turn.epoch, turn.purging)?;
            let done = self.log_writer.write_blocks(&blocks[at..], &lifetimes[at..])?;
            placed(&blocks[at..at + done]);
            self.note_progress(done);
            at += done;
        }
        Ok(())
    }

    /// Makes blocks holes, durably.
    pub(crate) fn discard(&self, first: u32, count: u32) -> Result<()> {
        let sensitive = self.sensitive_among(first, count);
        self.with_state(|turn| {
            // If the purge is refused, the blocks are holes already when the discard is repeated.
            let holds = self.any_written(&sensitive)? || (turn.is_purge_owed && !sensitive.is_empty());
            turn.is_purge_owed |= holds;
            let mut at = first;
            while at < first + count {
                let page = at / INDEX_FANOUT as u32;
                let end = ((page + 1) * INDEX_FANOUT as u32).min(first + count);
                // First, since it moves nodes.
                self.collector.make_room(turn.epoch, turn.purging)?;
                if let Some(entries) = self.index.entries(page)? {
                    let place =
                        |block: u32| NodePlace::unpack(entries[(block % INDEX_FANOUT as u32) as usize]);
                    let discarded: Vec<DiscardedBlock> = (at..end)
                        .filter_map(|block| Some(DiscardedBlock { block, place: place(block)? }))
                        .collect();
                    self.log_writer.discard(&discarded)?;
                    self.note_progress(discarded.len());
                }
                // Last: if the discard fails, the block keeps its acknowledged version, and not the
                // one before it.
                self.buffer.drop_pending(at, end - at);
                at = end;
            }
            if holds { self.purge_in(turn).map(drop) } else { Ok(()) }
        })
    }

    /// Ends the epoch: when this returns, data deleted before the call cannot be read from the
    /// flash.
    ///
    /// Errors: [`Kind::PurgeIncomplete`] whatever the cause. Writing has ended then, unless the
    /// flash refused a call or a read failed: in that case another purge may complete.
    pub(crate) fn purge(&self) -> Result<PurgeResult> {
        self.with_state(|turn| self.purge_in(turn)).map_err(|e| self.incomplete(e))
    }

    /// Writes everything acknowledged to the log, and ends the epoch if anything is recoverable
    /// then.
    pub(crate) fn purge_if_needed(&self) -> Result<()> {
        self.with_state(|turn| self.purge_if_needed_in(turn)).map_err(|e| self.incomplete(e))
    }

    fn purge_if_needed_in(&self, turn: &mut WriterState) -> Result<()> {
        self.flush_buffer(turn)?;
        if self.keys.recoverable().max > 0 || turn.purging {
            self.purge_in(turn)?;
        }
        (turn.is_purge_owed, turn.has_inherited) = (false, false);
        Ok(())
    }

    /// Writes everything acknowledged to the log, and purges if one of these blocks was on the
    /// flash, so that the write just acknowledged deletes a version of it.
    fn purge_sensitive(&self, sensitive: &[Range<u32>]) -> Result<()> {
        self.with_state(|turn| {
            let written = self.any_written(sensitive);
            // The blocks are in the buffer by now, even if a call is refused. If the index cannot
            // be read, assume that they replace versions on the flash.
            turn.is_purge_owed |= !matches!(written, Ok(false));
            written?;
            self.flush_in(turn)
        })
    }

    fn any_written(&self, ranges: &[Range<u32>]) -> Result<bool> {
        for block in ranges.iter().cloned().flatten() {
            if self.index.get(block)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The error of a purge that could not be completed.
    fn incomplete(&self, cause: Error) -> Error {
        if cause.kind() == Kind::PurgeIncomplete {
            return cause;
        }
        let error = Error::new(Kind::PurgeIncomplete, "the purge could not be completed")
            .found(format!(
                "{}; blocks that may still be recoverable: {}",
                cause.summary(),
                self.recoverable()
            ))
            .expected("flash that takes every write and every erasure")
            .hint(
                "no flushed data is lost: close the disk, open it again and purge it; if that fails as well, \
                 copy the content to another device and destroy this one",
            );
        error.caused_by(cause)
    }

    fn purge_in(&self, turn: &mut WriterState) -> Result<PurgeResult> {
        self.try_purge_in(turn).map_err(|e| self.incomplete(e))
    }

    fn try_purge_in(&self, turn: &mut WriterState) -> Result<PurgeResult> {
        self.flush_buffer(turn)?;
        self.collector.make_room(turn.epoch, turn.purging)?;
        self.purger.start(turn.epoch + 1)?;
        turn.purging = true;
        self.purge_wanted.store(true, Ordering::Relaxed);
        let purged = self.purger.purge(&LockedWriter { writer: self, state: turn })?;
        self.purger.finish(turn.epoch + 1)?;
        (turn.epoch, turn.purging) = (turn.epoch + 1, false);
        (turn.is_purge_owed, turn.has_inherited) = (false, false);
        self.purge_wanted.store(false, Ordering::Relaxed);
        self.purge_stats.note_purged(turn.epoch, purged);
        self.note_progress(1);
        Ok(purged)
    }

    /// Finishes an interrupted purge at an opening. A failure ends all writing, and every later
    /// call that writes reports it; reads go on. After a refusal, or a failed read, the purge is
    /// still wanted, and the next one finishes it.
    pub(crate) fn finish_purge(&self) -> PurgeResult {
        self.purge().unwrap_or_default()
    }

    /// [`crate::FlashDisk::mark_sensitive`]
    pub(crate) fn mark_sensitive(&self, blocks: Range<u64>) {
        self.sensitive.write().push(blocks);
        let mut turn = self.state.lock();
        turn.is_purge_owed |= turn.has_inherited;
    }

    /// The sensitive ranges among these blocks.
    fn sensitive_among(&self, first: u32, count: u32) -> Vec<Range<u32>> {
        let (first, end) = (u64::from(first), u64::from(first) + u64::from(count));
        let common = |range: &Range<u64>| range.start.max(first)..range.end.min(end);
        let ranges = self.sensitive.read();
        let ranges = ranges.iter().map(common).filter(|range| !range.is_empty());
        ranges.map(|range| range.start as u32..range.end as u32).collect()
    }

    /// Blocks that are or may be recoverable. Those in the buffer count, since each may replace one
    /// on the flash.
    pub(crate) fn recoverable(&self) -> u64 {
        self.keys.recoverable().max + self.buffer.len() as u64
    }

    /// The deletion status: recoverable blocks and completed purges.
    pub(crate) fn purge_status(&self, period: Option<Duration>) -> PurgeStatus {
        let status = self.purge_stats.status(self.recoverable(), period);
        PurgeStatus {
            // A purge may have ended between the two reads.
            recoverable_known: self.keys.recoverable().known.min(status.recoverable),
            purge_wanted: self.purge_wanted.load(Ordering::Relaxed),
            ..status
        }
    }

    /// The time by the clock of the disk.
    pub(crate) fn now(&self) -> Duration {
        self.purge_stats.now()
    }

    /// The age of the oldest deletion that is not purged.
    pub(crate) fn oldest_deletion_age(&self) -> Option<Duration> {
        self.purge_stats.since().map(|since| self.now().saturating_sub(since))
    }

    /// A number that changes whenever the log takes or discards blocks, or a purge completes.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    fn note_progress(&self, by: usize) {
        self.progress.fetch_add(by as u64, Ordering::Relaxed);
    }

    fn checkpoint_in(&self, turn: &WriterState) -> Result<()> {
        self.collector.make_room(turn.epoch, turn.purging)?;
        self.checkpoints.write(&self.log_writer, turn.epoch, turn.purging)
    }

    /// Writes everything to the log, purges, and writes a checkpoint.
    pub(crate) fn close(&self) -> Result<()> {
        self.with_state(|turn| {
            self.purge_if_needed_in(turn)?;
            // No key is assigned after this. The next opening thus knows that the unused keys of
            // these blocks encrypt nothing.
            self.keys.end_epoch();
            self.checkpoint_in(turn)
        })
        .map_err(|e| match self.health.cause() {
            // Closing does not mend a failed purge.
            Some(cause) if cause.kind() == Kind::PurgeIncomplete => e.with_kind(Kind::PurgeIncomplete),
            _ => e,
        })
    }

    /// Blocks that were collected, and nodes that were copied from them.
    pub(crate) fn collected(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.collector.collected), count(&self.collector.copied))
    }
}

/// Whether the flash refused a call or a read failed, also within a purge.
fn changed_nothing(e: &Error) -> bool {
    let cause = std::error::Error::source(e).and_then(|cause| cause.downcast_ref::<Error>());
    let of_purge = e.kind() == Kind::PurgeIncomplete && cause.is_some_and(changed_nothing);
    e.changed_nothing() || of_purge
}

/// The services of the writer for a purge, which runs under the writer's lock.
struct LockedWriter<'w> {
    writer: &'w DiskWriter,
    state: &'w WriterState,
}

impl PurgeHost for LockedWriter<'_> {
    fn make_room(&self) -> Result<()> {
        self.writer.collector.make_room(self.state.epoch, self.state.purging)
    }

    fn rewrite(&self, blocks: &[u32]) -> Result<()> {
        for part in blocks.chunks(256) {
            let mut plain = Vec::with_capacity(part.len());
            for block in part {
                let mut copy = self.writer.buffer.block_outside()?;
                // An unreadable block keeps its key, so the purge cannot be reported as complete.
                self.writer.reader.read(*block, copy.bytes_mut())?;
                plain.push((*block, Arc::new(copy)));
            }
            self.writer.place_all(self.state, &plain, |_| {})?;
        }
        Ok(())
    }

    fn evict(&self, lebs: &BTreeSet<u32>) -> Result<()> {
        self.make_room()?;
        self.writer.collector.evict(lebs, self.state.epoch, self.state.purging)
    }
}

/// A block number in 32 bits.
pub(crate) fn block_number(block: u64) -> Result<u32> {
    u32::try_from(block).map_err(|_| {
        Error::new(Kind::Other, "a block lies past the end of the disk").found(format!("block {block}"))
    })
}
