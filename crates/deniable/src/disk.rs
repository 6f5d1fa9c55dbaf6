//! An open deniable disk: how it is created and opened, and what its levels do.

use crate::caches::Caches;
use crate::checkpoint::Checkpoint;
use crate::core::Core;
use crate::keys::level_key;
use crate::log::Log;
use crate::params::Params;
use crate::public::{End, Public};
use crate::recovery;
use crate::threads::Threads;
use lacuna_core::{BLOCK_SIZE, Budget, Error, Kind, Result, Secret, StatusItem};
use lacuna_levels::{
    HiddenLevel, HiddenLevels, LevelDisk, LevelFormat, Levels, Masters, OpenOptions, Randomness, Tree,
    check_length, level_disks,
};
use lacuna_medium::Medium;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Slots that hidden levels leave to records of discards.
const RESERVE: u64 = 16;

/// A deniable disk, open.
pub struct Deniable {
    core: Arc<Core>,
    threads: Mutex<Option<Threads>>,
    /// Of the open hidden levels, in blocks.
    lengths: Vec<u64>,
}

impl LevelFormat for Params {
    type Disk = Deniable;

    fn medium_len(&self) -> u64 {
        Params::medium_len(self)
    }

    /// Writes checkpoints and the first stripe. The rest of the medium is left as it is: how far the log has come is public.
    fn create(&self, medium: &Arc<dyn Medium>, masters: Masters<'_>, random: Randomness) -> Result<()> {
        check_length(medium.len(), self.medium_len(), Kind::NoSpace)?;
        check_levels(self, masters.keys)?;
        let options = OpenOptions::in_the_foreground(Budget::bytes(1 << 20), random);
        let core = build(medium.clone(), self, masters, &options, |_, _| {
            Ok(End { head: 0, name: [0; 16], echo: Vec::new(), doubtful: false })
        })?;
        core.refresh()?;
        for turn in 0..2 {
            Checkpoint { seq: 1, closed: true }.write_to(
                turn,
                &**medium,
                &core.log.keys[0],
                &core.draw_salt(),
            )?;
        }
        medium.sync()
    }

    fn open(&self, medium: Arc<dyn Medium>, masters: Masters<'_>, options: OpenOptions) -> Result<Deniable> {
        medium.forget_cached()?;
        check_length(medium.len(), self.medium_len(), Kind::Corrupt)?;
        check_levels(self, masters.keys)?;
        let core = build(medium, self, masters, &options, |log, trees| {
            let end = recovery::find_end(log, options.read_only)?;
            if !options.read_only {
                // What was found may still be on its way: stripes that follow will rely on it.
                log.medium.sync()?;
            }
            log.complete(end.head);
            for (level, tree) in (0u8..).zip(trees) {
                recovery::rebuild(log, level, end.head, tree, options.read_only)?;
            }
            Ok(end)
        })?;
        let core = Arc::new(core);
        let threads = if core.mode.background { Some(Threads::start(&core)?) } else { None };
        let lengths = hidden_lengths(self, &core.log.keys[..masters.keys.len()]);
        Ok(Deniable { core, threads: Mutex::new(threads), lengths })
    }
}

impl Deniable {
    /// The open levels, from 0 up.
    pub fn levels(self: &Arc<Self>) -> Vec<Arc<LevelDisk>> {
        level_disks(self)
    }

    /// The parameters it was opened with.
    pub fn params(&self) -> &Params {
        &self.core.log.params
    }

    /// How much its caches hold.
    pub fn caches(&self) -> Caches {
        Caches::of(&self.core)
    }

    fn stop(&self) -> Result<()> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(threads);
        self.core.fail(lacuna_core::closed());
        Ok(())
    }
}

impl Drop for Deniable {
    fn drop(&mut self) {
        let _stopped = self.stop();
    }
}

/// Makes a core whose maps `restore` fills; it returns where the log ends.
fn build(
    medium: Arc<dyn Medium>,
    params: &Params,
    masters: Masters<'_>,
    options: &OpenOptions,
    restore: impl FnOnce(&Log, &mut [Tree]) -> Result<End>,
) -> Result<Core> {
    let budget = options.budget;
    let keys: Vec<Secret<32>> = masters.keys.iter().map(|master| level_key(master, masters.uuid)).collect();
    let lengths = hidden_lengths(params, &keys);
    let log = Log::new(
        medium,
        *params,
        keys,
        &*options.random.filler,
        budget.share(1, 4).get(),
        options.background,
    );
    let cached = |share: u64| (share / BLOCK_SIZE as u64) as usize;
    // The share of level 0 does not depend on what else is open (deniability contract).
    let cycle = u64::from(params.cycle);
    let mut trees = vec![Tree::new(params.blocks, cycle, cached(budget.share(1, 4).get()))];
    // Nor does that of a hidden level depend on those above it.
    for (level, blocks) in (1..).zip(&lengths) {
        trees.push(Tree::new(*blocks, cycle, cached(budget.share(1, 4).get() >> level)));
    }
    let end = restore(&log, &mut trees)?;
    let mut trees = trees.into_iter();
    let public = trees.next().expect("level 0 is always there");
    let head = end.head;
    let hidden_echo = recovery::hidden_echo(&log, head);
    let shared = params.shared_slots().map(|slots| slots.saturating_sub(RESERVE));
    let levels = trees.map(HiddenLevel::new).collect();
    let hidden = HiddenLevels::new(levels, head, budget.share(1, 4).get(), shared);
    Ok(Core::new(log, Public::new(public, end), (hidden, hidden_echo), head, options))
}

/// The lengths of the open hidden levels, in blocks.
fn hidden_lengths(params: &Params, keys: &[Secret<32>]) -> Vec<u64> {
    (1u8..).zip(&keys[1..]).map(|(level, key)| params.hidden_blocks(level, key)).collect()
}

/// Refuses more levels than the medium has slots for.
fn check_levels(params: &Params, masters: &[Secret<32>]) -> Result<()> {
    let most = usize::from(params.hidden_levels());
    if masters.len() <= 1 + most {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "too many levels for this disk")
        .found(format!("{} hidden levels", masters.len() - 1))
        .expected(format!("at most {most}, by the hidden slots of a stripe"))
        .remedy("make fewer levels, or a disk with more hidden slots in a stripe (--geometry)"))
}

impl Levels for Deniable {
    fn open_levels(&self) -> usize {
        1 + self.lengths.len()
    }

    fn blocks(&self, level: u8) -> u64 {
        if level == 0 { self.params().blocks } else { self.lengths[usize::from(level) - 1] }
    }

    fn read_only(&self) -> bool {
        self.core.mode.read_only
    }

    fn read(&self, level: u8, first: u64, buf: &mut [u8]) -> Result<()> {
        self.core.read(level, first, buf)
    }

    fn write(&self, level: u8, first: u64, data: &[u8]) -> Result<()> {
        if level > 0 {
            return self.core.write_hidden(level, first, data);
        }
        self.core.write_public(first, data)?;
        self.core.counters.public_blocks.fetch_add((data.len() / BLOCK_SIZE) as u64, Ordering::Relaxed);
        Ok(())
    }

    fn discard(&self, level: u8, first: u64, count: u64) -> Result<()> {
        match level {
            0 => self.core.discard_public(first, count),
            level => self.core.discard_hidden(level, first, count),
        }
    }

    fn flush(&self, level: u8) -> Result<()> {
        match level {
            0 => self.core.flush_public(),
            level => self.core.flush_hidden(level),
        }
    }

    fn written(&self, level: u8, first: u64, count: usize) -> Result<Vec<bool>> {
        match level {
            0 => self.core.public_written(first, count),
            level => self.core.hidden_written(level, first, count),
        }
    }

    fn status(&self, level: u8) -> Vec<StatusItem> {
        let core = &self.core;
        let item = |name, value, unit| StatusItem { name, value, unit };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stripes = count(&core.counters.stripes);
        let blocks = core.log.params.geometry.blocks();
        let mut items = vec![
            item("head", core.log.written(), "stripe"),
            item("ring", core.log.params.stripes, "stripes"),
            item("stripes_written", stripes, "stripes"),
            item("medium_blocks_written", stripes * blocks, "blocks"),
            item("public_blocks_written", count(&core.counters.public_blocks), "blocks"),
            item("cover_interval", u64::from(core.log.params.cover_millis), "ms"),
            item("refreshes", count(&core.counters.refreshes), "stripes"),
            item("syncs", count(&core.counters.syncs), "times"),
        ];
        if level == 0 {
            let public = core.public();
            items.extend(public.tree.status());
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
        let failed = self.core.health.check();
        if self.core.mode.read_only || failed.is_err() {
            return self.stop().and(if self.core.mode.read_only { Ok(()) } else { failed });
        }
        let mut closed = self.core.flush_public();
        for level in 1..self.open_levels() as u8 {
            closed = closed.and(self.core.flush_hidden(level));
        }
        // No beat comes between the last stripe and the word that it is the last.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(Threads::end_clock);
        // Whatever became of the hidden levels: the end of the log is public (deniability contract).
        let finished = if self.core.health.check().is_ok() { self.core.finish() } else { Ok(()) };
        closed.and(finished).and(self.stop())
    }
}
