//! Destaging: writes blocks from the journal to their slots, and retires the journal.
//!
//! The order matters: a batch is retired only after its blocks are durable in their slots and the
//! map entries of these are durable.

use crate::address::{CHUNK_BLOCKS, SegmentNo};
use crate::caches::cache::{CommittedVersion, WriteCache};
use crate::counters::{Count, Counters};
use crate::geometry::CHUNK_META;
use crate::health::Health;
use crate::journal::JournalMark;
use crate::log::Log;
use crate::segments::Segments;
use crate::segments::remapper::Remapper;
use crate::slot_store::SlotStore;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Kind, Result};
use lacuna_medium::Medium;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A checkpoint with everything destaged up to a mark of the journal, and not durable yet.
pub(crate) struct BegunCheckpoint {
    mark: JournalMark,
    medium: Arc<dyn Medium>,
}

impl BegunCheckpoint {
    /// Makes the slots durable, without the commit lock.
    pub(crate) fn sync(&self) -> Result<()> {
        self.medium.sync().map_err(|e| e.with_kind(Kind::Io))
    }

    /// The end of the journal when the checkpoint began.
    pub(crate) fn mark(&self) -> JournalMark {
        self.mark
    }
}

/// Destages blocks. Used under the commit lock only.
pub(crate) struct Destager {
    remapper: Remapper,
    cache: Arc<WriteCache>,
    segments: Arc<Segments>,
    store: Arc<SlotStore>,
    counters: Arc<Counters>,
    health: Arc<Health>,
    /// A handle of its own for syncs beside commits. The system reports a failed write once to each
    /// handle: through a common one, the sync of a checkpoint could take the report that a commit
    /// needs.
    second_handle: Option<Arc<dyn Medium>>,
}

impl Destager {
    pub(crate) fn new(
        mover: Remapper,
        cache: Arc<WriteCache>,
        segments: Arc<Segments>,
        store: Arc<SlotStore>,
        counters: Arc<Counters>,
        health: Arc<Health>,
        second_handle: Option<Arc<dyn Medium>>,
    ) -> Self {
        Destager { remapper: mover, cache, segments, store, counters, health, second_handle }
    }

    /// The mover of segments.
    pub(crate) fn remapper(&mut self) -> &mut Remapper {
        &mut self.remapper
    }

    /// Has the medium fetch the metadata of these blocks, which are about to be destaged in this
    /// order.
    ///
    /// Errors: a segment without a readable slot.
    pub(crate) fn fetch_meta<'b>(&self, blocks: impl Iterator<Item = &'b BlockAddr>) -> Result<()> {
        let mut slots = vec![];
        for block in blocks {
            slots.extend(self.segments.slot(SegmentNo::of(*block))?.map(|slot| slot.at(*block)));
        }
        self.store.will_write(slots.into_iter());
        Ok(())
    }

    /// Writes every committed version to its slot. Not synced: the journal still holds them. Blocks
    /// of a segment that got its first copy-on-write segment meanwhile stay for the next call.
    pub(crate) fn destage(&mut self, log: &mut Log) -> Result<()> {
        self.assign_slots(log)?;
        let blocks = log.take_to_destage();
        let cache = self.cache.clone();
        let sent = for_each_run(&cache, &blocks, |run| self.destage_run(log, run));
        if sent.is_err() {
            // Blocks already destaged have no committed version any more and are skipped next time.
            log.put_back(blocks);
        }
        log.recycle_buffers();
        sent
    }

    /// Completes the copy-on-write segment of each segment that has no slot: it becomes the slot.
    fn assign_slots(&mut self, log: &mut Log) -> Result<()> {
        let mut segments = log.segments();
        segments.retain(|segment| matches!(self.segments.slot(*segment), Ok(None)));
        self.remapper.complete_all(log, segments)
    }

    /// Destages one run, of at least one block.
    pub(crate) fn destage_run(&mut self, log: &mut Log, run: &[(BlockAddr, CommittedVersion)]) -> Result<()> {
        let (first, kind) = &run[0];
        let (first, segment, count) = (*first, SegmentNo::of(*first), run.len() as u64);
        let failed =
            |e: Error| e.context(format!("write of {count} blocks to their slot at block {}", first.0));
        let _writing = self.segments.exclusive(first);
        match kind {
            CommittedVersion::Hole => {
                if let Some(slot) = self.segments.slot(segment)? {
                    self.store.erase(slot.at(first), count).map_err(failed)?;
                }
            }
            CommittedVersion::Data { batch, at, .. } => {
                if self.segments.slot(segment)?.is_none() && self.segments.cow_segment(segment).is_some() {
                    log.put_back(run.iter().map(|(block, _)| *block));
                    return Ok(());
                }
                let slot = self.remapper.slot_to_write(segment)?;
                let size = self.store.meta_size();
                let mut metas = [0; CHUNK_META];
                let metas = &mut metas[..run.len() * size];
                // `max(1)`: a cipher without metadata has nothing to copy, and `chunks_exact_mut`
                // panics on 0.
                for (to, (_, committed)) in metas.chunks_exact_mut(size.max(1)).zip(run) {
                    if let CommittedVersion::Data { meta, .. } = committed {
                        to.copy_from_slice(&meta[..size]);
                    }
                }
                let data = &batch[*at..at + run.len() * BLOCK_SIZE];
                self.store.write(slot.at(first), data, metas).map_err(failed)?;
            }
        }
        for (block, _) in run {
            self.cache.drop_committed(*block);
        }
        self.counters.add(Count::Destaged, count);
        Ok(())
    }

    /// Destages everything, and writes the metadata to the medium too. Not synced.
    pub(crate) fn destage_all(&mut self, log: &mut Log) -> Result<()> {
        self.destage(log)?;
        while !log.is_destaged() {
            self.destage(log)?;
        }
        self.store.write_dirty_meta()
    }

    /// Destages everything and makes it durable, then the map, then retires the journal.
    pub(crate) fn checkpoint(&mut self, log: &mut Log) -> Result<()> {
        // After a failure it is unknown which blocks were destaged, so nothing may be retired.
        self.health.check()?;
        self.destage_all(log)?;
        self.remapper.make_durable()?;
        log.retire()
    }

    /// Begins a checkpoint: destages everything. `None` if entries of the map have to follow the
    /// slots, or there is no second handle; then the whole checkpoint was made.
    pub(crate) fn begin_checkpoint(&mut self, log: &mut Log) -> Result<Option<BegunCheckpoint>> {
        self.health.check()?;
        self.destage_all(log)?;
        match &self.second_handle {
            Some(medium) if !self.remapper.has_stale_entries() => {
                Ok(Some(BegunCheckpoint { mark: log.mark(), medium: medium.clone() }))
            }
            _ => self.checkpoint(log).map(|()| None),
        }
    }
}

/// Calls `each` for every run of committed blocks that can be destaged in one access.
pub(crate) fn for_each_run(
    cache: &WriteCache,
    blocks: &BTreeSet<BlockAddr>,
    mut each: impl FnMut(&[(BlockAddr, CommittedVersion)]) -> Result<()>,
) -> Result<()> {
    let mut run: Vec<(BlockAddr, CommittedVersion)> = vec![];
    for &block in blocks {
        let Some(committed) = cache.committed(block) else { continue };
        if run.last().is_some_and(|(last, previous)| !continues(*last, previous, block, &committed)) {
            each(&run)?;
            run.clear();
        }
        run.push((block, committed));
    }
    if run.is_empty() { Ok(()) } else { each(&run) }
}

/// Whether a committed block can be destaged in the same access as the one before it: it is the
/// next block of the same chunk, and both are holes or they are neighbours in one batch.
fn continues(
    last: BlockAddr,
    previous: &CommittedVersion,
    block: BlockAddr,
    next: &CommittedVersion,
) -> bool {
    if block.0 != last.0 + 1 || block.0.is_multiple_of(CHUNK_BLOCKS) {
        return false;
    }
    match (previous, next) {
        (CommittedVersion::Hole, CommittedVersion::Hole) => true,
        (CommittedVersion::Data { batch: a, at: i, .. }, CommittedVersion::Data { batch: b, at: j, .. }) => {
            Arc::ptr_eq(a, b) && i + BLOCK_SIZE == *j
        }
        _ => false,
    }
}
