//! The hidden levels of an open disk: their state, and waiting for cover.
//!
//! Deniability contract: nothing here decides that, when or where anything is written. Public
//! operations or the paced clock cause a stripe or batch, and the format fills it; threads that
//! wait for it are woken.

use crate::OpenOptions;
use crate::level_map::PageSource;
use crate::queue::PendingBlock;
use crate::queued_level::QueuedLevel;
use crate::refused_blocks::RefusedBlocks;
use crate::warm::warm;
use lacuna_contracts::{BLOCK_SIZE, Error, FailStop, Hint, Kind, Result, Setting, StatusItem, panic_error};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most discarded ranges that may be pending.
const MAX_PENDING_DISCARDS: usize = 4096;
/// The longest wait without a check for a failure of the disk: it may fail just before the wait
/// begins.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// One hidden level under its lock.
pub struct HiddenState {
    /// Its map and its queue.
    pub level: QueuedLevel,
    /// The last stripe or batch that passed.
    pub last_filled: u64,
    /// The last stripe or batch that took anything from the queue.
    last_taken: u64,
    /// The number of threads that wait for the next stripe or batch.
    stripe_waiters: usize,
    /// The number of threads that wait for room.
    space_waiters: usize,
    /// Writes that were refused while the level gave up, and not repeated.
    refused: RefusedBlocks,
}

impl HiddenState {
    /// Bytes in the queue.
    pub fn pending_bytes(&self) -> u64 {
        (self.level.queue.len() * BLOCK_SIZE) as u64
    }

    fn waiters(&mut self, awaited: WaitEvent) -> &mut usize {
        match awaited {
            WaitEvent::NextStripe => &mut self.stripe_waiters,
            WaitEvent::QueueSpace { .. } => &mut self.space_waiters,
        }
    }
}

/// How long a hidden operation may wait, and the failure that ends the wait early.
#[derive(Clone, Copy)]
pub struct CoverWait<'a> {
    /// A failure ends it.
    pub health: &'a FailStop,
    /// How long to wait while no stripe or batch passes; none for as long as it takes.
    pub timeout: Option<Duration>,
}

/// The mode of an open disk.
#[derive(Clone, Copy)]
pub struct OpenMode {
    /// Writes are refused, and nothing is written.
    pub read_only: bool,
    /// Threads write and refresh.
    pub background: bool,
    /// How long to wait for cover on a disk without paced cover.
    cover_timeout: Duration,
}

impl OpenMode {
    /// The mode that the options ask for. A read-only disk has no threads.
    pub fn of(options: &OpenOptions) -> Self {
        let OpenOptions { read_only, cover_timeout, .. } = *options;
        OpenMode { read_only, background: options.background && !read_only, cover_timeout }
    }

    /// How a hidden operation waits on a disk with paced cover every `cover_millis` milliseconds, 0
    /// for none. With paced cover it need not give up.
    pub fn cover_wait<'a>(&self, health: &'a FailStop, cover_millis: u32) -> CoverWait<'a> {
        let patience = match (self.background, cover_millis) {
            (false, _) => Some(Duration::ZERO),
            (true, 0) => Some(self.cover_timeout),
            (true, _) => None,
        };
        CoverWait { health, timeout: patience }
    }
}

/// The event that a thread waits for. There are two because waking threads that cannot go on costs
/// more than most of the work here.
#[derive(Clone, Copy)]
enum WaitEvent {
    /// The next stripe or batch.
    NextStripe,
    /// Room in the queue for these blocks.
    QueueSpace { first: u64, count: u64 },
}

/// A level with its lock. No two levels share a lock, a condition or a bound (deniability
/// contract).
struct LockedLevel {
    state: Mutex<HiddenState>,
    /// Notified when a stripe or batch passed, and on a failure.
    stripe_passed: Condvar,
    /// Notified when the queue has room, and on a failure.
    queue_space: Condvar,
    /// Bytes that may be queued before writers wait.
    max_pending: u64,
    /// Whether operations of the level stop waiting for cover.
    no_wait: AtomicBool,
    /// Whether a user of the level was told of a loss while the level was being closed.
    is_loss_noted: AtomicBool,
}

/// The hidden levels of an open disk, shared by its clients and the thread that fills stripes or
/// batches.
pub struct HiddenLevels {
    levels: Vec<LockedLevel>,
}

impl HiddenLevels {
    /// Levels 1 and up of a disk with the last stripe or batch `head`. The queue of level *l* holds
    /// `memory` bytes divided by 2 to the power of *l* before writers wait, whatever number of
    /// levels is open.
    pub fn new(levels: Vec<QueuedLevel>, head: u64, memory: u64) -> HiddenLevels {
        let shared = |(number, level): (u32, QueuedLevel)| LockedLevel {
            no_wait: AtomicBool::new(false),
            is_loss_noted: AtomicBool::new(false),
            state: Mutex::new(HiddenState {
                level,
                last_filled: head,
                last_taken: head,
                stripe_waiters: 0,
                space_waiters: 0,
                refused: RefusedBlocks::default(),
            }),
            stripe_passed: Condvar::new(),
            queue_space: Condvar::new(),
            max_pending: memory >> number,
        };
        HiddenLevels { levels: (1..).zip(levels).map(shared).collect() }
    }

    /// The number of open levels, without level 0.
    pub fn count(&self) -> usize {
        self.levels.len()
    }

    fn shared(&self, level: u8) -> &LockedLevel {
        &self.levels[usize::from(level) - 1]
    }

    /// Locks a level, from 1 up. If a thread panicked while it changed the level, the disk fails.
    pub fn lock(&self, health: &FailStop, level: u8) -> MutexGuard<'_, HiddenState> {
        self.shared(level).state.lock().unwrap_or_else(|poisoned| {
            health.fail(panic_error());
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
    pub fn mark_filled(&self, level: u8, state: &mut HiddenState, seq: u64) {
        let shared = self.shared(level);
        state.last_filled = seq;
        if state.level.queue.note_taken() {
            state.last_taken = seq;
        }
        if state.stripe_waiters > 0 {
            shared.stripe_passed.notify_all();
        }
        shared.wake_writer(state);
    }

    /// Sets whether operations of a level, from 1 up, stop waiting for cover: the level is being
    /// closed, and the cover that closing takes is written.
    pub fn set_no_wait(&self, level: u8, gives_up: bool) {
        let shared = self.shared(level);
        shared.no_wait.store(gives_up, Ordering::Release);
        if gives_up {
            // A thread between its last check and its wait holds the lock, and would miss the
            // notification.
            drop(shared.state.lock());
            shared.notify_all();
        }
    }

    /// How long an operation of a level, from 1 up, may wait at the moment: not at all once the
    /// level gives up.
    pub fn timeout(&self, wait: &CoverWait<'_>, level: u8) -> Option<Duration> {
        if self.shared(level).no_wait() { Some(Duration::ZERO) } else { wait.timeout }
    }

    /// Records that the user of a level, from 1 up, was told of a loss.
    pub fn note_loss(&self, level: u8) {
        self.shared(level).is_loss_noted.store(true, Ordering::Release);
    }

    /// Errors: [`Kind::NoCover`] if a level has anything pending, or has lost something. A write
    /// that was refused while the level gave up is lost unless it was repeated.
    pub fn check_nothing_pending(&self, health: &FailStop) -> Result<()> {
        let (mut left, mut bytes) =
            (self.levels.iter().any(|shared| shared.is_loss_noted.load(Ordering::Acquire)), 0);
        for level in self.lock_all(health) {
            let queue = &level.level.queue;
            left |= !queue.is_empty() || !queue.trims().is_empty() || !level.refused.is_empty();
            bytes += level.pending_bytes();
        }
        if left { Err(pending_lost(bytes)) } else { Ok(()) }
    }

    /// Wakes all waiting threads, after a failure. Takes no lock: a public operation that fails
    /// must not wait for a hidden one, and a thread that misses the notification checks again
    /// within a second.
    pub fn wake_all(&self) {
        self.levels.iter().for_each(LockedLevel::notify_all);
    }

    /// Queues blocks of a level. Waits while too much is queued.
    ///
    /// Errors: [`Kind::NoCover`] and the standing refusal.
    pub fn write(
        &self,
        wait: &CoverWait<'_>,
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
        let copy = |block: &[u8]| PendingBlock::new(block.into());
        let blocks: Vec<PendingBlock> = data.chunks_exact(BLOCK_SIZE).map(copy).collect();
        let count = blocks.len() as u64;
        let space = WaitEvent::QueueSpace { first, count };
        let mut state = self.wait(wait, level, "cannot accept a hidden write", space, |state| {
            state.pending_bytes() < shared.max_pending
        })?;
        state.refused.remove(first, count);
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
        wait: &CoverWait<'_>,
        level: u8,
        first: u64,
        count: u64,
        source: &dyn PageSource,
    ) -> Result<()> {
        wait.health.check()?;
        self.warm(wait.health, level, first, count, source);
        let shared = self.shared(level);
        let mut state =
            self.wait(wait, level, "cannot accept a hidden discard", WaitEvent::NextStripe, |state| {
                state.level.queue.trims().len() < MAX_PENDING_DISCARDS
            })?;
        let QueuedLevel { tree, queue } = &mut state.level;
        // Before anything is dropped from the queue: the read of the map may fail.
        let written = tree.has_written(first, count, source)?;
        queue.discard(first, count);
        if written {
            queue.trim(first, count);
        }
        state.refused.remove(first, count);
        shared.wake_writer(&state);
        Ok(())
    }

    /// Waits until stripes or batches have taken everything that a level acknowledged. Returns the
    /// last one that took anything: once it is durable, so is everything acknowledged.
    pub fn wait_taken(&self, wait: &CoverWait<'_>, level: u8) -> Result<u64> {
        wait.health.check()?;
        let ticket = self.lock(wait.health, level).level.queue.ticket();
        let state =
            self.wait(wait, level, "cannot flush the hidden level", WaitEvent::NextStripe, |state| {
                // If a stripe or batch took blocks and failed, they are nowhere: report the failure
                // instead.
                !state.level.queue.is_partly_taken() && state.level.queue.has_drained_to(ticket)
            })?;
        Ok(state.last_taken)
    }

    /// Waits until `done`.
    fn wait(
        &self,
        wait: &CoverWait<'_>,
        level: u8,
        what: &str,
        awaited: WaitEvent,
        done: impl Fn(&HiddenState) -> bool,
    ) -> Result<MutexGuard<'_, HiddenState>> {
        let shared = self.shared(level);
        let mut state = self.lock(wait.health, level);
        let condvar = if matches!(awaited, WaitEvent::NextStripe) {
            &shared.stripe_passed
        } else {
            &shared.queue_space
        };
        let (mut since, mut filled) = (Instant::now(), state.last_filled);
        while !done(&state) {
            wait.health.check()?;
            // While stripes or batches pass, waiting is worthwhile.
            if state.last_filled != filled {
                (since, filled) = (Instant::now(), state.last_filled);
            }
            let gives_up = shared.no_wait();
            let patience = if gives_up { Some(Duration::ZERO) } else { wait.timeout };
            let left = patience.map_or(RECHECK_INTERVAL, |patience| patience.saturating_sub(since.elapsed()));
            if left.is_zero() {
                // A file system repeats a refused write if its level stays open after all. If it is
                // unmounted, it does not.
                if let WaitEvent::QueueSpace { first, count } = awaited
                    && gives_up
                {
                    state.refused.add(first, count);
                }
                return Err(no_cover(what, state.pending_bytes()));
            }
            *state.waiters(awaited) += 1;
            let waited = condvar.wait_timeout(state, left.min(RECHECK_INTERVAL));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            *state.waiters(awaited) -= 1;
        }
        Ok(state)
    }

    /// Sets the places of blocks of a level that were taken in. All other blocks are read at once,
    /// and their places set to 0.
    pub fn locate(
        &self,
        health: &FailStop,
        level: u8,
        first: u64,
        buf: &mut [u8],
        places: &mut [u64],
        source: &dyn PageSource,
    ) -> Result<()> {
        if self.lock(health, level).level.locate_in_memory(first, buf, places) {
            return Ok(());
        }
        self.warm(health, level, first, places.len() as u64, source);
        self.lock(health, level).level.locate(first, buf, places, source)
    }

    /// Which of `count` blocks of a level are written.
    pub fn are_written(
        &self,
        health: &FailStop,
        level: u8,
        first: u64,
        count: usize,
        source: &dyn PageSource,
    ) -> Result<Vec<bool>> {
        self.warm(health, level, first, count as u64, source);
        self.lock(health, level).level.are_written(first, count, source)
    }

    /// The counters of a level.
    pub fn status(&self, health: &FailStop, level: u8) -> Vec<StatusItem> {
        let state = self.lock(health, level);
        let QueuedLevel { tree, .. } = &state.level;
        let mut items = Vec::from(tree.status());
        items.push(StatusItem::new("waiting_for_cover", state.pending_bytes(), "bytes"));
        items
    }
}

impl LockedLevel {
    fn no_wait(&self) -> bool {
        self.no_wait.load(Ordering::Acquire)
    }

    fn notify_all(&self) {
        self.stripe_passed.notify_all();
        self.queue_space.notify_all();
    }

    /// Wakes one thread that waits for room, if there is one; it wakes the next.
    fn wake_writer(&self, state: &HiddenState) {
        if state.space_waiters > 0 && state.pending_bytes() < self.max_pending {
            self.queue_space.notify_one();
        }
    }
}

/// The error of a hidden flush if its blocks were written with public writes that were not made
/// durable.
pub fn no_sync() -> Error {
    Error::new(Kind::NoCover, "cannot flush the hidden level")
        .found("everything written with public writes, but no public flush in time to make it durable")
        .expected("a flush of level 0, or a disk with paced cover")
        .hint(Hint::from("flush level 0 meanwhile, or allow more time: ").setting(Setting("cover_timeout")))
}

/// The error of a closing with more pending, `pending` bytes, than its cover takes.
fn pending_lost(pending: u64) -> Error {
    let found = match pending.div_ceil(1024) {
        0 => "changes that found no cover: they are lost".to_owned(),
        kib => format!("{kib} KiB beyond the cover that closing writes: they are lost"),
    };
    Error::new(Kind::NoCover, "not all pending writes of a hidden level reached the medium")
        .found(found)
        .expected("at most the amount that the cover of a close takes")
        .hint("next time, let the close wait for cover, or write to level 0 meanwhile")
}

/// The error of a hidden operation that got no cover in time, with `waiting` bytes pending.
fn no_cover(what: &str, waiting: u64) -> Error {
    let remedy =
        Hint::from("write to level 0 meanwhile, or allow more time: ").setting(Setting("cover_timeout"));
    Error::new(Kind::NoCover, what)
        .found(format!("{} KiB pending, and no public write to cover them in time", waiting.div_ceil(1024)))
        .expected("public writes, or a disk with paced cover")
        .hint(remedy.text("; queued writes are kept while any level is open"))
}
