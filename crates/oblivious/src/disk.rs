//! An open oblivious disk: how it is created and opened, and its levels.

use crate::ahead::Ahead;
use crate::cell::CellKey;
use crate::core::{Core, Counters, LevelKey};
use crate::params::Params;
use crate::public::Public;
use crate::recovery;
use crate::store::Store;
use crate::threads::Threads;
use lacuna_core::{BLOCK_SIZE, Budget, Error, FailStop, Kind, Result, Secret, StatusItem};
use lacuna_levels::{
    HiddenLevel, HiddenLevels, LevelDisk, LevelFormat, Levels, Masters, Mode, OpenOptions, Randomness, Tree,
    check_length, level_disks,
};
use lacuna_medium::Medium;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// About what it takes to remember the changes of a leaf that waits to be written.
const BYTES_OF_WAITING_LEAF: u64 = 128;

/// An oblivious disk, open.
pub struct Oblivious {
    core: Arc<Core>,
    threads: Mutex<Option<Threads>>,
}

impl LevelFormat for Params {
    type Disk = Oblivious;

    fn medium_len(&self) -> u64 {
        Params::medium_len(self)
    }

    /// Writes the first batch. The cells are left as they are: which of them batches rewrote is public.
    fn create(&self, medium: &Arc<dyn Medium>, masters: Masters<'_>, random: Randomness) -> Result<()> {
        check_length(medium.len(), self.medium_len(), Kind::NoSpace)?;
        if !self.is_writable() {
            return Err(
                Error::new(Kind::Usage, "cannot create an oblivious disk of version 1").expected("version 2")
            );
        }
        check_levels(self, masters.keys)?;
        let options = OpenOptions::in_the_foreground(Budget::bytes(1 << 20), random);
        build(Arc::clone(medium), self, masters, &options).finish()
    }

    fn open(
        &self,
        medium: Arc<dyn Medium>,
        masters: Masters<'_>,
        mut options: OpenOptions,
    ) -> Result<Oblivious> {
        medium.forget_cached()?;
        options.read_only |= !self.is_writable();
        check_levels(self, masters.keys)?;
        check_length(medium.len(), self.medium_len(), Kind::Corrupt)?;
        let core = build(medium, self, masters, &options);
        let end = recovery::find_end(&core.store, &core.keys[0].level)?;
        if !options.read_only {
            // What was found may still be on its way: batches that follow will rely on it.
            core.store.medium.sync()?;
        }
        {
            let mut public = core.public();
            recovery::rebuild(&core, 0, &end, &mut public.level)?;
            public.resume(end.public.seq, end.name(), end.public.applied);
            for level in 1..core.keys.len() as u8 {
                let mut state = core.hidden.lock(&core.health, level);
                state.filled = end.public.seq;
                recovery::rebuild(&core, level, &end, &mut state.level)?;
            }
        }
        // After a power cut: reopened again and again, a disk must not run out of ring.
        if !options.read_only && end.public.seq - end.public.applied > 1 {
            core.store.apply_to(end.public.seq)?;
            core.store.sync()?;
            core.public().resume(end.public.seq, end.name(), end.public.seq);
            core.finish()?;
        }
        core.store.medium.expect_random_reads();
        let core = Arc::new(core);
        let threads = if core.mode.background { Some(Threads::start(&core)?) } else { None };
        Ok(Oblivious { core, threads: Mutex::new(threads) })
    }
}

impl Oblivious {
    /// The open levels, from 0 up.
    pub fn levels(self: &Arc<Self>) -> Vec<Arc<LevelDisk>> {
        level_disks(self)
    }

    /// The parameters it was opened with.
    pub fn params(&self) -> &Params {
        &self.core.store.params
    }

    /// Whether nothing that was acknowledged of a level is in memory alone.
    fn is_settled(&self, level: u8) -> bool {
        let state = self.core.hidden.lock(&self.core.health, level);
        let queue = &state.level.queue;
        queue.is_empty() && queue.trims().is_empty() && self.core.store.progress().synced() >= state.filled
    }

    fn check_writable(&self) -> Result<()> {
        if self.params().is_writable() {
            return Ok(());
        }
        Err(Error::new(Kind::Permission, "cannot write to an oblivious disk of version 1")
            .found("a disk that an earlier lacuna made, which this one reads")
            .expected("version 2")
            .remedy("create a new disk and copy everything to it"))
    }

    fn stop(&self) {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(threads);
        self.core.fail(lacuna_core::closed());
    }
}

impl Drop for Oblivious {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Refuses more levels than the disk can have.
fn check_levels(params: &Params, masters: &[Secret<32>]) -> Result<()> {
    let most = usize::from(params.hidden_levels()) + 1;
    if masters.len() <= most {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "too many levels for this disk")
        .found(format!("{} levels", masters.len()))
        .expected(format!("at most {most}")))
}

/// A core whose levels are empty.
fn build(medium: Arc<dyn Medium>, params: &Params, masters: Masters<'_>, options: &OpenOptions) -> Core {
    let budget = options.budget;
    let cached = |share: u64| (share / BLOCK_SIZE as u64) as usize;
    let cycle = u64::from(params.cycle);
    let keys: Vec<LevelKey> = masters.keys.iter().map(|master| LevelKey::new(master, masters.uuid)).collect();
    let lengths: Vec<u64> = (0u8..).zip(&keys).map(|(level, key)| params.length(level, &key.level)).collect();
    // The share of level 0 does not depend on what else is open (deniability contract).
    // Pages are written no faster than the number of operations allows: what changed waits meanwhile.
    let tree = |blocks, share: u64| {
        Tree::new(blocks, cycle, cached(share)).spilling((share / BYTES_OF_WAITING_LEAF) as usize)
    };
    let public = tree(lengths[0], budget.share(1, 4).get());
    // Nor does that of a hidden level depend on those above it.
    let hidden = (1..keys.len()).map(|level| {
        let share = budget.share(1, 4).get() >> level;
        HiddenLevel::new(tree(lengths[level], share))
    });
    Core {
        store: Store::new(medium, *params),
        nobody: CellKey::throwaway(&*options.random.filler),
        random: options.random.clone(),
        public: Mutex::new(Public::new(HiddenLevel::new(public))),
        hidden: HiddenLevels::new(hidden.collect(), 0, budget.share(1, 4).get(), None),
        displaced: Mutex::new(keys.iter().map(|_| Default::default()).collect()),
        ahead: Ahead::default(),
        keys,
        lengths,
        health: FailStop::default(),
        mode: Mode::of(options),
        counters: Counters::default(),
    }
}

impl Levels for Oblivious {
    fn open_levels(&self) -> usize {
        self.core.keys.len()
    }

    fn blocks(&self, level: u8) -> u64 {
        self.core.lengths[usize::from(level)]
    }

    fn read_only(&self) -> bool {
        self.core.mode.read_only
    }

    fn read(&self, level: u8, first: u64, buf: &mut [u8]) -> Result<()> {
        self.core.read(level, first, buf)
    }

    fn write(&self, level: u8, first: u64, data: &[u8]) -> Result<()> {
        let core = &self.core;
        self.check_writable()?;
        let blocks = data.len() / BLOCK_SIZE;
        if level == 0 {
            core.counters.public_blocks.fetch_add(blocks as u64, Ordering::Relaxed);
            return core.write_public(first, data);
        }
        core.hidden.write(&core.wait(), level, first, data, &core.source(level))?;
        core.pass_for_public(blocks)
    }

    fn discard(&self, level: u8, first: u64, count: u64) -> Result<()> {
        let core = &self.core;
        self.check_writable()?;
        if level == 0 {
            return core.discard_public(first, count);
        }
        core.hidden.discard(&core.wait(), level, first, count, &core.source(level))?;
        core.pass_discard_for_public()
    }

    fn flush(&self, level: u8) -> Result<()> {
        match level {
            0 => self.core.flush_public(),
            level => self.core.flush_hidden(level),
        }
    }

    fn written(&self, level: u8, first: u64, count: usize) -> Result<Vec<bool>> {
        self.core.written(level, first, count)
    }

    fn status(&self, level: u8) -> Vec<StatusItem> {
        let core = &self.core;
        let params = self.params();
        let item = |name, value, unit| StatusItem { name, value, unit };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let batches = count(&core.counters.batches);
        let mut items = vec![
            item("last_batch", core.store.progress().written(), "batch"),
            item("batches_written", batches, "batches"),
            item("cells_rewritten", batches * params.batch_cells() as u64, "cells"),
            item("medium_blocks_written", batches * params.batch_bytes() / BLOCK_SIZE as u64, "blocks"),
            item("public_blocks_written", count(&core.counters.public_blocks), "blocks"),
            item("cover_interval", u64::from(params.plan.cover_millis), "ms"),
            item("refreshes", count(&core.counters.refreshes), "batches"),
            item("syncs", count(&core.store.syncs), "times"),
        ];
        if level == 0 {
            let public = core.public();
            items.extend(public.level.tree.status());
            items.push(item("waiting_for_cells", public.level.queue.len() as u64, "blocks"));
        } else {
            items.extend(core.hidden.status(&core.health, level));
        }
        items
    }

    fn refresh(&self) -> Result<()> {
        self.core.counters.refreshes.fetch_add(1, Ordering::Relaxed);
        self.core.refresh().map(drop)
    }

    fn close(&self) -> Result<()> {
        let core = &self.core;
        if core.mode.read_only || !core.health.is_alive() {
            self.stop();
            return Ok(());
        }
        let mut closed = core.flush_public();
        for level in 1..core.keys.len() as u8 {
            closed = closed.and(core.flush_hidden(level));
        }
        // No beat comes between the last batch and the word that it is the last.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(Threads::end_clock);
        // Whatever became of the hidden levels: how a disk ends is public (deniability contract). To one that was only looked
        // at nothing is done: every batch overwrites something of levels that are not open.
        let written = core.counters.batches.load(Ordering::Relaxed) > 0;
        let finished = if written && core.health.is_alive() { core.finish() } else { Ok(()) };
        // The last batches take what still waited, if it fits.
        let settled = (1..core.keys.len() as u8).all(|level| self.is_settled(level));
        if finished.is_ok() && settled && closed.as_ref().is_err_and(|e| e.kind() == Kind::NoCover) {
            closed = Ok(());
        }
        self.stop();
        closed.and(finished)
    }
}
