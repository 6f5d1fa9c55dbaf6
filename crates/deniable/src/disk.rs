//! An open deniable disk: how it is created and opened, and the levels that front ends see.

use crate::checkpoint::Checkpoint;
use crate::core::{Core, Parts};
use crate::hidden::{Hidden, HiddenLevel};
use crate::keys::level_key;
use crate::log::Log;
use crate::params::Params;
use crate::public::{End, Public};
use crate::recovery;
use crate::threads::Threads;
use crate::tree::Tree;
use lacuna_core::{
    BLOCK_SIZE, BlockAddr, Budget, Disk, Error, Extent, Kind, Result, Secret, Status, StatusItem,
};
use lacuna_crypto::RandomSource;
use lacuna_medium::Medium;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Blocks whose place is looked up under one hold of a lock.
const STEP: usize = 256;

/// How to open a disk.
pub struct OpenOptions {
    /// Memory for all caches of the disk, divided the same way whichever levels are opened.
    pub budget: Budget,
    /// Refuse writes, and write nothing.
    pub read_only: bool,
    /// Whether threads write and refresh in the background. Without them stripes are written by whoever closes them and
    /// [`Deniable::refresh`] is the paced clock: the order of medium operations is then a function of the calls alone,
    /// as tests need it.
    pub background: bool,
    /// How long a hidden write or flush waits for cover on a disk that does not refresh itself.
    pub cover_timeout: Duration,
    /// The source of what everybody with the key of level 0 can see.
    pub public_random: Arc<dyn RandomSource>,
    /// The source of everything else.
    pub filler: Arc<dyn RandomSource>,
}

/// A deniable disk, open.
pub struct Deniable {
    core: Arc<Core>,
    threads: Mutex<Option<Threads>>,
    levels: usize,
    /// Levels that front ends have not closed.
    in_use: AtomicUsize,
}

impl Deniable {
    /// Lays a new disk on a medium: checkpoints and the first stripe. `masters` are the keys of its levels. The rest of
    /// the medium is left as it is: how far the log has come is public.
    pub fn create(
        medium: &Arc<dyn Medium>,
        params: &Params,
        masters: &[Secret<32>],
        uuid: &[u8; 16],
        public_random: Arc<dyn RandomSource>,
        filler: Arc<dyn RandomSource>,
    ) -> Result<()> {
        check_length(&**medium, params, Kind::NoSpace)?;
        let options = OpenOptions {
            budget: Budget::bytes(1 << 20),
            read_only: false,
            background: false,
            cover_timeout: Duration::ZERO,
            public_random,
            filler,
        };
        let core = build(medium.clone(), params, masters, uuid, &options, |_, _| {
            Ok(End { head: 0, name: [0; 16], echo: Vec::new() })
        })?;
        core.begin()?;
        core.refresh()?;
        for turn in 0..2 {
            Checkpoint { seq: 1, closed: true }.write_to(
                turn,
                &**medium,
                &core.log.keys[0],
                &*core.public_random,
            )?;
        }
        medium.sync()
    }

    /// Opens a disk at the level of the last of `masters`, which are the keys of the levels from 0 up.
    ///
    /// Errors: [`Kind::Corrupt`] if the log does not verify, and whatever the medium reports.
    pub fn open(
        medium: Arc<dyn Medium>,
        params: &Params,
        masters: &[Secret<32>],
        uuid: &[u8; 16],
        options: OpenOptions,
    ) -> Result<Deniable> {
        check_length(&*medium, params, Kind::Corrupt)?;
        let core = build(medium, params, masters, uuid, &options, |log, trees| {
            let end = recovery::find_end(log)?;
            if !options.read_only {
                // What was found may still be on its way: stripes that follow will rely on it.
                log.medium.sync()?;
            }
            log.land(end.head);
            for (level, tree) in (0u8..).zip(trees) {
                recovery::rebuild(log, level, end.head, tree)?;
            }
            Ok(end)
        })?;
        core.begin()?;
        let core = Arc::new(core);
        let threads =
            if options.background && !options.read_only { Some(Threads::start(&core)?) } else { None };
        Ok(Deniable {
            core,
            threads: Mutex::new(threads),
            levels: masters.len(),
            in_use: AtomicUsize::new(masters.len()),
        })
    }

    /// The open levels, from 0 up.
    pub fn levels(self: &Arc<Self>) -> Vec<Arc<LevelDisk>> {
        (0..self.levels as u8).map(|level| Arc::new(LevelDisk { disk: Arc::clone(self), level })).collect()
    }

    /// The parameters it was opened with.
    pub fn params(&self) -> &Params {
        &self.core.log.params
    }

    /// One beat of the paced clock: a refresh stripe and a sync. For disks opened without background threads.
    pub fn refresh(&self) -> Result<()> {
        self.core.counters.refreshes.fetch_add(1, Ordering::Relaxed);
        self.core.refresh().map(drop)
    }

    /// Flushes all levels, the public one first, and releases the medium. Hidden levels wait for cover as any flush
    /// does. Later writes fail.
    pub fn close(&self) -> Result<()> {
        if self.core.read_only || self.core.check_alive().is_err() {
            return self.stop();
        }
        let mut closed = self.core.flush_public();
        for level in 1..self.levels as u8 {
            closed = closed.and(self.core.flush_hidden(level));
        }
        // No beat comes between the last stripe and the word that it is the last.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(Threads::end_clock);
        // Whatever became of the hidden levels: the end of the log is public (deniability contract).
        let finished = if self.core.check_alive().is_ok() { self.core.finish() } else { Ok(()) };
        closed.and(finished).and(self.stop())
    }

    fn stop(&self) -> Result<()> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(threads);
        self.core.fail(Error::new(Kind::FailStop, "the disk is closed"));
        Ok(())
    }
}

impl Drop for Deniable {
    fn drop(&mut self) {
        let _stopped = self.stop();
    }
}

fn check_length(medium: &dyn Medium, params: &Params, kind: Kind) -> Result<()> {
    if medium.len() >= params.medium_len() {
        return Ok(());
    }
    Err(Error::new(kind, "the medium is shorter than its disk")
        .found(format!("{} bytes", medium.len()))
        .expected(format!("{} bytes", params.medium_len()))
        .remedy("the file or device was cut short: restore it from a backup"))
}

/// Makes a core whose maps `restore` fills; it returns where the log ends.
fn build(
    medium: Arc<dyn Medium>,
    params: &Params,
    masters: &[Secret<32>],
    uuid: &[u8; 16],
    options: &OpenOptions,
    restore: impl FnOnce(&Log, &mut [Tree]) -> Result<End>,
) -> Result<Core> {
    let budget = options.budget;
    let keys = masters.iter().map(|master| level_key(master, uuid)).collect();
    let log = Log::new(medium, *params, keys, budget.share(1, 4).get());
    let cached = |share: u64| (share / BLOCK_SIZE as u64) as usize;
    // The share of level 0 does not depend on what else is open (deniability contract).
    let cycle = u64::from(params.cycle);
    let mut trees = vec![Tree::new(params.blocks, cycle, cached(budget.share(1, 4).get()))];
    for _ in 1..masters.len() {
        let share = budget.share(1, 4).get() / (masters.len() as u64 - 1);
        trees.push(Tree::new(params.hidden_blocks, cycle, cached(share)));
    }
    let end = restore(&log, &mut trees)?;
    let mut trees = trees.into_iter();
    let public = trees.next().expect("level 0 is always there");
    let head = end.head;
    let echo = recovery::hidden_echo(&log, head);
    Ok(Core::new(Parts {
        log,
        public_random: Arc::clone(&options.public_random),
        filler: Arc::clone(&options.filler),
        public: Public::new(public, end),
        hidden: Hidden::new(trees.map(HiddenLevel::new).collect(), head, echo),
        most_waiting: budget.share(1, 4).get(),
        cover_timeout: options.cover_timeout,
        background: options.background,
        read_only: options.read_only,
        head,
    }))
}

/// One level of an open disk, as front ends see it.
pub struct LevelDisk {
    disk: Arc<Deniable>,
    level: u8,
}

impl LevelDisk {
    /// Which level it is.
    pub fn level(&self) -> u8 {
        self.level
    }

    fn core(&self) -> &Core {
        &self.disk.core
    }
}

impl Disk for LevelDisk {
    fn blocks(&self) -> u64 {
        let params = self.disk.params();
        if self.level == 0 { params.blocks } else { params.hidden_blocks }
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        let steps = buf.chunks_mut(STEP * BLOCK_SIZE);
        for (first, buf) in (first.0..).step_by(STEP).zip(steps) {
            self.core().read(self.level, first, buf)?;
        }
        Ok(())
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        let core = self.core();
        for (first, data) in (first.0..).step_by(STEP).zip(data.chunks(STEP * BLOCK_SIZE)) {
            if self.level > 0 {
                core.write_hidden(self.level, first, data)?;
                continue;
            }
            core.write_public(first, data)?;
            core.counters.public_blocks.fetch_add((data.len() / BLOCK_SIZE) as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        match self.level {
            0 => self.core().discard_public(first.0, count),
            level => self.core().discard_hidden(level, first.0, count),
        }
    }

    fn flush(&self) -> Result<()> {
        match self.level {
            _ if self.core().read_only => Ok(()),
            0 => self.core().flush_public(),
            level => self.core().flush_hidden(level),
        }
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        let mut runs: Vec<Extent> = vec![];
        for at in (0..count).step_by(STEP) {
            let (first, part) = (first.0 + at, (count - at).min(STEP as u64) as usize);
            let written = match self.level {
                0 => self.core().public_written(first, part)?,
                level => self.core().hidden_written(level, first, part)?,
            };
            for written in written {
                match runs.last_mut() {
                    Some(run) if run.written == written => run.blocks += 1,
                    _ => runs.push(Extent { blocks: 1, written }),
                }
            }
        }
        Ok(runs)
    }

    fn status(&self) -> Status {
        let core = self.core();
        let item = |name, value, unit| StatusItem { name, value, unit };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stripes = count(&core.counters.stripes);
        let blocks = core.log.params.geometry.blocks();
        let mut items = vec![
            item("level", u64::from(self.level), "level"),
            item("capacity", self.blocks(), "blocks"),
            item("head", core.log.written(), "stripe"),
            item("ring", core.log.params.stripes, "stripes"),
            item("stripes_written", stripes, "stripes"),
            item("medium_blocks_written", stripes * blocks, "blocks"),
            item("public_blocks_written", count(&core.counters.public_blocks), "blocks"),
            item("cover_interval", u64::from(core.log.params.cover_millis), "ms"),
            item("refreshes", count(&core.counters.refreshes), "stripes"),
            item("syncs", count(&core.counters.syncs), "times"),
        ];
        if self.level == 0 {
            let public = core.public();
            items.push(item("data", public.tree.data(), "blocks"));
            items.push(item("map_pages_waiting", public.tree.dirty_pages(), "pages"));
        } else {
            let mut hidden = core.hidden();
            let HiddenLevel { tree, queue } = hidden.level(self.level);
            items.push(item("data", tree.data(), "blocks"));
            items.push(item("map_pages_waiting", tree.dirty_pages(), "pages"));
            items.push(item("waiting_for_cover", (queue.len() * BLOCK_SIZE) as u64, "bytes"));
        }
        Status { items }
    }

    /// Flushes the level. With the last of the levels the disk is closed.
    fn close(&self) -> Result<()> {
        let flushed = self.flush();
        let last = self.disk.in_use.fetch_sub(1, Ordering::AcqRel) <= 1;
        let closed = if last { flushed.and(self.disk.close()) } else { flushed };
        closed.map_err(|e| match e.kind() {
            Kind::NoCover if last => {
                e.remedy("what waited is lost; next time, write to level 0 while the disk is being closed")
            }
            Kind::NoCover => {
                e.remedy("it waits on until the last level is closed: write to level 0 before that")
            }
            _ => e,
        })
    }

    fn read_only(&self) -> bool {
        self.core().read_only
    }
}
