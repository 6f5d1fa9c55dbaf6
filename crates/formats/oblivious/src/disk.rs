//! An open oblivious disk: creates and opens it, and serves its levels.
//!
//! Invariant: the disk creates its parts and hands each the parts below it. They are empty until
//! recovery has read the medium, and no thread runs before that.

use crate::batch::prepared::BatchPreparer;
use crate::batch::prepared_queue::PreparedQueue;
use crate::batch::writer::BatchWriter;
use crate::batch_store::BatchStore;
use crate::cells::cell_store::CellStore;
use crate::cells::level_cells::LevelCells;
use crate::cells::place::BatchSeq;
use crate::durability::Durability;
use crate::journal::Journal;
use crate::keys::{LevelKey, OpenLevelKeys};
use crate::leaf_loader::LeafLoader;
use crate::open_levels::OpenLevels;
use crate::params::Params;
use crate::progress::BatchProgress;
use crate::public_level::PublicLevel;
use crate::recovery::Recovery;
use crate::threads::Threads;
use lacuna_contracts::{
    BLOCK_SIZE, BlockAddr, Budget, Error, FailStop, Kind, Result, Secret, StatusItem, closed_error,
};
use lacuna_levels::{
    DiskKeys, HiddenLevels, LevelDisk, LevelFormat, LevelMap, Levels, OpenMode, OpenOptions, Pace,
    QueuedLevel, Randomness, check_length, level_disks,
};
use lacuna_medium::Medium;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The approximate memory for the changes of a leaf that waits to be written.
const BYTES_OF_DIRTY_LEAF: u64 = 128;

/// An oblivious disk, open.
pub struct ObliviousDisk {
    medium: Arc<dyn Medium>,
    params: Params,
    mode: OpenMode,
    health: Arc<FailStop>,
    keys: Arc<OpenLevelKeys>,
    /// Lengths of all open levels, in blocks.
    lengths: Vec<u64>,
    journal: Arc<Journal>,
    cells: Arc<CellStore>,
    durability: Arc<Durability>,
    store: Arc<BatchStore>,
    levels: Arc<OpenLevels>,
    prepared_queue: Arc<PreparedQueue>,
    public: Arc<PublicLevel>,
    threads: Mutex<Option<Threads>>,
    /// The batch that ended the last cover of a closing.
    covered: Mutex<Option<BatchSeq>>,
}

impl LevelFormat for Params {
    type Disk = ObliviousDisk;

    fn end(&self) -> u64 {
        Params::end(self)
    }

    /// Writes the first batch. The cells are left as they are: the cells that batches rewrote are
    /// public.
    fn create(&self, medium: &Arc<dyn Medium>, masters: DiskKeys<'_>, random: Randomness) -> Result<()> {
        check_length(medium.len(), self.end(), Kind::NoSpace)?;
        check_levels(masters.keys)?;
        let options = OpenOptions::foreground(Budget::bytes(1 << 20), random);
        ObliviousDisk::build(Arc::clone(medium), *self, masters, &options).public.finish()
    }

    fn open(
        &self,
        medium: Arc<dyn Medium>,
        masters: DiskKeys<'_>,
        options: OpenOptions,
    ) -> Result<ObliviousDisk> {
        medium.forget_cached()?;
        check_levels(masters.keys)?;
        check_length(medium.len(), self.end(), Kind::Corrupt)?;
        let disk = ObliviousDisk::build(medium, *self, masters, &options);
        disk.recover()?;
        // Deniability contract: the reads that rebuilt the maps show which levels exist.
        disk.medium.forget_cached()?;
        disk.medium.expect_random_reads();
        if disk.mode.background {
            let loader = LeafLoader {
                prepared_queue: Arc::clone(&disk.prepared_queue),
                levels: Arc::clone(&disk.levels),
            };
            let interval = Duration::from_millis(u64::from(self.plan.cover_millis));
            let ObliviousDisk { public, prepared_queue: ahead, store, durability, .. } = &disk;
            *disk.threads.lock() = Some(Threads::start(public, ahead, loader, store, durability, interval)?);
        }
        Ok(disk)
    }
}

impl ObliviousDisk {
    /// The open levels, starting at level 0.
    pub fn levels(self: &Arc<Self>) -> Vec<Arc<LevelDisk>> {
        level_disks(self)
    }

    /// The parameters it was opened with.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// A disk without batches and with empty levels.
    fn build(
        medium: Arc<dyn Medium>,
        params: Params,
        masters: DiskKeys<'_>,
        options: &OpenOptions,
    ) -> ObliviousDisk {
        let (mode, health) = (OpenMode::of(options), Arc::new(FailStop::default()));
        let Randomness { public: random, filler } = options.random.clone();
        let keys = Arc::new(OpenLevelKeys::new(masters, &*filler));
        let length = |(level, key): (u8, &LevelKey)| params.level_blocks(level, &key.level);
        let lengths: Vec<u64> = (0..).zip(keys.levels()).map(length).collect();

        let journal = Arc::new(Journal::new(medium.clone(), params));
        let cells = Arc::new(CellStore::new(medium.clone(), params, mode.background));
        let durability = Arc::new(Durability::new(medium.clone(), health.clone(), mode.background));
        let store = Arc::new(BatchStore::new(&params, journal.clone(), cells.clone(), durability.clone()));

        let level_cells = open_cells(&params, &keys, &cells, lengths.len() as u8, options.budget);
        let (level0, hidden) = empty_levels(&params, &lengths, options.budget);
        let levels = Arc::new(OpenLevels::new(
            level0,
            hidden,
            level_cells,
            durability.clone(),
            health.clone(),
            mode,
            params.plan.cover_millis,
        ));

        let preparer = BatchPreparer::new(params, keys.clone(), random, cells.clone(), durability.clone());
        let ahead = Arc::new(PreparedQueue::new(preparer, health.clone()));
        let writer = BatchWriter::new(
            params,
            keys.clone(),
            filler,
            levels.clone(),
            ahead.clone(),
            store.clone(),
            durability.clone(),
        );
        let public = PublicLevel::new(
            params,
            health.clone(),
            levels.clone(),
            ahead.clone(),
            durability.clone(),
            store.clone(),
            writer,
        );
        ObliviousDisk {
            medium,
            params,
            mode,
            health,
            keys,
            lengths,
            journal,
            cells,
            durability,
            store,
            levels,
            prepared_queue: ahead,
            public: Arc::new(public),
            threads: Mutex::new(None),
            covered: Mutex::default(),
        }
    }

    /// Continues at the end of the batches on the medium.
    fn recover(&self) -> Result<()> {
        let recovery = Recovery { params: &self.params, keys: &self.keys, journal: &self.journal };
        let end = recovery.find_end()?;
        let (seq, name) = (end.head.public.seq, end.head.name());
        let applied = end.head.public.claims.applied;
        end.in_flight.iter().for_each(|(seq, cells)| self.cells.submit(*seq, cells));
        self.durability.resume(BatchProgress::at(seq, applied));
        if !self.mode.read_only {
            // The batches that were found may not be durable, and later batches rely on them.
            self.medium.sync()?;
        }
        for level in 0..self.levels.count() {
            self.levels.with(level, |state, cells| recovery.rebuild(level, &end.head, state, cells))?;
        }
        self.levels.resume(seq);
        self.public.resume(seq, name, applied);
        // After a power cut: a disk that is reopened again and again must not run out of ring.
        if !self.mode.read_only && applied.next() < seq {
            self.store.apply_to(seq)?;
            self.durability.sync()?;
            self.public.resume(seq, name, seq);
            self.public.finish()?;
        }
        Ok(())
    }

    fn stop(&self) {
        let threads = self.threads.lock().take();
        drop(threads);
        self.public.fail(closed_error());
    }
}

impl Drop for ObliviousDisk {
    fn drop(&mut self) {
        self.stop();
        // For a disk that was not closed, as after a refused opening. No caller is left to take an
        // error of the system.
        let _told = self.medium.forget_cached();
    }
}

/// Refuses more levels than a disk can have.
fn check_levels(masters: &[Secret<32>]) -> Result<()> {
    let most = usize::from(Params::HIDDEN_LEVELS) + 1;
    if masters.len() <= most {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "too many levels for this disk")
        .found(format!("{} levels", masters.len()))
        .expected(format!("at most {most}")))
}

/// Empty levels of these lengths.
fn empty_levels(params: &Params, lengths: &[u64], budget: Budget) -> (QueuedLevel, HiddenLevels) {
    let cached = |share: u64| (share / BLOCK_SIZE as u64) as usize;
    let cycle = u64::from(params.cycle);
    let quarter = budget.share(1, 4).get();
    // Pages are written no faster than the number of operations allows; their changes wait
    // meanwhile.
    let empty = |blocks, share: u64| {
        let most_dirty = (share / BYTES_OF_DIRTY_LEAF) as usize;
        QueuedLevel::new(LevelMap::new(blocks, cycle, cached(share)).spilling(most_dirty))
    };
    // The share of level 0 does not depend on the other open levels, nor does that of a hidden
    // level depend on the levels above it (deniability contract).
    let hidden = (0..).zip(lengths).skip(1).map(|(level, blocks)| empty(*blocks, quarter >> level));
    (empty(lengths[0], quarter), HiddenLevels::new(hidden.collect(), 0, quarter))
}

/// The cells of the first `count` levels.
fn open_cells(
    params: &Params,
    keys: &Arc<OpenLevelKeys>,
    cells: &Arc<CellStore>,
    count: u8,
    budget: Budget,
) -> Vec<LevelCells> {
    // As for maps, the share of a level depends on its number alone (deniability contract).
    let eighth = budget.share(1, 8).get();
    let of_level = |level| LevelCells::new(level, *params, keys.clone(), cells.clone(), eighth >> level);
    (0..count).map(of_level).collect()
}

impl Levels for ObliviousDisk {
    fn open_levels(&self) -> usize {
        self.lengths.len()
    }

    fn blocks(&self, level: u8) -> u64 {
        self.lengths[usize::from(level)]
    }

    fn read_only(&self) -> bool {
        self.mode.read_only
    }

    /// On a plausible disk a read counts as one operation for each block.
    fn read(&self, level: u8, first: u64, buf: &mut [u8]) -> Result<()> {
        self.levels.read(level, BlockAddr(first), buf)?;
        if !self.mode.read_only {
            // The data is valid even if the operation fails.
            let _failed = self.public.count_operations(buf.len() / BLOCK_SIZE);
        }
        Ok(())
    }

    fn write(&self, level: u8, first: u64, data: &[u8]) -> Result<()> {
        if level == 0 {
            return self.public.write(BlockAddr(first), data);
        }
        self.levels.write_hidden(level, BlockAddr(first), data)?;
        self.public.count_operations(data.len() / BLOCK_SIZE)
    }

    fn discard(&self, level: u8, first: u64, count: u64) -> Result<()> {
        if level == 0 {
            return self.public.discard(BlockAddr(first), count);
        }
        self.levels.discard_hidden(level, BlockAddr(first), count)?;
        self.public.count_discard()
    }

    fn flush(&self, level: u8) -> Result<()> {
        match level {
            0 => self.public.flush(),
            level => self.levels.flush_hidden(level),
        }
    }

    fn are_written(&self, level: u8, first: u64, count: usize) -> Result<Vec<bool>> {
        self.levels.are_written(level, BlockAddr(first), count)
    }

    fn status(&self, level: u8) -> Vec<StatusItem> {
        let (params, progress) = (&self.params, self.durability.progress());
        let batches = progress.written.0 - progress.opened_at.0;
        let medium_blocks = batches * params.batch_bytes() / BLOCK_SIZE as u64;
        let mut items = vec![
            StatusItem::new("last_batch", progress.written.0, "batch"),
            StatusItem::new("batches_written", batches, "batches"),
            StatusItem::new("cells_rewritten", batches * params.batch_cells() as u64, "cells"),
            StatusItem::new("medium_blocks_written", medium_blocks, "blocks"),
            StatusItem::new("public_blocks_written", self.public.blocks_written(), "blocks"),
            StatusItem::new("cover_interval", u64::from(params.plan.cover_millis), "ms"),
            StatusItem::new("refreshes", self.public.refreshes(), "batches"),
            StatusItem::new("syncs", self.durability.syncs(), "times"),
        ];
        items.extend(self.levels.status(level));
        items
    }

    fn refresh(&self) -> Result<()> {
        self.public.refresh()
    }

    fn cover_closing(&self, pace: Pace) -> Result<()> {
        if self.mode.read_only {
            return Ok(());
        }
        let mut covered = self.covered.lock();
        self.public.flush()?;
        // Deniability contract: whether cover is written follows from numbers of batches and the
        // pace of cover alone. A disk without beats that was only read gets none: every batch
        // overwrites cells of levels that are not open.
        let few = self.params.closing_cover().max_trailing();
        let is_untouched = !self.has_written() && self.params.plan.cover_millis == 0;
        if is_untouched || covered.is_some_and(|at| self.durability.progress().written.0 <= at.0 + few) {
            return Ok(());
        }
        self.public.cover_closing(pace)?;
        *covered = Some(self.durability.progress().written);
        Ok(())
    }

    fn set_no_wait(&self, level: u8, gives_up: bool) {
        self.levels.set_no_wait(level, gives_up);
    }

    fn note_loss(&self, level: u8) {
        self.levels.note_loss(level);
    }

    fn close(&self) -> Result<()> {
        let ended =
            if self.mode.read_only { Ok(()) } else { self.health.check().and_then(|()| self.end_log()) };
        self.stop();
        // Deniability contract: the pages of the medium in the system's cache would show which
        // cells were read for hidden levels.
        ended.and(self.medium.forget_cached())
    }
}

impl ObliviousDisk {
    /// Flushes level 0, writes the cover of a closing, and ends the journal, unless nothing was
    /// written.
    ///
    /// Deniability contract: if a hidden level had more pending than that cover took, the journal
    /// ends here, as it does if the medium fails now. The error that the caller gets then has a
    /// public reason, and the medium does not contradict it.
    fn end_log(&self) -> Result<()> {
        // The batches that follow are counted: no beat may come between them, nor after the last.
        self.threads.lock().iter_mut().for_each(Threads::end_clock);
        // If the medium refuses cover, the journal ends here too, whatever is pending.
        self.cover_closing(Pace::Immediate)?;
        self.health.check()?;
        self.levels.check_nothing_pending()?;
        if self.has_written() { self.public.finish() } else { Ok(()) }
    }

    /// Whether anything was written since the disk was opened.
    fn has_written(&self) -> bool {
        let progress = self.durability.progress();
        progress.written > progress.opened_at
    }
}
