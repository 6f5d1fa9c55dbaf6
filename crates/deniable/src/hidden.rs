//! Hidden levels: what is written to them waits until a stripe passes by that takes it along.
//!
//! Deniability contract: nothing here decides that, when or where anything is written. A stripe that the public or the
//! paced clock caused passes by, and its hidden slots are filled: with what must be carried on, with pages and blocks of
//! the open hidden levels, and with random bytes.

use crate::core::Core;
use crate::entry::Entry;
use crate::filling::Filling;
use crate::keys::{Domain, SALT_LEN, StripeKey};
use crate::log::{Flying, Head, Plain};
use crate::queue::{Queue, Waiting};
use crate::source::Source;
use crate::summary::{self, ENTRIES_AT, HIDDEN_ECHO, HIDDEN_ENTRY, ROOT_LEN, ROOTS_AT, RootRecord};
use crate::tree::Tree;
use crate::trims;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Discarded ranges that may wait.
const MOST_TRIMS: usize = 16 * trims::MOST_RANGES;
/// Slots that hidden levels leave to records of discards.
const RESERVE: u64 = 16;

/// One hidden level.
pub(crate) struct HiddenLevel {
    pub(crate) tree: Tree,
    pub(crate) queue: Queue,
}

impl HiddenLevel {
    pub(crate) fn new(tree: Tree) -> HiddenLevel {
        HiddenLevel { tree, queue: Queue::default() }
    }
}

/// What the hidden levels know.
pub(crate) struct Hidden {
    /// Levels 1 and up.
    levels: Vec<HiddenLevel>,
    /// What the hidden slots of the last stripe hold.
    echo: Vec<(u8, Entry)>,
    /// The last stripe that was filled.
    filled: u64,
    /// Whoever waits for stripes to pass.
    watchers: usize,
    /// Whoever waits for room.
    writers: usize,
}

/// For what somebody waits: waking those who cannot go on costs more than most of what is done here.
#[derive(Clone, Copy)]
enum Awaited {
    /// The next stripe.
    Stripe,
    /// Room for more that waits.
    Room,
}

/// What the hidden part of a stripe's summary says.
struct HiddenPart {
    /// The states of the maps of levels 1 and up.
    roots: Vec<RootRecord>,
    /// What the hidden slots of the stripe before hold.
    echo: Vec<(u8, Entry)>,
}

impl Hidden {
    /// `echo` is what the hidden slots of the last stripe hold, `head`.
    pub(crate) fn new(levels: Vec<HiddenLevel>, head: u64, echo: Vec<(u8, Entry)>) -> Hidden {
        Hidden { levels, echo, filled: head, watchers: 0, writers: 0 }
    }

    pub(crate) fn level(&mut self, level: u8) -> &mut HiddenLevel {
        &mut self.levels[usize::from(level) - 1]
    }

    /// Bytes that wait.
    fn waiting(&self) -> u64 {
        self.levels.iter().map(|level| (level.queue.len() * BLOCK_SIZE) as u64).sum()
    }

    fn waiters(&mut self, awaited: Awaited) -> &mut usize {
        match awaited {
            Awaited::Stripe => &mut self.watchers,
            Awaited::Room => &mut self.writers,
        }
    }

    /// Slots that data and maps of all open hidden levels take up, or will, as far as that limits what is written: a
    /// single hidden level fits whole, as it was planned to.
    fn used(&self) -> u64 {
        if self.levels.len() == 1 {
            return 0;
        }
        let each =
            self.levels.iter().map(|level| level.tree.used().saturating_add(level.queue.first_writes()));
        each.fold(0, u64::saturating_add)
    }
}

impl Core {
    /// Fills the hidden slots of a stripe and the hidden part of its summary (roots, entries, echo), encrypted.
    /// `carried` says what the hidden levels have in the stripe that it carries on. What the medium will not give is
    /// lost, and stops nothing.
    pub(crate) fn fill_hidden(
        &self,
        flying: &Flying,
        carried: &[Head],
        salt: &[u8; SALT_LEN],
        slots: &mut [u8],
        part: &mut [u8],
    ) -> Result<()> {
        self.filler.fill(part);
        if self.log.keys.len() == 1 {
            self.filler.fill(slots);
            return Ok(());
        }
        let says = {
            let mut hidden = self.hidden();
            let plain = Filling::fill(self, flying.seq, carried, &mut hidden.levels)?;
            let roots = hidden.levels.iter().map(|level| level.tree.state()).collect();
            let echo = std::mem::replace(&mut hidden.echo, plain.entries.clone());
            hidden.filled = flying.seq;
            // The maps point at it already: whoever looks there next must find it.
            let _set_once = flying.hidden.set(plain);
            if hidden.watchers > 0 {
                self.hidden_moved.notify_all();
            }
            self.wake_writer(&hidden);
            HiddenPart { roots, echo }
        };
        let plain = flying.hidden.get().expect("it was just set");
        self.encrypt_hidden(flying.seq, salt, plain, &says, slots, part)
    }

    fn encrypt_hidden(
        &self,
        seq: u64,
        salt: &[u8; SALT_LEN],
        plain: &Plain,
        says: &HiddenPart,
        slots: &mut [u8],
        part: &mut [u8],
    ) -> Result<()> {
        let keys =
            self.log.keys.iter().map(|key| StripeKey::derive(key, salt)).collect::<Result<Vec<_>>>()?;
        for (level, root) in (1..).zip(&says.roots) {
            let at = (level - 1) * ROOT_LEN;
            root.seal(&keys[level], level, &mut part[at..at + ROOT_LEN]);
        }
        let entries_at = ENTRIES_AT - ROOTS_AT;
        let (entries, echo) = part[entries_at..].split_at_mut(plain.entries.len() * HIDDEN_ENTRY);
        let blocks = plain.blocks.chunks_exact(BLOCK_SIZE).zip(slots.chunks_exact_mut(BLOCK_SIZE));
        for (slot, (src, dst)) in blocks.enumerate() {
            let (level, entry) = plain.entries[slot];
            if entry == Entry::Empty {
                self.filler.fill(dst);
                continue;
            }
            let key = &keys[usize::from(level)];
            let listed = &mut entries[slot * HIDDEN_ENTRY..(slot + 1) * HIDDEN_ENTRY];
            listed[16..].copy_from_slice(&key.seal_slot(seq, slot, entry.pack(), src, dst));
            listed[..16].copy_from_slice(&summary::cover(key, Domain::Entry, slot, entry));
        }
        for (slot, (level, entry)) in says.echo.iter().enumerate().filter(|(_, (_, e))| *e != Entry::Empty) {
            let covered = summary::cover(&keys[usize::from(*level)], Domain::Echo, slot, *entry);
            echo[slot * HIDDEN_ECHO..(slot + 1) * HIDDEN_ECHO].copy_from_slice(&covered);
        }
        Ok(())
    }

    /// Queues blocks of a hidden level. Waits while too much is queued.
    pub(crate) fn write_hidden(&self, level: u8, first: u64, data: &[u8]) -> Result<()> {
        self.check_alive()?;
        let mut hidden = self.wait_hidden("cannot take a hidden write in", Awaited::Room, |hidden| {
            hidden.waiting() < self.most_waiting
        })?;
        let mut blocks = (first..).zip(data.chunks_exact(BLOCK_SIZE));
        let queued = blocks.try_for_each(|(addr, block)| self.queue_block(&mut hidden, level, addr, block));
        self.wake_writer(&hidden);
        queued
    }

    /// Wakes one of those who wait for room, if there is any; that one wakes the next.
    fn wake_writer(&self, hidden: &Hidden) {
        if hidden.writers > 0 && hidden.waiting() < self.most_waiting {
            self.hidden_room.notify_one();
        }
    }

    fn queue_block(&self, hidden: &mut Hidden, level: u8, addr: u64, block: &[u8]) -> Result<()> {
        let deepest = usize::from(level) == hidden.levels.len() && level > 1;
        if let Some(waiting) = hidden.level(level).queue.get_mut(addr) {
            waiting.copy_from_slice(block);
            return Ok(());
        }
        let used = hidden.used();
        let first_write = self.peek(hidden.level(level), level, addr)? == 0;
        let usable = self.log.params.hidden_usable() - RESERVE;
        // Levels above must not learn of the deepest from a lack of room: it leaves them some.
        let most = if deepest { usable - usable / 16 } else { usable };
        if first_write && used >= most {
            return Err(Error::new(Kind::NoSpace, "the hidden levels are full")
                .found(format!("{used} blocks in use"))
                .expected(format!("fewer than {most}"))
                .remedy("delete something on a hidden level and trim it"));
        }
        hidden.level(level).queue.put(addr, Waiting { block: block.into(), first_write });
        Ok(())
    }

    /// What the map of a hidden level says of a block.
    fn peek(&self, state: &mut HiddenLevel, level: u8, addr: u64) -> Result<u64> {
        state.tree.get(addr, &Source::closed(&self.log, level))
    }

    /// Queues a discard of a hidden level.
    pub(crate) fn discard_hidden(&self, level: u8, first: u64, count: u64) -> Result<()> {
        self.check_alive()?;
        let mut hidden = self.wait_hidden("cannot take a hidden discard in", Awaited::Stripe, |hidden| {
            hidden.level(level).queue.trims().len() < MOST_TRIMS
        })?;
        let HiddenLevel { tree, queue } = hidden.level(level);
        queue.discard(first, count);
        if tree.any(first, count, &Source::closed(&self.log, level))? {
            queue.trim(first, count);
        }
        self.wake_writer(&hidden);
        Ok(())
    }

    /// Waits until everything that a hidden level acknowledged is durable. Causes no write and no sync.
    pub(crate) fn flush_hidden(&self, level: u8) -> Result<()> {
        self.check_alive()?;
        let ticket = self.hidden().level(level).queue.ticket();
        let hidden = self.wait_hidden("cannot flush the hidden level", Awaited::Stripe, |hidden| {
            hidden.level(level).queue.has_passed(ticket)
        })?;
        let filled = hidden.filled;
        drop(hidden);
        self.wait_durable(filled)
    }

    /// Waits until `done`. Without paced cover only as long as the cover timeout allows.
    fn wait_hidden(
        &self,
        what: &str,
        awaited: Awaited,
        done: impl Fn(&mut Hidden) -> bool,
    ) -> Result<MutexGuard<'_, Hidden>> {
        let deadline = self.cover_deadline();
        let mut hidden = self.hidden();
        let moved = if matches!(awaited, Awaited::Stripe) { &self.hidden_moved } else { &self.hidden_room };
        while !done(&mut hidden) {
            self.check_alive()?;
            let left =
                deadline.map_or(Duration::from_secs(1), |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(no_cover(what, hidden.waiting()));
            }
            *hidden.waiters(awaited) += 1;
            // A failure may be told just before the wait begins.
            let waited = moved.wait_timeout(hidden, left.min(Duration::from_secs(1)));
            hidden = waited.unwrap_or_else(PoisonError::into_inner).0;
            *hidden.waiters(awaited) -= 1;
        }
        Ok(hidden)
    }

    /// Where blocks of a hidden level lie that are in stripes; the others are read at once, and their place given as 0.
    pub(crate) fn look_hidden(
        &self,
        level: u8,
        first: u64,
        buf: &mut [u8],
        places: &mut [u64],
    ) -> Result<()> {
        let mut hidden = self.hidden();
        let HiddenLevel { tree, queue } = hidden.level(level);
        tree.places(first, places, &Source::closed(&self.log, level))?;
        let blocks = (first..).zip(buf.chunks_exact_mut(BLOCK_SIZE)).zip(places);
        for ((addr, out), packed) in blocks {
            if queue.trims_cover(addr) {
                *packed = 0;
            }
            if let Some(waiting) = queue.get(addr) {
                out.copy_from_slice(waiting);
                *packed = 0;
            } else if *packed == 0 {
                out.fill(0);
            }
        }
        Ok(())
    }

    /// Which of `count` blocks of a hidden level are written.
    pub(crate) fn hidden_written(&self, level: u8, first: u64, count: usize) -> Result<Vec<bool>> {
        let mut hidden = self.hidden();
        let HiddenLevel { tree, queue } = hidden.level(level);
        let mut places = vec![0; count];
        tree.places(first, &mut places, &Source::closed(&self.log, level))?;
        let written = |(addr, packed): (u64, u64)| {
            queue.get(addr).is_some() || (packed != 0 && !queue.trims_cover(addr))
        };
        Ok((first..).zip(places).map(written).collect())
    }
}

/// The error of something hidden that nothing public came to cover.
pub(crate) fn no_cover(what: &str, waiting: u64) -> Error {
    Error::new(Kind::NoCover, what)
        .found(format!("{} KiB waiting, and no public write to cover them in time", waiting.div_ceil(1024)))
        .expected("public writes, or a disk with a cover of its own (`create --cover`)")
        .remedy(
            "write to level 0 meanwhile, or allow more time (--cover-timeout); what waits is kept while any level \
             is open",
        )
}
