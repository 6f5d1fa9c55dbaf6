//! The hidden levels of an open disk: their state, and waiting for cover.
//!
//! Deniability contract: nothing here decides that, when or where anything is written. Public
//! operations or the paced clock cause a stripe or batch, and the format fills it; threads that
//! wait for it are woken.

use crate::OpenOptions;
use crate::queue::{Queue, WaitingBlock};
use crate::tree::{PageSource, Tree};
use crate::warm::warm;
use lacuna_contracts::{Advice, BLOCK_SIZE, Error, FailStop, Kind, Result, Setting, StatusItem, defect};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most discarded ranges that may be pending.
const MOST_TRIMS: usize = 4096;
/// The longest wait without a check for a failure of the disk: it may fail just before the wait
/// begins.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// One level with blocks that are pending before they are taken in: every hidden level, and the
/// public one of a format that takes blocks in by the batch.
pub struct HiddenLevel {
    /// Its map.
    pub tree: Tree,
    /// The pending blocks and discards.
    pub queue: Queue,
}

impl HiddenLevel {
    /// A level with this map and nothing pending.
    pub fn new(tree: Tree) -> HiddenLevel {
        HiddenLevel { tree, queue: Queue::default() }
    }

    /// Sets the places of blocks that were taken in. All other blocks are read at once, and their
    /// places set to 0.
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
    /// The last stripe or batch that took anything from the queue.
    taken: u64,
    /// The number of threads that wait for the next stripe or batch.
    watchers: usize,
    /// The number of threads that wait for room.
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

/// How long a hidden operation may wait, and the failure that ends the wait early.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// A failure ends it.
    pub health: &'a FailStop,
    /// How long to wait while no stripe or batch passes; none for as long as it takes.
    pub patience: Option<Duration>,
}

/// The mode of an open disk.
#[derive(Clone, Copy)]
pub struct Mode {
    /// Writes are refused, and nothing is written.
    pub read_only: bool,
    /// Threads write and refresh.
    pub background: bool,
    /// How long to wait for cover on a disk without paced cover.
    cover_timeout: Duration,
}

impl Mode {
    /// The mode that the options ask for. A read-only disk has no threads.
    pub fn of(options: &OpenOptions) -> Self {
        let OpenOptions { read_only, cover_timeout, .. } = *options;
        Mode { read_only, background: options.background && !read_only, cover_timeout }
    }

    /// How a hidden operation waits on a disk with paced cover every `cover_millis` milliseconds, 0
    /// for none. With paced cover it need not give up.
    pub fn wait<'a>(&self, health: &'a FailStop, cover_millis: u32) -> Wait<'a> {
        let patience = match (self.background, cover_millis) {
            (false, _) => Some(Duration::ZERO),
            (true, 0) => Some(self.cover_timeout),
            (true, _) => None,
        };
        Wait { health, patience }
    }
}

/// The event that a thread waits for. There are two because waking threads that cannot go on costs
/// more than most of the work here.
#[derive(Clone, Copy)]
enum Awaited {
    /// The next stripe or batch.
    Passing,
    /// Room for more in the queue.
    Room,
}

/// A level with its lock. No two levels share a lock, a condition or a bound (deniability
/// contract).
struct Shared {
    state: Mutex<HiddenState>,
    /// Notified when a stripe or batch passed, and on a failure.
    moved: Condvar,
    /// Notified when the queue has room, and on a failure.
    room: Condvar,
    /// Bytes that may be queued before writers wait.
    most_waiting: u64,
    /// Whether operations of the level stop waiting for cover.
    gives_up: AtomicBool,
    /// Whether a user of the level was told of a loss while the level was being closed.
    lost: AtomicBool,
}

/// The hidden levels of an open disk, shared by its clients and the thread that fills stripes or
/// batches.
pub struct HiddenLevels {
    levels: Vec<Shared>,
}

impl HiddenLevels {
    /// Levels 1 and up of a disk with the last stripe or batch `head`. The queue of level *l* holds
    /// `memory` bytes divided by 2 to the power of *l* before writers wait, whatever number of
    /// levels is open.
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

    /// The number of open levels, without level 0.
    pub fn count(&self) -> usize {
        self.levels.len()
    }

    fn shared(&self, level: u8) -> &Shared {
        &self.levels[usize::from(level) - 1]
    }

    /// Locks a level, from 1 up. If a thread panicked while it changed the level, the disk fails.
    pub fn lock(&self, health: &FailStop, level: u8) -> MutexGuard<'_, HiddenState> {
        self.shared(level).state.lock().unwrap_or_else(|poisoned| {
            health.fail(defect());
            self.wake_all();
            poisoned.into_inner()
        })
    }

    /// Locks all levels, starting at level 1, for a consistent view.
    fn lock_all(&self, health: &FailStop) -> Vec<MutexGuard<'_, HiddenState>> {
        (1..=self.levels.len() as u8).map(|level| self.lock(health, level)).collect()
    }

    /// Records that stripe or batch `seq` was filled from the queue of a level, and that its map
    /// has the places.
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

    /// Sets whether operations of a level, from 1 up, stop waiting for cover: the level is being
    /// closed, and the cover that closing takes is written.
    pub fn give_up(&self, level: u8, gives_up: bool) {
        self.shared(level).gives_up.store(gives_up, Ordering::Release);
        if gives_up {
            self.wake_all();
        }
    }

    /// How long an operation of a level, from 1 up, may wait at the moment: not at all once the
    /// level gives up.
    pub fn patience(&self, wait: &Wait<'_>, level: u8) -> Option<Duration> {
        if self.shared(level).gives_up() { Some(Duration::ZERO) } else { wait.patience }
    }

    /// Records that the user of a level, from 1 up, was told of a loss.
    pub fn lose(&self, level: u8) {
        self.shared(level).lost.store(true, Ordering::Release);
    }

    /// Errors: [`Kind::NoCover`] if a level has anything pending, or has lost something.
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
        // The thread that takes the blocks into a stripe or batch then finds the leaves in memory.
        self.warm(wait.health, level, first, (data.len() / BLOCK_SIZE) as u64, source);
        let shared = self.shared(level);
        // Copy without the lock: the thread that fills stripes or batches waits for it.
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

    /// Loads the leaves with the places of blocks of a level, without the lock: the thread that
    /// fills stripes or batches must not wait for the medium. Read errors are left to the reader of
    /// the map.
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
        // Before anything is dropped from the queue: the read of the map may fail.
        let written = tree.any(first, count, source)?;
        queue.discard(first, count);
        if written {
            queue.trim(first, count);
        }
        shared.wake_writer(&state);
        Ok(())
    }

    /// Waits until stripes or batches have taken everything that a level acknowledged. Returns the
    /// last one that took anything: once it is durable, so is everything acknowledged.
    pub fn wait_passed(&self, wait: &Wait<'_>, level: u8) -> Result<u64> {
        wait.health.check()?;
        let ticket = self.lock(wait.health, level).level.queue.ticket();
        let state = self.wait(wait, level, "cannot flush the hidden level", Awaited::Passing, |state| {
            // If a stripe or batch took blocks and failed, they are nowhere: report the failure
            // instead.
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
            // While stripes or batches pass, waiting is worthwhile.
            if state.filled != filled {
                (since, filled) = (Instant::now(), state.filled);
            }
            let patience = self.patience(wait, level);
            let left = patience.map_or(LOOK_AGAIN, |patience| patience.saturating_sub(since.elapsed()));
            if left.is_zero() {
                // A file system that is being unmounted does not repeat a refused write.
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

    /// Sets the places of blocks of a level that were taken in. All other blocks are read at once,
    /// and their places set to 0.
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

    /// Wakes one thread that waits for room, if there is one; it wakes the next.
    fn wake_writer(&self, state: &HiddenState) {
        if state.writers > 0 && state.waiting() < self.most_waiting {
            self.room.notify_one();
        }
    }
}

/// The error of a hidden flush if its blocks were written with public writes that were not made
/// durable.
pub fn no_sync() -> Error {
    Error::new(Kind::NoCover, "cannot flush the hidden level")
        .found("nothing waiting any more, and no public flush to make it durable in time")
        .expected("a flush of level 0, or a disk with a cover of its own")
        .remedy(
            Advice::from("flush level 0 meanwhile, or allow more time: ").setting(Setting("cover_timeout")),
        )
}

/// The error of a closing with more pending, `pending` bytes, than its cover takes.
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

/// The error of a hidden operation that got no cover in time, with `waiting` bytes pending.
fn no_cover(what: &str, waiting: u64) -> Error {
    let remedy =
        Advice::from("write to level 0 meanwhile, or allow more time: ").setting(Setting("cover_timeout"));
    Error::new(Kind::NoCover, what)
        .found(format!("{} KiB waiting, and no public write to cover them in time", waiting.div_ceil(1024)))
        .expected("public writes, or a disk with a cover of its own")
        .remedy(remedy.text("; what is queued is kept while any level is open"))
}
