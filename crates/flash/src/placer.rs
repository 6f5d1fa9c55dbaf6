//! Puts nodes and records into the log, and keeps index, keys and counts in step with it.
//!
//! Invariants, of the one thread that writes:
//! 1. The index names a node only when it is in the log; the key of what it replaces is deleted only then.
//! 2. A key is assigned from a fresh block, and a block is fresh only when the log says that it was renewed.
//! 3. The log has room: the callers see to it.

use crate::buffer::Plain;
use crate::group::{Content, Discarded, NodeEntry, most_records};
use crate::index::Index;
use crate::keys::Keys;
use crate::log::Log;
use crate::numbers::{KeyBlock, KeyPosition, Place, Unit};
use crate::params::Layout;
use crate::state_map::KeyState;
use lacuna_core::{BLOCK_SIZE, Result};
use std::sync::Arc;

/// A live node that lies in a block that is being collected.
pub(crate) struct Live {
    /// Where it lies.
    pub(crate) place: Place,
    /// What its header says.
    pub(crate) entry: NodeEntry,
}

/// See the head of this file.
pub(crate) struct Placer {
    pub(crate) layout: Layout,
    log: Arc<Log>,
    index: Arc<Index>,
    keys: Arc<Keys>,
}

impl Placer {
    pub(crate) fn new(layout: Layout, log: Arc<Log>, index: Arc<Index>, keys: Arc<Keys>) -> Placer {
        Placer { layout, log, index, keys }
    }

    /// Writes the first of these blocks, as many as one group takes, and gives how many. They are durable then.
    pub(crate) fn place(&self, blocks: &[(u32, Plain)]) -> Result<usize> {
        // Before the group is begun: to renew a block of keys writes to the log.
        let most = crate::group::most_nodes(self.layout.unit) as usize;
        let room = self.log.room()?.min(most);
        let mut keys = Vec::with_capacity(room);
        while keys.len() < room.min(blocks.len()) {
            match self.keys.assign() {
                Some(key) => keys.push(key),
                None => self.renew_emptiest()?,
            }
        }
        let room = self.log.room()?;
        for unneeded in keys.drain(room.min(keys.len())..) {
            // Never used, and not fresh any more.
            self.keys.set(unneeded, KeyState::Deleted)?;
        }
        let blocks = &blocks[..keys.len()];
        let sequence = self.first_sequence();
        let mut nodes = vec![0; blocks.len() * BLOCK_SIZE];
        let mut entries = Vec::with_capacity(blocks.len());
        for (at, ((block, plain), key)) in blocks.iter().zip(&keys).enumerate() {
            let cipher = self.keys.cipher(*key)?;
            let out = &mut nodes[at * BLOCK_SIZE..][..BLOCK_SIZE];
            let entry = Log::seal_block(&cipher, *block, *key, sequence + at as u64, &plain[..], out);
            entries.push(NodeEntry { replaced: self.index.get(*block)?, ..entry });
        }
        let group = self.log.append(Content::Nodes(entries), &nodes)?;
        for (ordinal, ((block, _), key)) in (0..).zip(blocks.iter().zip(&keys)) {
            let old = self.index.set(*block, Some(Place { group, ordinal, key: *key }))?;
            self.delete(old)?;
        }
        Ok(blocks.len())
    }

    /// Copies live nodes as they are to the end of the log, as many as one group takes, and gives how many.
    pub(crate) fn copy(&self, live: &[Live]) -> Result<usize> {
        let live = &live[..live.len().min(self.log.room()?)];
        let mut nodes = vec![0; live.len() * BLOCK_SIZE];
        let mut entries = Vec::with_capacity(live.len());
        for (node, out) in live.iter().zip(nodes.chunks_exact_mut(BLOCK_SIZE)) {
            self.log.read_nodes(node.place.group, node.place.ordinal, out)?;
            entries.push(NodeEntry { replaced: Some(node.place), ..node.entry });
        }
        let group = self.log.append(Content::Nodes(entries), &nodes)?;
        for (ordinal, node) in (0..).zip(live) {
            if let Some(block) = node.entry.target.block() {
                self.index.set(block, Some(Place { group, ordinal, key: node.place.key }))?;
                self.log.died(node.place);
            }
        }
        Ok(live.len())
    }

    /// Writes dirty pages of the index, as many as one group takes, and gives how many.
    pub(crate) fn place_index(&self) -> Result<usize> {
        let pages = self.index.some_dirty(self.log.room()?);
        let sequence = self.first_sequence();
        let mut nodes = vec![0; pages.len() * BLOCK_SIZE];
        let mut entries = Vec::with_capacity(pages.len());
        for (at, (page, plain)) in pages.iter().enumerate() {
            let out = &mut nodes[at * BLOCK_SIZE..][..BLOCK_SIZE];
            let entry = self.log.seal_index(*page, sequence + at as u64, plain, out);
            entries.push(NodeEntry { replaced: self.index.place_of(*page), ..entry });
        }
        let keys: Vec<u32> = entries.iter().map(|entry| entry.key).collect();
        let group = self.log.append(Content::Nodes(entries), &nodes)?;
        for (ordinal, ((page, _), _)) in (0..).zip(pages.iter().zip(keys)) {
            let place = Place { group, ordinal, key: KeyPosition(0) };
            if let Some(old) = self.index.written(*page, place) {
                self.log.died(old);
            }
        }
        Ok(pages.len())
    }

    /// Makes blocks holes, durably.
    pub(crate) fn discard(&self, discarded: &[Discarded]) -> Result<()> {
        for part in discarded.chunks(most_records(self.layout.unit)) {
            self.record(Content::Discard(part.to_vec()))?;
            for entry in part {
                let old = self.index.set(entry.block, None)?;
                self.delete(old)?;
            }
        }
        Ok(())
    }

    /// Replaces the unused keys of the block of keys that has most of them.
    fn renew_emptiest(&self) -> Result<()> {
        self.renew(&[self.keys.emptiest()?])
    }

    /// Replaces all keys of blocks that are not used, and says so in the log.
    pub(crate) fn renew(&self, blocks: &[KeyBlock]) -> Result<()> {
        for part in blocks.chunks(most_records(self.layout.unit)) {
            part.iter().try_for_each(|block| self.keys.renew(*block))?;
            self.record(Content::Renewed(part.iter().map(|block| block.0).collect()))?;
            self.keys.renewed(part);
        }
        Ok(())
    }

    /// Appends a record.
    pub(crate) fn record(&self, content: Content) -> Result<Unit> {
        self.log.append(content, &[])
    }

    fn delete(&self, old: Option<Place>) -> Result<()> {
        let Some(old) = old else { return Ok(()) };
        self.log.died(old);
        self.keys.set(old.key, KeyState::Deleted)
    }

    /// The sequence number of the first node of the next group.
    fn first_sequence(&self) -> u64 {
        self.log.position().map_or(0, |at| at.sequence) << 6
    }
}
