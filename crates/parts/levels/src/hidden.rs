//! The hidden levels of an open disk: what they know, and waiting for cover.
//!
//! Deniability contract: nothing here decides that, when or where anything is written. A stripe or
//! batch that the public or the paced clock caused passes by and is filled by the format; threads
//! that wait for that are woken.

use crate::OpenOptions;
use crate::queue::{Queue, WaitingBlock};
use crate::tree::{PageSource, Tree};
use crate::warm::warm;
use lacuna_contracts::{Advice, BLOCK_SIZE, Error, FailStop, Kind, Result, Setting, StatusItem, defect};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Discarded ranges that may wait.
const MOST_TRIMS: usize = 4096;
/// The longest wait without a look at whether the disk failed: a failure may be told just before
/// the wait begins.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// One level of which blocks wait before they are taken in: every hidden one, and the public one of
/// a format that takes blocks in by the batch.
pub struct HiddenLevel {
    /// Its map.
    pub tree: Tree,
    /// What waits.
    pub queue: Queue,
}

impl HiddenLevel {
    /// A level with this map, of which nothing waits.
    pub fn new(tree: Tree) -> HiddenLevel {
        HiddenLevel { tree, queue: Queue::default() }
    }

    /// Where blocks lie that were taken in; the others are read at once, and their place given as
    /// 0.
    pub fn look(
        &mut self,
        first: u64,
        buf: &mut [u8],
        places: &mut [u64],
        source: &dyn PageSource,
    ) -> Result<()> {
        let HiddenLevel { tree, queue } = self;
        tree.places(first, places, source)?;
        let blocks = (first..).zip(buf.chunks_exact_mut(BLOCK_SIZE)).zip(places);
        for ((addr, out), place) in blocks {
            if queue.trims_cover(addr) {
                *place = 0;
            }
            if let Some(waiting) = queue.get(addr) {
                out.copy_from_slice(waiting);
                *place = 0;
            } else if *place == 0 {
                out.fill(0);
            }
        }
        Ok(())
    }

    /// Which of `count` blocks are written.
    pub fn written(&mut self, first: u64, count: usize, source: &dyn PageSource) -> Result<Vec<bool>> {
        let HiddenLevel { tree, queue } = self;
        let mut places = vec![0; count];
        tree.places(first, &mut places, source)?;
        let written =
            |(addr, place): (u64, u64)| queue.get(addr).is_some() || (place != 0 && !queue.trims_cover(addr));
        Ok((first..).zip(places).map(written).collect())
    }
}

/// One hidden level under its lock.
pub struct HiddenState {
    /// Its map and its queue.
    pub level: HiddenLevel,
    /// The last stripe or batch that passed.
    pub filled: u64,
    /// The last one that took anything from the queue.
    taken: u64,
    /// Threads that wait for one to pass.
    watchers: usize,
    /// Threads that wait for room.
    writers: usize,
}

impl HiddenState {
    /// Bytes in the queue.
    pub fn waiting(&self) -> u64 {
        (self.level.queue.len() * BLOCK_SIZE) as u64
    }

    fn waiters(&mut self, awaited: Awaited) -> &mut usize {
        match awaited {
            Awaited::Passing => &mut self.watchers,
            Awaited::Room => &mut self.writers,
        }
    }
}

/// How long something hidden may wait, and what ends its waiting early.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// A failure ends it.
    pub health: &'a FailStop,
    /// How long to wait while nothing passes by; none for as long as it takes.
    pub patience: Option<Duration>,
}

/// How an open disk works.
#[derive(Clone, Copy)]
pub struct Mode {
    /// Writes are refused, and nothing is written.
    pub read_only: bool,
    /// Threads write and refresh.
    pub background: bool,
    /// How long to wait for cover that nobody promised.
    cover_timeout: Duration,
}

impl Mode {
    /// As it was opened. A disk that is not written has no threads.
    pub fn of(options: &OpenOptions) -> Self {
        let OpenOptions { read_only, cover_timeout, .. } = *options;
        Mode { read_only, background: options.background && !read_only, cover_timeout }
    }

    /// How something hidden waits on a disk that writes cover by itself so often, in milliseconds;
    /// 0 for never. With paced cover it need not give up.
    pub fn wait<'a>(&self, health: &'a FailStop, cover_millis: u32) -> Wait<'a> {
        let patience = match (self.background, cover_millis) {
            (false, _) => Some(Duration::ZERO),
            (true, 0) => Some(self.cover_timeout),
            (true, _) => None,
        };
        Wait { health, patience }
    }
}

/// What a thread waits for: waking those that cannot go on costs more than most of what is done
/// here.
#[derive(Clone, Copy)]
enum Awaited {
    /// The next stripe or batch.
    Passing,
    /// Room for more in the queue.
    Room,
}

/// A level with its lock. No level has a lock, a condition or a bound in common with another
/// (deniability contract).
struct Shared {
    state: Mutex<HiddenState>,
    /// A stripe or batch passed by, or something failed.
    moved: Condvar,
    /// There is room in the queue, or something failed.
    room: Condvar,
    /// Bytes that may be queued before writers wait.
    most_waiting: u64,
    /// Whether nothing of it waits for cover any more.
    gives_up: AtomicBool,
    /// Whether its user was told, at an end, that something of it is lost.
    lost: AtomicBool,
}

/// The hidden levels of an open disk, shared by its clients and the thread that fills stripes or
/// batches.
pub struct HiddenLevels {
    levels: Vec<Shared>,
}

impl HiddenLevels {
    /// Levels 1 and up of a disk whose last stripe or batch is `head`. The queue of level *l* holds
    /// `memory` bytes divided by 2 to the power of *l* before writers wait, however many levels are
    /// open.
    pub fn new(levels: Vec<HiddenLevel>, head: u64, memory: u64) -> HiddenLevels {
        let shared = |(number, level): (u32, HiddenLevel)| Shared {
            gives_up: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            state: Mutex::new(HiddenState { level, filled: head, taken: head, watchers: 0, writers: 0 }),
            moved: Condvar::new(),
            room: Condvar::new(),
            most_waiting: memory >> number,
        };
        HiddenLevels { levels: (1..).zip(levels).map(shared).collect() }
    }

    /// How many levels are open, level 0 apart.
    pub fn count(&self) -> usize {
        self.levels.len()
    }

    fn shared(&self, level: u8) -> &Shared {
        &self.levels[usize::from(level) - 1]
    }

    /// What a level, from 1 up, knows. After a panic of a thread that changed it the disk fails.
    pub fn lock(&self, health: &FailStop, level: u8) -> MutexGuard<'_, HiddenState> {
        self.shared(level).state.lock().unwrap_or_else(|poisoned| {
            health.fail(defect());
            self.wake_all();
            poisoned.into_inner()
        })
    }

    /// Locks all levels, from level 1 up: what they know is of one moment.
    fn lock_all(&self, health: &FailStop) -> Vec<MutexGuard<'_, HiddenState>> {
        (1..=self.levels.len() as u8).map(|level| self.lock(health, level)).collect()
    }

    /// Stripe or batch `seq` was filled from the queue of a level, and its map knows.
    pub fn passed(&self, level: u8, state: &mut HiddenState, seq: u64) {
        let shared = self.shared(level);
        state.filled = seq;
        if state.level.queue.note_taken() {
            state.taken = seq;
        }
        if state.watchers > 0 {
            shared.moved.notify_all();
        }
        shared.wake_writer(state);
    }

    /// Whether nothing of a level, from 1 up, waits for cover from now on: it is being closed, and
    /// the cover that closing takes is written.
    pub fn give_up(&self, level: u8, gives_up: bool) {
        self.shared(level).gives_up.store(gives_up, Ordering::Release);
        if gives_up {
            self.wake_all();
        }
    }

    /// How long something of a level, from 1 up, may wait as things are: not at all once it gives
    /// up.
    pub fn patience(&self, wait: &Wait<'_>, level: u8) -> Option<Duration> {
        if self.shared(level).gives_up() { Some(Duration::ZERO) } else { wait.patience }
    }

    /// The user of a level, from 1 up, was told that something of it is lost.
    pub fn lose(&self, level: u8) {
        self.shared(level).lost.store(true, Ordering::Release);
    }

    /// Errors: [`Kind::NoCover`] if a level has anything pending that no stripe or batch has taken,
    /// or has lost something.
    pub fn check_taken(&self, health: &FailStop) -> Result<()> {
        let (mut left, mut bytes) = (self.levels.iter().any(|shared| shared.lost.load(Ordering::Acquire)), 0);
        for level in self.lock_all(health) {
            let queue = &level.level.queue;
            left |= !queue.is_empty() || !queue.trims().is_empty();
            bytes += level.waiting();
        }
        if left { Err(not_taken(bytes)) } else { Ok(()) }
    }

    /// Wakes all waiting threads, after a failure.
    pub fn wake_all(&self) {
        for shared in &self.levels {
            shared.moved.notify_all();
            shared.room.notify_all();
        }
    }

    /// Queues blocks of a level. Waits while too much is queued.
    ///
    /// Errors: [`Kind::NoCover`] and the standing refusal.
    pub fn write(
        &self,
        wait: &Wait<'_>,
        level: u8,
        first: u64,
        data: &[u8],
        source: &dyn PageSource,
    ) -> Result<()> {
        wait.health.check()?;
        // The thread that takes the blocks into a stripe or batch finds the leaves in memory.
        self.warm(wait.health, level, first, (data.len() / BLOCK_SIZE) as u64, source);
        let shared = self.shared(level);
        // Copied without the lock: the thread that fills stripes or batches waits for it.
        let copy = |block: &[u8]| WaitingBlock::new(block.into());
        let blocks: Vec<WaitingBlock> = data.chunks_exact(BLOCK_SIZE).map(copy).collect();
        let mut state = self.wait(wait, level, "cannot take a hidden write in", Awaited::Room, |state| {
            state.waiting() < shared.most_waiting
        })?;
        let queue = &mut state.level.queue;
        for (addr, block) in (first..).zip(blocks) {
            match queue.get_mut(addr) {
                Some(pending) => *pending = block,
                None => queue.put(addr, block),
            }
        }
        shared.wake_writer(&state);
        Ok(())
    }

    /// Loads the leaves that say where blocks of a level are, without the lock: the thread that
    /// fills stripes or batches must not wait for the medium. What cannot be read is left to the
    /// reader of the map.
    pub fn warm(&self, health: &FailStop, level: u8, first: u64, count: u64, source: &dyn PageSource) {
        warm(first, count, source, |act| act(&mut self.lock(health, level).level.tree));
    }

    /// Queues a discard of a level. Waits while too many are queued.
    pub fn discard(
        &self,
        wait: &Wait<'_>,
        level: u8,
        first: u64,
        count: u64,
        source: &dyn PageSource,
    ) -> Result<()> {
        wait.health.check()?;
        self.warm(wait.health, level, first, count, source);
        let shared = self.shared(level);
        let mut state =
            self.wait(wait, level, "cannot take a hidden discard in", Awaited::Passing, |state| {
                state.level.queue.trims().len() < MOST_TRIMS
            })?;
        let HiddenLevel { tree, queue } = &mut state.level;
        // Before anything is dropped from the queue: the map may fail to be read.
        let written = tree.any(first, count, source)?;
        queue.discard(first, count);
        if written {
            queue.trim(first, count);
        }
        shared.wake_writer(&state);
        Ok(())
    }

    /// Waits until everything that a level acknowledged was taken by a stripe or batch, and returns
    /// the last that took anything: once that one is durable, so is what was acknowledged.
    pub fn wait_passed(&self, wait: &Wait<'_>, level: u8) -> Result<u64> {
        wait.health.check()?;
        let ticket = self.lock(wait.health, level).level.queue.ticket();
        let state = self.wait(wait, level, "cannot flush the hidden level", Awaited::Passing, |state| {
            // What a stripe or batch took that failed is nowhere: the failure is told instead.
            !state.level.queue.is_half_taken() && state.level.queue.has_passed(ticket)
        })?;
        Ok(state.taken)
    }

    /// Waits until `done`.
    fn wait(
        &self,
        wait: &Wait<'_>,
        level: u8,
        what: &str,
        awaited: Awaited,
        done: impl Fn(&HiddenState) -> bool,
    ) -> Result<MutexGuard<'_, HiddenState>> {
        let shared = self.shared(level);
        let mut state = self.lock(wait.health, level);
        let told = if matches!(awaited, Awaited::Passing) { &shared.moved } else { &shared.room };
        let (mut since, mut filled) = (Instant::now(), state.filled);
        while !done(&state) {
            wait.health.check()?;
            // As long as anything passes by, it is worth waiting on.
            if state.filled != filled {
                (since, filled) = (Instant::now(), state.filled);
            }
            let patience = self.patience(wait, level);
            let left = patience.map_or(LOOK_AGAIN, |patience| patience.saturating_sub(since.elapsed()));
            if left.is_zero() {
                // Of a file system that is being unmounted no write comes twice.
                if shared.gives_up() && matches!(awaited, Awaited::Room) {
                    self.lose(level);
                }
                return Err(no_cover(what, state.waiting()));
            }
            *state.waiters(awaited) += 1;
            let waited = told.wait_timeout(state, left.min(LOOK_AGAIN));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            *state.waiters(awaited) -= 1;
        }
        Ok(state)
    }

    /// Where blocks of a level lie that were taken in; the others are read at once, and their place
    /// given as 0.
    pub fn look(
        &self,
        health: &FailStop,
        level: u8,
        first: u64,
        buf: &mut [u8],
        places: &mut [u64],
        source: &dyn PageSource,
    ) -> Result<()> {
        self.warm(health, level, first, places.len() as u64, source);
        self.lock(health, level).level.look(first, buf, places, source)
    }

    /// Which of `count` blocks of a level are written.
    pub fn written(
        &self,
        health: &FailStop,
        level: u8,
        first: u64,
        count: usize,
        source: &dyn PageSource,
    ) -> Result<Vec<bool>> {
        self.warm(health, level, first, count as u64, source);
        self.lock(health, level).level.written(first, count, source)
    }

    /// The counters of a level.
    pub fn status(&self, health: &FailStop, level: u8) -> Vec<StatusItem> {
        let state = self.lock(health, level);
        let HiddenLevel { tree, .. } = &state.level;
        let mut items = Vec::from(tree.status());
        items.push(StatusItem::new("waiting_for_cover", state.waiting(), "bytes"));
        items
    }
}

impl Shared {
    fn gives_up(&self) -> bool {
        self.gives_up.load(Ordering::Acquire)
    }

    /// Wakes one of the threads that wait for room, if there is any; that one wakes the next.
    fn wake_writer(&self, state: &HiddenState) {
        if state.writers > 0 && state.waiting() < self.most_waiting {
            self.room.notify_one();
        }
    }
}

/// The error of a hidden flush whose blocks went along with public writes that nobody made durable.
pub fn no_sync() -> Error {
    Error::new(Kind::NoCover, "cannot flush the hidden level")
        .found("nothing waiting any more, and no public flush to make it durable in time")
        .expected("a flush of level 0, or a disk with a cover of its own")
        .remedy(
            Advice::from("flush level 0 meanwhile, or allow more time: ").setting(Setting("cover_timeout")),
        )
}

/// The error of a closing that `pending` bytes are too many for.
fn not_taken(pending: u64) -> Error {
    let found = match pending.div_ceil(1024) {
        0 => "changes that found no cover: they are lost".to_owned(),
        kib => format!("{kib} KiB beyond the cover that closing writes: they are lost"),
    };
    Error::new(Kind::NoCover, "not everything that waited on a hidden level is on the medium")
        .found(found)
        .expected("no more than that cover takes along")
        .remedy("next time let the closing wait for it, or write to level 0 meanwhile")
}

/// The error of something hidden that nothing public came to cover, while `waiting` bytes wait.
fn no_cover(what: &str, waiting: u64) -> Error {
    let remedy =
        Advice::from("write to level 0 meanwhile, or allow more time: ").setting(Setting("cover_timeout"));
    Error::new(Kind::NoCover, what)
        .found(format!("{} KiB waiting, and no public write to cover them in time", waiting.div_ceil(1024)))
        .expected("public writes, or a disk with a cover of its own")
        .remedy(remedy.text("; what is queued is kept while any level is open"))
}
