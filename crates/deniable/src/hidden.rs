//! Hidden levels: what waits to be hidden, and how the hidden slots of a stripe are filled.
//!
//! Deniability contract: nothing here decides that, when or where anything is written. A stripe that the public or the
//! paced clock caused passes by, and its hidden slots are filled: with what must be carried on, with pages and blocks of
//! the open hidden levels, and with random bytes (Table 1 again: existing, then new, then dummy).

use crate::core::Core;
use crate::entry::{Entry, LOST, Place};
use crate::keys::{Domain, SALT_LEN, StripeKey};
use crate::log::{Flying, Plain};
use crate::source::Source;
use crate::summary::{self, ENTRIES_AT, HIDDEN_ECHO, HIDDEN_ENTRY, ROOT_LEN, ROOTS_AT};
use crate::tree::Tree;
use crate::trims;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use std::collections::{HashMap, VecDeque};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Discarded ranges that may wait.
const MOST_TRIMS: usize = 16 * trims::MOST_RANGES;
/// Slots that hidden levels leave to records of discards.
const RESERVE: u64 = 16;

/// Blocks that wait for a stripe, oldest first, and ranges that were discarded before them.
#[derive(Default)]
struct Queue {
    blocks: HashMap<u64, Waiting>,
    order: VecDeque<u64>,
    trims: Vec<(u64, u64)>,
    /// Places in the order, and ranges, given and taken since the disk was opened.
    given: u64,
    taken: u64,
    trims_given: u64,
    trims_taken: u64,
    /// Blocks in it that the level has not written before.
    first_writes: u64,
}

/// A block that waits.
struct Waiting {
    block: Box<[u8]>,
    /// Whether the level has not written it before.
    first_write: bool,
}

impl Queue {
    fn put(&mut self, addr: u64, waiting: Waiting) {
        self.first_writes += u64::from(waiting.first_write);
        self.blocks.insert(addr, waiting);
        self.order.push_back(addr);
        self.given += 1;
        self.tidy();
    }

    /// Takes a block out; its turn in the order stays, and counts when it comes.
    fn remove(&mut self, addr: u64) -> Option<Waiting> {
        let waiting = self.blocks.remove(&addr)?;
        self.first_writes -= u64::from(waiting.first_write);
        Some(waiting)
    }

    /// Remembers a range, together with the one before it if they touch.
    fn trim(&mut self, first: u64, count: u64) {
        match self.trims.last_mut() {
            Some((start, len)) if *start <= first && first <= *start + *len => {
                *len = (*len).max(first + count - *start);
            }
            _ => {
                self.trims.push((first, count));
                self.trims_given += 1;
            }
        }
    }

    /// Forgets turns whose blocks are gone, so that they do not pile up.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.blocks.len() + 1024 {
            let mut seen = std::collections::HashSet::new();
            let before = self.order.len();
            let blocks = &self.blocks;
            self.order.retain(|addr| blocks.contains_key(addr) && seen.insert(*addr));
            self.taken += (before - self.order.len()) as u64;
        }
    }

    fn discard(&mut self, first: u64, count: u64) {
        let within: Vec<u64> = if count < self.blocks.len() as u64 {
            (first..first + count).collect()
        } else {
            self.blocks.keys().copied().filter(|addr| (first..first + count).contains(addr)).collect()
        };
        within.into_iter().for_each(|addr| drop(self.remove(addr)));
    }
}

/// One hidden level.
pub(crate) struct HiddenLevel {
    pub(crate) tree: Tree,
    queue: Queue,
}

impl HiddenLevel {
    pub(crate) fn new(tree: Tree) -> HiddenLevel {
        HiddenLevel { tree, queue: Queue::default() }
    }
}

/// What the hidden levels know.
pub(crate) struct Hidden {
    /// Levels 1 and up.
    pub(crate) levels: Vec<HiddenLevel>,
    /// What the hidden slots of the last stripe hold.
    echo: Vec<(u8, Entry)>,
    /// The last stripe that was filled.
    filled: u64,
}

impl Hidden {
    /// `echo` is what the hidden slots of the last stripe hold, `head`.
    pub(crate) fn new(levels: Vec<HiddenLevel>, head: u64, echo: Vec<(u8, Entry)>) -> Hidden {
        Hidden { levels, echo, filled: head }
    }

    /// Bytes that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.levels.iter().map(|level| (level.queue.blocks.len() * BLOCK_SIZE) as u64).sum()
    }

    /// Bytes of one level that wait.
    pub(crate) fn waiting_of(&self, level: u8) -> u64 {
        (self.levels[usize::from(level) - 1].queue.blocks.len() * BLOCK_SIZE) as u64
    }

    /// Slots that data and maps of all open hidden levels take up, or will.
    pub(crate) fn used(&self) -> u64 {
        let each = self.levels.iter().map(|level| level.tree.used().saturating_add(level.queue.first_writes));
        each.fold(0, u64::saturating_add)
    }
}

/// A stripe whose hidden slots are being filled.
struct Filling<'a> {
    core: &'a Core,
    seq: u64,
    plain: Plain,
    occupied: usize,
}

impl Filling<'_> {
    fn source(&self, level: u8) -> Source<'_> {
        Source { log: &self.core.log, level, seq: self.seq, plain: &self.plain }
    }

    fn free(&self) -> Option<u8> {
        self.plain.entries.iter().position(|(_, entry)| *entry == Entry::Empty).map(|slot| slot as u8)
    }

    fn slot_of(&self, level: u8, entry: Entry) -> Option<u8> {
        self.plain.entries.iter().position(|held| *held == (level, entry)).map(|slot| slot as u8)
    }

    /// Carries on what is valid in the stripe whose place comes up.
    fn carry(&mut self, levels: &mut [HiddenLevel], from: u64) -> Result<()> {
        let stride = self.core.log.params.stride();
        for (level, state) in (1u8..).zip(levels) {
            let Ok(head) = self.core.log.head(level, from) else { return Ok(()) };
            for (slot, (entry, _)) in head.entries.iter().enumerate() {
                if !state.tree.is_home(*entry, from, slot, stride, &self.source(level))? {
                    continue;
                }
                let carried = self.core.carry_slot(level, from, slot, *entry, &mut self.plain)?;
                self.occupied += usize::from(carried.is_some());
            }
        }
        Ok(())
    }

    /// Takes what a level has: discards, pages of its map that are due, blocks.
    fn take(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        self.take_trims(level, state)?;
        for _ in 0..state.tree.due(self.seq) {
            let Some(slot) = self.free() else { return Ok(()) };
            let mut block = [0; BLOCK_SIZE];
            let place = Place { seq: self.seq, slot };
            let Some(entry) = state.tree.emit(place, &self.source(level), &mut block)? else { break };
            self.occupied += usize::from(self.plain.drop_entry(level, entry).is_none());
            self.plain.put(level, usize::from(slot), entry).copy_from_slice(&block);
        }
        if state.queue.trims.is_empty() { self.take_blocks(level, state) } else { Ok(()) }
    }

    fn take_trims(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        // Each makes pages of the map wait to be written: not too many.
        if state.queue.trims.is_empty() || state.tree.crowded() {
            return Ok(());
        }
        let Some(slot) = self.free() else { return Ok(()) };
        let some = state.queue.trims.len().min(trims::MOST_RANGES);
        for &(first, count) in &state.queue.trims[..some] {
            state.tree.clear(first, count, &self.source(level))?;
            // Records are repeated before the data of their stripe: what they cover must not be in it.
            for slot in 0..self.plain.entries.len() {
                if let (held, Entry::Data(addr) | Entry::Lost(addr)) = self.plain.entries[slot]
                    && held == level
                    && (first..first + count).contains(&addr)
                {
                    self.plain.put(0, slot, Entry::Empty).fill(0);
                    self.occupied -= 1;
                }
            }
        }
        let block = self.plain.put(level, usize::from(slot), Entry::Trim { origin: self.seq });
        for (at, (first, count)) in state.queue.trims.drain(..some).enumerate() {
            trims::put(block, at, first, count);
        }
        state.queue.trims_taken += some as u64;
        self.occupied += 1;
        Ok(())
    }

    fn take_blocks(&mut self, level: u8, state: &mut HiddenLevel) -> Result<()> {
        let HiddenLevel { tree, queue } = state;
        let most = self.core.log.params.hidden_first_writes();
        while let Some(&addr) = queue.order.front() {
            if !queue.blocks.contains_key(&addr) {
                queue.order.pop_front();
                queue.taken += 1;
                continue;
            }
            // A stripe holds a block once: over its old version, if that was carried on into this stripe.
            let held =
                self.slot_of(level, Entry::Data(addr)).or_else(|| self.slot_of(level, Entry::Lost(addr)));
            let Some(slot) = held.or_else(|| self.free()) else { return Ok(()) };
            let first_write = tree.get(addr, &self.source(level))? == 0;
            if first_write && self.occupied >= most {
                return Ok(());
            }
            let place = Place { seq: self.seq, slot };
            tree.set(addr, place.pack(), &self.source(level))?;
            let waiting = queue.remove(addr).expect("it was just seen");
            self.plain.put(level, usize::from(slot), Entry::Data(addr)).copy_from_slice(&waiting.block);
            self.occupied += usize::from(held.is_none());
            queue.order.pop_front();
            queue.taken += 1;
        }
        Ok(())
    }
}

impl Core {
    /// Fills the hidden slots of a stripe and the hidden part of its summary (roots, entries, echo), encrypted.
    /// What the medium will not give is lost, and stops nothing.
    pub(crate) fn fill_hidden(
        &self,
        flying: &Flying,
        salt: &[u8; SALT_LEN],
        slots: &mut [u8],
        part: &mut [u8],
    ) -> Result<()> {
        self.filler.fill(part);
        if self.log.keys.len() == 1 {
            self.filler.fill(slots);
            return Ok(());
        }
        let mut hidden = self.hidden();
        let empty = self.log.empty_slots(true);
        let mut filling = Filling { core: self, seq: flying.seq, plain: empty, occupied: 0 };
        filling.fill(&mut hidden.levels)?;
        let plain = filling.plain;
        self.encrypt_hidden(&mut hidden, flying.seq, salt, &plain, slots, part)?;
        let _set_once = flying.hidden.set(plain);
        hidden.filled = flying.seq;
        drop(hidden);
        self.hidden_moved.notify_all();
        Ok(())
    }

    fn encrypt_hidden(
        &self,
        hidden: &mut Hidden,
        seq: u64,
        salt: &[u8; SALT_LEN],
        plain: &Plain,
        slots: &mut [u8],
        part: &mut [u8],
    ) -> Result<()> {
        let keys =
            self.log.keys.iter().map(|key| StripeKey::derive(key, salt)).collect::<Result<Vec<_>>>()?;
        for (level, state) in hidden.levels.iter().enumerate() {
            let level = level + 1;
            let at = (level - 1) * ROOT_LEN;
            state.tree.state().seal(&keys[level], level, &mut part[at..at + ROOT_LEN]);
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
        for (slot, (level, entry)) in hidden.echo.iter().enumerate().filter(|(_, (_, e))| *e != Entry::Empty)
        {
            let covered = summary::cover(&keys[usize::from(*level)], Domain::Echo, slot, *entry);
            echo[slot * HIDDEN_ECHO..(slot + 1) * HIDDEN_ECHO].copy_from_slice(&covered);
        }
        hidden.echo.clone_from(&plain.entries);
        Ok(())
    }

    /// Queues blocks of a hidden level. Waits while too much is queued.
    pub(crate) fn write_hidden(&self, level: u8, first: u64, data: &[u8]) -> Result<()> {
        for (addr, block) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            self.check_alive()?;
            self.queue_block(level, addr, block)?;
        }
        Ok(())
    }

    fn queue_block(&self, level: u8, addr: u64, block: &[u8]) -> Result<()> {
        let mut hidden = self.wait_hidden("cannot take a hidden block in", |core, hidden| {
            hidden.waiting() < core.most_waiting
        })?;
        // A single hidden level fits whole, as it was planned to.
        let used = if hidden.levels.len() > 1 { hidden.used() } else { 0 };
        let deepest = usize::from(level) == hidden.levels.len() && level > 1;
        let state = &mut hidden.levels[usize::from(level) - 1];
        if let Some(waiting) = state.queue.blocks.get_mut(&addr) {
            waiting.block.copy_from_slice(block);
            return Ok(());
        }
        let empty = Plain::new(0);
        let source = Source { log: &self.log, level, seq: 0, plain: &empty };
        let first_write = state.tree.get(addr, &source)? == 0;
        let usable = self.log.params.hidden_usable() - RESERVE;
        // Levels above must not learn of the deepest from a lack of room: it leaves them some.
        let most = if deepest { usable - usable / 16 } else { usable };
        if first_write && used >= most {
            return Err(Error::new(Kind::NoSpace, "the hidden levels are full")
                .found(format!("{used} blocks in use"))
                .expected(format!("fewer than {most}"))
                .remedy("delete something on a hidden level and trim it"));
        }
        state.queue.put(addr, Waiting { block: block.into(), first_write });
        Ok(())
    }

    /// Queues a discard of a hidden level.
    pub(crate) fn discard_hidden(&self, level: u8, first: u64, count: u64) -> Result<()> {
        self.check_alive()?;
        let mut hidden = self.wait_hidden("cannot take a hidden discard in", |_, hidden| {
            hidden.levels[usize::from(level) - 1].queue.trims.len() < MOST_TRIMS
        })?;
        let state = &mut hidden.levels[usize::from(level) - 1];
        state.queue.discard(first, count);
        let empty = Plain::new(0);
        let source = Source { log: &self.log, level, seq: 0, plain: &empty };
        if state.tree.any(first, count, &source)? {
            state.queue.trim(first, count);
        }
        Ok(())
    }

    /// Waits until everything that a hidden level acknowledged is durable. Causes no write and no sync.
    pub(crate) fn flush_hidden(&self, level: u8) -> Result<()> {
        self.check_alive()?;
        let at = usize::from(level) - 1;
        let (ticket, trims) = {
            let hidden = self.hidden();
            let queue = &hidden.levels[at].queue;
            (queue.given, queue.trims_given)
        };
        let hidden = self.wait_hidden("cannot flush the hidden level", |_, hidden| {
            let queue = &hidden.levels[at].queue;
            (queue.taken >= ticket || queue.blocks.is_empty()) && queue.trims_taken >= trims
        })?;
        let filled = hidden.filled;
        drop(hidden);
        self.wait_durable(filled)
    }

    /// Waits until `done`. Without paced cover only as long as the cover timeout allows.
    fn wait_hidden(
        &self,
        what: &str,
        done: impl Fn(&Core, &Hidden) -> bool,
    ) -> Result<std::sync::MutexGuard<'_, Hidden>> {
        let deadline = self.cover_deadline();
        let mut hidden = self.hidden();
        loop {
            if done(self, &hidden) {
                return Ok(hidden);
            }
            self.check_alive()?;
            let left =
                deadline.map_or(Duration::from_secs(1), |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(no_cover(what, hidden.waiting()));
            }
            let waited = self.hidden_moved.wait_timeout(hidden, left);
            hidden = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Where blocks of a hidden level lie that are in stripes; the others are read at once, and their place given as 0.
    pub(crate) fn look_hidden(&self, level: u8, first: u64, buf: &mut [u8]) -> Result<Vec<u64>> {
        let mut hidden = self.hidden();
        let HiddenLevel { tree, queue } = &mut hidden.levels[usize::from(level) - 1];
        let empty = Plain::new(0);
        let source = Source { log: &self.log, level, seq: 0, plain: &empty };
        let mut places = Vec::with_capacity(buf.len() / BLOCK_SIZE);
        for (addr, out) in (first..).zip(buf.chunks_exact_mut(BLOCK_SIZE)) {
            let packed = match queue.blocks.get(&addr) {
                Some(waiting) => {
                    out.copy_from_slice(&waiting.block);
                    places.push(0);
                    continue;
                }
                None if is_trimmed(&queue.trims, addr) => 0,
                None => tree.get(addr, &source)?,
            };
            if packed == 0 {
                out.fill(0);
            }
            places.push(packed);
        }
        Ok(places)
    }

    /// Whether block `addr` of a hidden level is written.
    pub(crate) fn hidden_written(&self, level: u8, addr: u64) -> Result<bool> {
        let mut hidden = self.hidden();
        let HiddenLevel { tree, queue } = &mut hidden.levels[usize::from(level) - 1];
        if queue.blocks.contains_key(&addr) {
            return Ok(true);
        }
        let empty = Plain::new(0);
        let source = Source { log: &self.log, level, seq: 0, plain: &empty };
        Ok(!is_trimmed(&queue.trims, addr) && tree.get(addr, &source)? != 0)
    }

    /// Reads blocks of a level.
    pub(crate) fn read(&self, level: u8, first: u64, buf: &mut [u8]) -> Result<()> {
        let look = |buf: &mut [u8]| match level {
            0 => self.look_public(first, buf),
            level => self.look_hidden(level, first, buf),
        };
        let mut places = look(buf)?;
        loop {
            let read = self.fetch_all(level, first, &places, buf);
            if !read.as_ref().is_err_and(|e| e.kind() == Kind::Corrupt) {
                return read;
            }
            // Unless a block was written anew since, and its old place given up.
            let now = look(buf)?;
            if now == places {
                return read;
            }
            places = now;
        }
    }

    /// Reads what a map says, from `first` on: blocks whose place is 0 have been dealt with.
    fn fetch_all(&self, level: u8, first: u64, places: &[u64], buf: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < places.len() {
            let packed = places[at];
            if packed == LOST {
                return Err(crate::keys::corrupt(format!("cannot read block {}", first + at as u64)));
            }
            let Some(place) = Place::unpack(packed) else {
                at += 1;
                continue;
            };
            // Blocks written one after another lie one after another.
            let follows = |n: usize| places.get(at + n) == Some(&(packed + n as u64));
            let run = (1..).take_while(|&n| follows(n)).count() + 1;
            let entries: Vec<Entry> = (0..run as u64).map(|n| Entry::Data(first + at as u64 + n)).collect();
            let out = &mut buf[at * BLOCK_SIZE..(at + run) * BLOCK_SIZE];
            self.log.fetch(level, place, &entries, out)?;
            at += run;
        }
        Ok(())
    }
}

impl Filling<'_> {
    fn fill(&mut self, levels: &mut [HiddenLevel]) -> Result<()> {
        if let Some(from) = self.core.log.params.carried_by(self.seq) {
            self.carry(levels, from)?;
        }
        for (level, state) in (1u8..).zip(levels) {
            self.take(level, state)?;
        }
        Ok(())
    }
}

fn is_trimmed(trims: &[(u64, u64)], addr: u64) -> bool {
    trims.iter().any(|&(first, count)| (first..first + count).contains(&addr))
}

/// The error of something hidden that nothing public came to cover.
pub(crate) fn no_cover(what: &str, waiting: u64) -> Error {
    Error::new(Kind::NoCover, what)
        .found(format!("{waiting} bytes waiting, and no public write to cover them"))
        .expected("public writes, or a disk that refreshes itself")
        .remedy("write to level 0 and flush again; nothing is lost while the disk is open")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_trimmed_to_its_end() {
        assert!(is_trimmed(&[(5, 2)], 6));
        assert!(!is_trimmed(&[(5, 2)], 7));
        assert!(!is_trimmed(&[], 0));
    }
}
