//! Garbage collection: frees erase blocks of the log.

use crate::checkpoint::Checkpoints;
use crate::ids::{NodePlace, NodeTarget};
use crate::index::Index;
use crate::log::leb_table::LebUse;
use crate::log::log_writer::{LiveNode, LogWriter};
use crate::log::{Log, log_full};
use lacuna_contracts::{Kind, Result};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Free blocks set aside for writes that do not ask for room: copies, pages of the index, records.
const MIN_FREE: u32 = 5;
/// One in this many blocks of the log may be written between two checkpoints.
const CHECKPOINT_SHARE: u32 = 16;
/// The most checkpoints in one search for room: on a full disk each frees little.
const MAX_CHECKPOINTS: u32 = 16;
/// The most bytes of the log that are written between two checkpoints, however long the log is.
/// This bounds the reads of an opening after a crash.
const MAX_REPLAYED_BYTES: u64 = 512 << 20;

/// See the module documentation.
pub(crate) struct GarbageCollector {
    log: Arc<Log>,
    index: Arc<Index>,
    log_writer: Arc<LogWriter>,
    checkpoints: Arc<Checkpoints>,
    /// The next blocks to collect, the first one last.
    victims: Mutex<Vec<u32>>,
    pub(crate) collected: AtomicU64,
    pub(crate) copied: AtomicU64,
}

impl GarbageCollector {
    pub(crate) fn new(
        log: Arc<Log>,
        index: Arc<Index>,
        log_writer: Arc<LogWriter>,
        checkpoints: Arc<Checkpoints>,
    ) -> GarbageCollector {
        let (collected, copied) = (AtomicU64::new(0), AtomicU64::new(0));
        GarbageCollector { log, index, log_writer, checkpoints, victims: Mutex::default(), collected, copied }
    }

    /// Makes room in the log for a group, and for writes that do not ask for room. `epoch` and
    /// `purging` are for a checkpoint.
    pub(crate) fn make_room(&self, epoch: u64, purging: bool) -> Result<()> {
        let (recent, lebs) = self.log.with_table(|table| (table.recent(), table.len()));
        let most = MAX_REPLAYED_BYTES / u64::from(self.log_writer.layout.leb_len);
        if recent > (lebs / CHECKPOINT_SHARE).min(most as u32).max(8) {
            self.checkpoints.write(&self.log_writer, epoch, purging)?;
        }
        // There is always room for the dirty pages of the index.
        let most_dirty = self.most_dirty();
        let for_index = most_dirty.div_ceil(self.log_writer.layout.leb_nodes());
        let wanted = MIN_FREE + if for_index > 1 { for_index } else { 0 };
        let mut checkpoints = 0;
        loop {
            if self.index.dirty_count() > most_dirty as usize {
                // The checkpoint writes them, and the replaced pages can be collected after it.
                self.checkpoints.write(&self.log_writer, epoch, purging)?;
            }
            if self.log.with_table(|table| table.free()) >= wanted {
                return Ok(());
            }
            match self.victim() {
                Some(victim) => self.collect(victim)?,
                // Blocks written since the last checkpoint cannot be collected before the next one.
                None if checkpoints < MAX_CHECKPOINTS => {
                    self.checkpoints.write(&self.log_writer, epoch, purging)?;
                    checkpoints += 1;
                }
                None => return Err(log_full()),
            }
        }
    }

    /// The most pages of the index that may be dirty.
    fn most_dirty(&self) -> u32 {
        (self.index.max_dirty() as u32).min(self.log_writer.layout.max_dirty())
    }

    /// The block that pays most to collect, as of the last search of the table, which selects
    /// several blocks at once.
    fn victim(&self) -> Option<u32> {
        let mut victims = self.victims.lock();
        let is_closed = |leb: &u32| self.log.with_table(|table| table.usage(*leb) == LebUse::Closed);
        while let Some(victim) = victims.pop() {
            if is_closed(&victim) {
                return Some(victim);
            }
        }
        *victims = self.log.victims();
        victims.pop()
    }

    /// Frees blocks whatever their use, including the one being written.
    pub(crate) fn evict(&self, lebs: &BTreeSet<u32>, epoch: u64, purging: bool) -> Result<()> {
        if lebs.is_empty() {
            return Ok(());
        }
        if self.log.position().is_some_and(|at| lebs.contains(&at.leb)) {
            self.log.skip_to_next_block()?;
        }
        // Replay no longer needs them after this.
        self.checkpoints.write(&self.log_writer, epoch, purging)?;
        for leb in lebs {
            self.make_room(epoch, purging)?;
            // Making room may have freed the block already, and it may be in use again.
            match self.log.with_table(|table| table.usage(*leb)) {
                LebUse::Closed | LebUse::Damaged => self.collect(*leb)?,
                LebUse::Free => self.log.release(*leb)?,
                LebUse::Recent => self.log.clear_if_next(*leb)?,
            }
        }
        Ok(())
    }

    /// Copies the live nodes of a block, and frees it.
    fn collect(&self, victim: u32) -> Result<()> {
        self.collect_now(victim).map_err(|e| e.context("garbage collection"))
    }

    fn collect_now(&self, victim: u32) -> Result<()> {
        let (mut live, mut pages) = (vec![], vec![]);
        for (group, header) in self.log.groups_of(victim)? {
            for (ordinal, entry) in (0..).zip(header.nodes()) {
                match entry.target {
                    NodeTarget::Block(block) => {
                        let Some(place) = readable(self.index.get(block))? else { continue };
                        // Compare the key too: an older header of this place may turn up again.
                        let is_here = |place: &NodePlace| {
                            (place.group, place.ordinal, place.key.0) == (group, ordinal, entry.key)
                        };
                        let here = place.filter(is_here);
                        live.extend(here.map(|place| LiveNode { place, entry: *entry }));
                    }
                    NodeTarget::Index(page) => {
                        let place = self.index.place_of(page);
                        let is_here = |place: NodePlace| (place.group, place.ordinal) == (group, ordinal);
                        if place.is_some_and(is_here) && readable(self.index.mark_dirty(page))?.is_some() {
                            pages.push(page);
                        }
                    }
                }
            }
        }
        let mut rest = &live[..];
        while !rest.is_empty() {
            rest = &rest[self.log_writer.copy_nodes(rest)?..];
        }
        let mut rest = &pages[..];
        while !rest.is_empty() {
            rest = &rest[self.log_writer.write_index_pages(rest)?..];
        }
        self.collected.fetch_add(1, Ordering::Relaxed);
        self.copied.fetch_add(live.len() as u64, Ordering::Relaxed);
        if self.log.with_table(|table| table.live(victim)) > 0 {
            // A live node has an unreadable header, or its index page is unreadable. Other nodes of
            // the block may still be readable, so keep it.
            self.log.with_table(|table| table.set_usage(victim, LebUse::Damaged));
            return Ok(());
        }
        self.log.release(victim)
    }
}

/// The result of an index lookup; `None` if the page does not verify. One such page must not end
/// all writing.
fn readable<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(said) => Ok(Some(said)),
        Err(e) if e.kind() == Kind::Corrupt => Ok(None),
        Err(e) => Err(e),
    }
}
