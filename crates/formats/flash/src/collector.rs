//! Garbage collection: the log gets free erase blocks back.

use crate::checkpoint::Checkpoints;
use crate::index::Index;
use crate::leb_table::LebUse;
use crate::log::{Log, full};
use crate::numbers::{Place, Target};
use crate::placer::{Live, Placer};
use lacuna_contracts::{Kind, Result};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Free blocks that are kept for what is written without asking: a copy, pages of the index,
/// records.
const LEAST_FREE: u32 = 5;
/// Of so many blocks of the log, one may be written between two checkpoints.
const CHECKPOINT_SHARE: u32 = 16;
/// Checkpoints that a search for room may take: on a full disk each gives little back.
const MOST_CHECKPOINTS: u32 = 16;
/// Bytes of the log that are written between two checkpoints at most, however long the log is: what
/// opening reads after a crash.
const MOST_REPLAYED: u64 = 512 << 20;

/// See the head of this file.
pub(crate) struct Collector {
    log: Arc<Log>,
    index: Arc<Index>,
    placer: Arc<Placer>,
    checkpoints: Arc<Checkpoints>,
    /// The next blocks to collect, the first one last.
    victims: Mutex<Vec<u32>>,
    pub(crate) collected: AtomicU64,
    pub(crate) copied: AtomicU64,
}

impl Collector {
    pub(crate) fn new(
        log: Arc<Log>,
        index: Arc<Index>,
        placer: Arc<Placer>,
        checkpoints: Arc<Checkpoints>,
    ) -> Collector {
        let (collected, copied) = (AtomicU64::new(0), AtomicU64::new(0));
        Collector { log, index, placer, checkpoints, victims: Mutex::default(), collected, copied }
    }

    /// Makes room in the log for a group, and for what must not ask. `epoch` and `purging` are for
    /// a checkpoint.
    pub(crate) fn make_room(&self, epoch: u64, purging: bool) -> Result<()> {
        let (recent, lebs) = self.log.with_table(|table| (table.recent(), table.len()));
        let most = MOST_REPLAYED / u64::from(self.placer.layout.leb_len);
        if recent > (lebs / CHECKPOINT_SHARE).min(most as u32).max(8) {
            self.checkpoints.write(&self.placer, epoch, purging)?;
        }
        // For the pages of the index that become dirty there is always room.
        let most_dirty = self.most_dirty();
        let for_index = most_dirty.div_ceil(self.placer.layout.leb_nodes());
        let wanted = LEAST_FREE + if for_index > 1 { for_index } else { 0 };
        let mut checkpoints = 0;
        loop {
            if self.index.dirty() > most_dirty as usize {
                // It writes them, and what they replace can be collected after it.
                self.checkpoints.write(&self.placer, epoch, purging)?;
            }
            if self.log.with_table(|table| table.free()) >= wanted {
                return Ok(());
            }
            match self.victim() {
                Some(victim) => self.collect(victim)?,
                // What was written since the last checkpoint cannot be collected before the next.
                None if checkpoints < MOST_CHECKPOINTS => {
                    self.checkpoints.write(&self.placer, epoch, purging)?;
                    checkpoints += 1;
                }
                None => return Err(full()),
            }
        }
    }

    /// How many pages of the index may be dirty before they are written.
    fn most_dirty(&self) -> u32 {
        (self.index.most_dirty() as u32).min(self.placer.layout.most_dirty())
    }

    /// The block whose collection pays most, or did when the table was last looked through: that is
    /// done once for some blocks.
    fn victim(&self) -> Option<u32> {
        let mut victims = self.victims.lock();
        let is_closed = |leb: &u32| self.log.with_table(|table| table.used(*leb) == LebUse::Closed);
        while let Some(victim) = victims.pop() {
            if is_closed(&victim) {
                return Some(victim);
            }
        }
        *victims = self.log.victims();
        victims.pop()
    }

    /// Gives blocks back, whatever is in them, also those that are being written.
    pub(crate) fn evict(&self, lebs: &BTreeSet<u32>, epoch: u64, purging: bool) -> Result<()> {
        if lebs.is_empty() {
            return Ok(());
        }
        if self.log.position().is_some_and(|at| lebs.contains(&at.leb)) {
            self.log.leave()?;
        }
        // Replay does without them from here on.
        self.checkpoints.write(&self.placer, epoch, purging)?;
        for leb in lebs {
            self.make_room(epoch, purging)?;
            // To make room may have given it back already, and it may be written again by now.
            match self.log.with_table(|table| table.used(*leb)) {
                LebUse::Closed | LebUse::Damaged => self.collect(*leb)?,
                LebUse::Free => self.log.release(*leb)?,
                LebUse::Recent => self.log.clear_if_next(*leb)?,
            }
        }
        Ok(())
    }

    /// Copies what is live in a block, and gives the block back.
    fn collect(&self, victim: u32) -> Result<()> {
        self.collect_now(victim).map_err(|e| e.context("garbage collection"))
    }

    fn collect_now(&self, victim: u32) -> Result<()> {
        let (mut live, mut pages) = (vec![], vec![]);
        for (group, header) in self.log.groups_of(victim)? {
            for (ordinal, entry) in (0..).zip(header.nodes()) {
                match entry.target {
                    Target::Block(block) => {
                        let Some(place) = readable(self.index.get(block))? else { continue };
                        // The key as well: an older header of this place may be told of again.
                        let is_here = |place: &Place| {
                            (place.group, place.ordinal, place.key.0) == (group, ordinal, entry.key)
                        };
                        let here = place.filter(is_here);
                        live.extend(here.map(|place| Live { place, entry: *entry }));
                    }
                    Target::Index(page) => {
                        let place = self.index.place_of(page);
                        let is_here = |place: Place| (place.group, place.ordinal) == (group, ordinal);
                        if place.is_some_and(is_here) && readable(self.index.touch(page))?.is_some() {
                            pages.push(page);
                        }
                    }
                }
            }
        }
        let mut rest = &live[..];
        while !rest.is_empty() {
            rest = &rest[self.placer.copy(rest)?..];
        }
        let mut rest = &pages[..];
        while !rest.is_empty() {
            rest = &rest[self.placer.place_index(rest)?..];
        }
        self.collected.fetch_add(1, Ordering::Relaxed);
        self.copied.fetch_add(live.len() as u64, Ordering::Relaxed);
        if self.log.with_table(|table| table.live(victim)) > 0 {
            // Something is live whose header, or whose page of the index, cannot be read. Others
            // may still be read: it stays as it is.
            self.log.with_table(|table| table.set_used(victim, LebUse::Damaged));
            return Ok(());
        }
        self.log.release(victim)
    }
}

/// What the index says; nothing if the page that says it does not verify. One such page must not
/// end all writing.
fn readable<T>(said: Result<T>) -> Result<Option<T>> {
    match said {
        Ok(said) => Ok(Some(said)),
        Err(e) if e.kind() == Kind::Corrupt => Ok(None),
        Err(e) => Err(e),
    }
}
