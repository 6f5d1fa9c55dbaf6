//! Recovery at an opening: the last checkpoint, then a replay of the log since (DNEFS, section 4.2,
//! Table 1).
//!
//! Replay needs only the headers of groups. Each group except the last is whole, since the next one
//! was written after it; the last one counts if all of its nodes are on the flash.

use crate::checkpoint::CheckpointHeader;
use crate::ids::{KeyBlock, NodePlace, NodeTarget, Unit};
use crate::index::Index;
use crate::key_storage::KeyStorage;
use crate::key_storage::key_state_map::KeyState;
use crate::log::group::{GroupContent, GroupHeader};
use crate::log::leb_table::LebUse;
use crate::log::{Log, damaged};
use crate::params::{INDEX_FANOUT, Layout};
use lacuna_contracts::Result;
use std::collections::{BTreeMap, BTreeSet};

/// The result of a replay.
pub(crate) struct ReplayResult {
    /// The sequence number behind the last group.
    pub(crate) sequence: u64,
    pub(crate) epoch: u64,
    /// Whether a purge has begun and is not complete.
    pub(crate) purging: bool,
    /// Groups that were replayed.
    pub(crate) groups: u64,
    /// The places, as block and unit, where the next group would be.
    pub(crate) ends: [(u32, u32); 2],
}

/// Replays the log.
pub(crate) struct LogReplay<'p> {
    pub(crate) layout: &'p Layout,
    pub(crate) log: &'p Log,
    pub(crate) index: &'p Index,
    pub(crate) keys: &'p KeyStorage,
}

#[derive(Default)]
struct ReplayedChanges {
    /// Blocks of the log with replayed groups, whether anything in them is live or not: replay
    /// needs them until the next checkpoint is complete.
    chain: BTreeSet<u32>,
    /// Entries of index pages that changed since the page was written.
    changes: BTreeMap<u32, BTreeMap<u32, Option<NodePlace>>>,
    fresh: BTreeSet<u32>,
}

impl LogReplay<'_> {
    /// Brings the parts up to date.
    pub(crate) fn run(&self, marks: CheckpointHeader, fresh: &[KeyBlock]) -> Result<ReplayResult> {
        let mut found = ReplayedChanges {
            fresh: fresh.iter().map(|block| block.0).collect(),
            ..ReplayedChanges::default()
        };
        found.chain.insert(marks.position.leb);
        self.keys.resume(marks.undrained);
        let mut done = ReplayResult {
            sequence: marks.position.sequence,
            epoch: marks.epoch,
            purging: marks.purging,
            groups: 0,
            ends: [(0, 0); 2],
        };
        let mut at = marks.position;
        let mut last: Option<(Unit, GroupHeader)> = None;
        loop {
            let here = self.group_at(at.leb, at.unit, at.sequence)?;
            let (place, header) = match here {
                Some(group) => group,
                None => match self.group_at(at.next, 0, at.sequence)? {
                    Some(group) => {
                        (at.leb, at.unit) = (at.next, 0);
                        group
                    }
                    None => break,
                },
            };
            if let Some((place, header)) = last.take() {
                self.apply(place, &header, &mut found, &mut done)?;
            }
            found.chain.insert(at.leb);
            at.unit += self.log.units_of(&header);
            at.next = header.next_leb;
            at.sequence += 1;
            last = Some((place, header));
        }
        if let Some((place, header)) = last
            && self.log.is_whole(place, &header)?
        {
            self.apply(place, &header, &mut found, &mut done)?;
        }
        if done.purging {
            self.keys.mark_undrained();
        }
        done.sequence = at.sequence;
        done.ends = [(at.leb, at.unit), (at.next, 0)];
        self.apply_changes(found, at.next)?;
        Ok(done)
    }

    fn group_at(&self, leb: u32, unit: u32, sequence: u64) -> Result<Option<(Unit, GroupHeader)>> {
        if leb >= self.layout.log.1 || unit >= self.layout.units {
            return Ok(None);
        }
        let place = self.log.unit(leb, unit);
        let header = self.log.read_header(place)?;
        Ok(header.filter(|header| header.sequence == sequence).map(|header| (place, header)))
    }

    fn apply(
        &self,
        group: Unit,
        header: &GroupHeader,
        found: &mut ReplayedChanges,
        done: &mut ReplayResult,
    ) -> Result<()> {
        done.groups += 1;
        let leb = self.log.leb_of(group);
        self.log.with_table(|table| table.note_written(leb, header.sequence));
        match &header.content {
            GroupContent::Nodes(nodes) => {
                for (ordinal, entry) in (0..).zip(nodes) {
                    self.log.with_table(|table| table.set_live(leb, table.live(leb) + 1));
                    if let Some(replaced) = entry.replaced {
                        self.log.release_node(replaced);
                    }
                    match (entry.target, entry.key_position()) {
                        (NodeTarget::Block(block), Some(key)) => {
                            self.check_block(block)?;
                            let place = NodePlace { group, ordinal, key };
                            found.change(block, Some(place));
                            self.keys.set(key, KeyState::Used)?;
                            if let Some(replaced) = entry.replaced.filter(|replaced| replaced.key != key) {
                                self.keys.set(replaced.key, KeyState::Deleted)?;
                            }
                        }
                        (NodeTarget::Index(page), _) | (NodeTarget::Block(page), None) => {
                            let place = NodePlace { group, ordinal, key: crate::ids::KeyPosition(0) };
                            self.index.set_root(page, Some(place))?;
                            found.changes.remove(&page);
                        }
                    }
                }
            }
            GroupContent::Discard(discarded) => {
                for entry in discarded {
                    self.check_block(entry.block)?;
                    found.change(entry.block, None);
                    self.log.release_node(entry.place);
                    self.keys.set(entry.place.key, KeyState::Deleted)?;
                }
            }
            GroupContent::PurgeStart(_) => {
                done.purging = true;
                found.fresh.clear();
            }
            GroupContent::Renewed(blocks) => {
                let blocks: Vec<KeyBlock> = blocks
                    .iter()
                    .filter(|block| **block < self.layout.keys.1)
                    .map(|block| KeyBlock(*block))
                    .collect();
                self.keys.note_renewals(&blocks);
                found.fresh.extend(blocks.iter().map(|block| block.0));
            }
            GroupContent::PurgeFinish(epoch) => {
                done.purging = false;
                done.epoch = *epoch;
                self.keys.note_drained();
            }
        }
        Ok(())
    }

    fn check_block(&self, block: u32) -> Result<()> {
        if block / (INDEX_FANOUT as u32) < self.layout.index_pages {
            return Ok(());
        }
        Err(damaged(format!("a group that names block {block}, which this disk does not have,")))
    }

    /// Applies the replayed changes to the index, and sets the uses of the log's blocks. `next` is
    /// the block that would have followed in the log: nothing in it counts.
    fn apply_changes(&self, found: ReplayedChanges, next: u32) -> Result<()> {
        for (page, changes) in found.changes {
            for (at, place) in changes {
                self.index.set(page * INDEX_FANOUT as u32 + at, place)?;
            }
        }
        let fresh: Vec<KeyBlock> = found.fresh.into_iter().map(KeyBlock).collect();
        self.keys.invalidate_unused(&fresh);
        self.log.with_table(|table| {
            for leb in 0..table.len() {
                match (table.usage(leb), table.live(leb)) {
                    (LebUse::Damaged, _) => {}
                    (_, 0) if found.chain.contains(&leb) && leb != next => {
                        table.set_usage(leb, LebUse::Recent);
                    }
                    (_, 0) => table.set_usage(leb, LebUse::Free),
                    _ => table.set_usage(leb, LebUse::Closed),
                }
            }
            table.take_next(next);
        });
        Ok(())
    }
}

impl ReplayedChanges {
    fn change(&mut self, block: u32, place: Option<NodePlace>) {
        let page = self.changes.entry(block / INDEX_FANOUT as u32).or_default();
        page.insert(block % INDEX_FANOUT as u32, place);
    }
}
