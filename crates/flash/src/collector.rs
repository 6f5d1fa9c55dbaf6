//! Garbage collection: the log gets free erase blocks back.

use crate::checkpoint::Checkpoints;
use crate::index::Index;
use crate::leb_table::LebUse;
use crate::log::{Log, full};
use crate::numbers::{Place, Target};
use crate::placer::{Live, Placer};
use lacuna_core::Result;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Free blocks that are kept for what is written without asking: a copy, pages of the index, records.
const LEAST_FREE: u32 = 5;
/// Of so many blocks of the log, one may be written between two checkpoints.
const CHECKPOINT_SHARE: u32 = 16;

/// See the head of this file.
pub(crate) struct Collector {
    log: Arc<Log>,
    index: Arc<Index>,
    placer: Arc<Placer>,
    checkpoints: Arc<Checkpoints>,
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
        Collector { log, index, placer, checkpoints, collected, copied }
    }

    /// Makes room in the log for a group, and for what must not ask. `epoch` and `purging` are for a checkpoint.
    pub(crate) fn make_room(&self, epoch: u64, purging: bool) -> Result<()> {
        if self.index.dirty() > self.index.most_dirty() {
            while self.index.dirty() > 0 {
                self.placer.place_index()?;
            }
        }
        let (recent, lebs) = self.log.with_table(|table| (table.recent(), table.len()));
        if recent > (lebs / CHECKPOINT_SHARE).max(8) {
            self.checkpoints.write(&self.placer, epoch, purging)?;
        }
        let mut checkpointed = false;
        while self.log.with_table(|table| table.free()) < LEAST_FREE {
            match self.log.victim() {
                Some(victim) => self.collect(victim)?,
                // What was written since the last checkpoint cannot be collected before the next.
                None if !checkpointed => {
                    self.checkpoints.write(&self.placer, epoch, purging)?;
                    checkpointed = true;
                }
                None => return Err(full()),
            }
        }
        Ok(())
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
            self.collect(*leb)?;
        }
        Ok(())
    }

    /// Copies what is live in a block, and gives the block back.
    fn collect(&self, victim: u32) -> Result<()> {
        let mut live = vec![];
        let mut found = 0;
        for (group, header) in self.log.groups_of(victim)? {
            for (ordinal, entry) in (0..).zip(header.nodes()) {
                match entry.target {
                    Target::Block(block) => {
                        let place = self.index.get(block)?;
                        let here = place.filter(|place| (place.group, place.ordinal) == (group, ordinal));
                        live.extend(here.map(|place| Live { place, entry: *entry }));
                    }
                    Target::Index(page) => {
                        let place = self.index.place_of(page);
                        if place.is_some_and(|place: Place| (place.group, place.ordinal) == (group, ordinal))
                        {
                            found += 1;
                            self.index.touch(page)?;
                        }
                    }
                }
            }
        }
        found += live.len() as u32;
        let mut rest = &live[..];
        while !rest.is_empty() {
            rest = &rest[self.placer.copy(rest)?..];
        }
        while self.index.dirty() > 0 && found > live.len() as u32 {
            self.placer.place_index()?;
        }
        self.collected.fetch_add(1, Ordering::Relaxed);
        self.copied.fetch_add(live.len() as u64, Ordering::Relaxed);
        if self.log.with_table(|table| table.live(victim)) > 0 {
            // Something that the index names has no header that can be read. Others may still be read: it stays as it is.
            self.log.with_table(|table| table.set_used(victim, LebUse::Damaged));
            return Ok(());
        }
        self.log.release(victim)
    }
}
