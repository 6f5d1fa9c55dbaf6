//! The hidden levels of an open disk: what they know, and waiting for cover.
//!
//! Deniability contract: nothing here decides that, when or where anything is written. A stripe or batch that the public
//! or the paced clock caused passes by and is filled by the format; whoever waits for that is woken.

use crate::failstop::{FailStop, defect};
use crate::queue::{Queue, Ticket, Waiting};
use crate::tree::{PageSource, Tree};
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result, StatusItem};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Discarded ranges that may wait.
const MOST_TRIMS: usize = 4096;
/// The longest wait without a look at whether the disk failed: a failure may be told just before the wait begins.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// One level of which blocks wait before they are taken in: every hidden one, and the public one of a format that takes
/// blocks in by the batch.
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

    /// Where blocks lie that were taken in; the others are read at once, and their place given as 0.
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

/// What the hidden levels know.
pub struct Hidden {
    /// Levels 1 and up.
    pub levels: Vec<HiddenLevel>,
    /// The last stripe or batch that passed.
    pub filled: u64,
    /// Whoever waits for one to pass.
    watchers: usize,
    /// Whoever waits for room.
    writers: usize,
}

/// How long something hidden may wait, and what ends its waiting early.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// A failure ends it.
    pub health: &'a FailStop,
    /// How long to wait while nothing passes by; none for as long as it takes.
    pub patience: Option<Duration>,
}

/// For what somebody waits: waking those who cannot go on costs more than most of what is done here.
#[derive(Clone, Copy)]
enum Awaited {
    /// The next stripe or batch.
    Passing,
    /// Room for more that waits.
    Room,
}

impl Hidden {
    /// A level, from 1 up.
    pub fn level(&mut self, level: u8) -> &mut HiddenLevel {
        &mut self.levels[usize::from(level) - 1]
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> u64 {
        self.levels.iter().map(|level| (level.queue.len() * BLOCK_SIZE) as u64).sum()
    }

    /// Slots that data and maps of all open hidden levels take up, or will, as far as that limits what is written: a
    /// single hidden level fits whole, as it was planned to.
    pub fn used(&self) -> u64 {
        if self.levels.len() == 1 {
            return 0;
        }
        let each =
            self.levels.iter().map(|level| level.tree.used().saturating_add(level.queue.first_writes()));
        each.fold(0, u64::saturating_add)
    }

    fn waiters(&mut self, awaited: Awaited) -> &mut usize {
        match awaited {
            Awaited::Passing => &mut self.watchers,
            Awaited::Room => &mut self.writers,
        }
    }
}

/// The hidden levels of an open disk, shared by its clients and whoever fills its stripes or batches.
pub struct HiddenLevels {
    hidden: Mutex<Hidden>,
    /// A stripe or batch passed by, or something failed.
    moved: Condvar,
    /// There is room for more that waits, or something failed.
    room: Condvar,
    most_waiting: u64,
    usable: u64,
}

impl HiddenLevels {
    /// Levels 1 and up of a disk whose last stripe or batch is `head`. Up to `most_waiting` bytes wait before writers do,
    /// and data and maps may fill `usable` slots together.
    pub fn new(levels: Vec<HiddenLevel>, head: u64, most_waiting: u64, usable: u64) -> HiddenLevels {
        HiddenLevels {
            hidden: Mutex::new(Hidden { levels, filled: head, watchers: 0, writers: 0 }),
            moved: Condvar::new(),
            room: Condvar::new(),
            most_waiting,
            usable,
        }
    }

    /// What the levels know. After a panic of somebody who changed it the disk fails.
    pub fn lock(&self, health: &FailStop) -> MutexGuard<'_, Hidden> {
        self.hidden.lock().unwrap_or_else(|poisoned| {
            health.fail(defect());
            self.wake_all();
            poisoned.into_inner()
        })
    }

    /// Stripe or batch `seq` was filled from what waited, and the maps know.
    pub fn passed(&self, hidden: &mut Hidden, seq: u64) {
        hidden.filled = seq;
        if hidden.watchers > 0 {
            self.moved.notify_all();
        }
        self.wake_writer(hidden);
    }

    /// Wakes everybody, after a failure.
    pub fn wake_all(&self) {
        self.moved.notify_all();
        self.room.notify_all();
    }

    /// Wakes one of those who wait for room, if there is any; that one wakes the next.
    fn wake_writer(&self, hidden: &Hidden) {
        if hidden.writers > 0 && hidden.waiting() < self.most_waiting {
            self.room.notify_one();
        }
    }

    /// Queues blocks of a level. Waits while too much is queued.
    ///
    /// Errors: [`Kind::NoSpace`], [`Kind::NoCover`], the standing refusal, and what `source` reports.
    pub fn write(
        &self,
        wait: &Wait<'_>,
        level: u8,
        first: u64,
        data: &[u8],
        source: &dyn PageSource,
    ) -> Result<()> {
        wait.health.check()?;
        let mut hidden = self.wait(wait, "cannot take a hidden write in", Awaited::Room, |hidden| {
            hidden.waiting() < self.most_waiting
        })?;
        let mut blocks = (first..).zip(data.chunks_exact(BLOCK_SIZE));
        let queued =
            blocks.try_for_each(|(addr, block)| self.queue_block(&mut hidden, level, addr, block, source));
        self.wake_writer(&hidden);
        queued
    }

    fn queue_block(
        &self,
        hidden: &mut Hidden,
        level: u8,
        addr: u64,
        block: &[u8],
        source: &dyn PageSource,
    ) -> Result<()> {
        let deepest = usize::from(level) == hidden.levels.len() && level > 1;
        if let Some(waiting) = hidden.level(level).queue.get_mut(addr) {
            waiting.copy_from_slice(block);
            return Ok(());
        }
        let used = hidden.used();
        let first_write = hidden.level(level).tree.get(addr, source)? == 0;
        // Levels above must not learn of the deepest from a lack of room: it leaves them some.
        let most = if deepest { self.usable - self.usable / 16 } else { self.usable };
        if first_write && used >= most {
            return Err(Error::new(Kind::NoSpace, "the hidden levels are full")
                .found(format!("{used} blocks in use"))
                .expected(format!("fewer than {most}"))
                .remedy("delete something on a hidden level and trim it"));
        }
        hidden.level(level).queue.put(addr, Waiting { block: block.into(), first_write });
        Ok(())
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
        let mut hidden = self.wait(wait, "cannot take a hidden discard in", Awaited::Passing, |hidden| {
            hidden.level(level).queue.trims().len() < MOST_TRIMS
        })?;
        let HiddenLevel { tree, queue } = hidden.level(level);
        queue.discard(first, count);
        if tree.any(first, count, source)? {
            queue.trim(first, count);
        }
        self.wake_writer(&hidden);
        Ok(())
    }

    /// What a level was given up to now.
    pub fn ticket(&self, health: &FailStop, level: u8) -> Ticket {
        self.lock(health).level(level).queue.ticket()
    }

    /// Whether all of that was taken.
    pub fn has_passed(&self, health: &FailStop, level: u8, ticket: Ticket) -> bool {
        self.lock(health).level(level).queue.has_passed(ticket)
    }

    /// Waits until everything that a level acknowledged was taken by a stripe or batch, and returns the last that passed:
    /// once that one is durable, so is what was acknowledged.
    pub fn wait_passed(&self, wait: &Wait<'_>, level: u8) -> Result<u64> {
        wait.health.check()?;
        let ticket = self.lock(wait.health).level(level).queue.ticket();
        let hidden = self.wait(wait, "cannot flush the hidden level", Awaited::Passing, |hidden| {
            hidden.level(level).queue.has_passed(ticket)
        })?;
        Ok(hidden.filled)
    }

    /// Waits until `done`.
    fn wait(
        &self,
        wait: &Wait<'_>,
        what: &str,
        awaited: Awaited,
        done: impl Fn(&mut Hidden) -> bool,
    ) -> Result<MutexGuard<'_, Hidden>> {
        let mut hidden = self.lock(wait.health);
        let told = if matches!(awaited, Awaited::Passing) { &self.moved } else { &self.room };
        let (mut since, mut filled) = (Instant::now(), hidden.filled);
        while !done(&mut hidden) {
            wait.health.check()?;
            // As long as anything passes by, it is worth waiting on.
            if hidden.filled != filled {
                (since, filled) = (Instant::now(), hidden.filled);
            }
            let left = wait.patience.map_or(LOOK_AGAIN, |patience| patience.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return Err(no_cover(what, hidden.waiting()));
            }
            *hidden.waiters(awaited) += 1;
            let waited = told.wait_timeout(hidden, left.min(LOOK_AGAIN));
            hidden = waited.unwrap_or_else(PoisonError::into_inner).0;
            *hidden.waiters(awaited) -= 1;
        }
        Ok(hidden)
    }

    /// Where blocks of a level lie that were taken in; the others are read at once, and their place given as 0.
    pub fn look(
        &self,
        health: &FailStop,
        level: u8,
        first: u64,
        buf: &mut [u8],
        places: &mut [u64],
        source: &dyn PageSource,
    ) -> Result<()> {
        self.lock(health).level(level).look(first, buf, places, source)
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
        self.lock(health).level(level).written(first, count, source)
    }

    /// The counters of a level.
    pub fn status(&self, health: &FailStop, level: u8) -> Vec<StatusItem> {
        let mut hidden = self.lock(health);
        let HiddenLevel { tree, queue } = hidden.level(level);
        let item = |name, value, unit| StatusItem { name, value, unit };
        vec![
            item("data", tree.data(), "blocks"),
            item("map_pages_waiting", tree.dirty_pages(), "pages"),
            item("waiting_for_cover", (queue.len() * BLOCK_SIZE) as u64, "bytes"),
        ]
    }
}

/// The error of a hidden flush whose blocks went along with public writes that nobody made durable.
pub fn no_sync() -> Error {
    Error::new(Kind::NoCover, "cannot flush the hidden level")
        .found("nothing waiting any more, and no public flush to make it durable in time")
        .expected("a flush of level 0, or a disk with a cover of its own (`create --cover`)")
        .remedy("flush level 0 meanwhile (`sync`), or allow more time (--cover-timeout)")
}

/// The error of something hidden that nothing public came to cover, while `waiting` bytes wait.
pub fn no_cover(what: &str, waiting: u64) -> Error {
    Error::new(Kind::NoCover, what)
        .found(format!("{} KiB waiting, and no public write to cover them in time", waiting.div_ceil(1024)))
        .expected("public writes, or a disk with a cover of its own (`create --cover`)")
        .remedy(
            "write to level 0 meanwhile, or allow more time (--cover-timeout); what waits is kept while any level \
             is open",
        )
}
