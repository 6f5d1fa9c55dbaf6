//! Appends nodes and records to the log, and keeps index, keys and counts in step with it.
//!
//! Invariants, kept by the one thread at a time that writes:
//! 1. The index names a node only when it is in the log; only then the key of the replaced node is
//!    deleted.
//! 2. A key is assigned from a fresh block, and a block is fresh only if the log records its
//!    renewal.
//! 3. The log has room: the callers ensure it.
//! 4. A call that the flash refuses, or a read that fails, leaves everything unchanged, and its
//!    error says so ([`lacuna_contracts::Error::changed_nothing`]): the writer goes on. An error
//!    after the log has taken a group says otherwise, since index and keys no longer match the log.
//!    So all reads are done before ([`Index::pin_pages`]).

use crate::ids::{KeyBlock, KeyPosition, NodePlace, Unit};
use crate::index::Index;
use crate::key_storage::KeyStorage;
use crate::key_storage::assignment::Lifetime;
use crate::log::Log;
use crate::log::group::{DiscardedBlock, GroupContent, NodeEntry, max_records};
use crate::params::Layout;
use crate::write_buffer::PlainBlock;
use lacuna_contracts::{BLOCK_SIZE, Error, Result};
use std::sync::Arc;

/// A live node in a block that is being collected.
pub(crate) struct LiveNode {
    /// Its place.
    pub(crate) place: NodePlace,
    /// Its entry in the header.
    pub(crate) entry: NodeEntry,
}

/// See the module documentation.
pub(crate) struct LogWriter {
    pub(crate) layout: Layout,
    log: Arc<Log>,
    index: Arc<Index>,
    keys: Arc<KeyStorage>,
}

impl LogWriter {
    pub(crate) fn new(layout: Layout, log: Arc<Log>, index: Arc<Index>, keys: Arc<KeyStorage>) -> LogWriter {
        LogWriter { layout, log, index, keys }
    }

    /// Writes the first of these blocks, up to one group, and returns their number. `lifetimes` are
    /// the expected lifetimes of the blocks. The blocks written are durable.
    pub(crate) fn write_blocks(&self, blocks: &[(u32, PlainBlock)], lifetimes: &[Lifetime]) -> Result<usize> {
        let mut keys = Vec::new();
        let group = match self.append_nodes(blocks, lifetimes, &mut keys) {
            Ok(group) => group,
            Err(e) => {
                // A part of the nodes may be on the flash: the keys are not assigned again, and the
                // next purge replaces them.
                self.keys.delete(keys.into_iter())?;
                return Err(e);
            }
        };
        let count = keys.len();
        let places = (0..).zip(keys).map(|(ordinal, key)| NodePlace { group, ordinal, key });
        let numbers = blocks[..count].iter().map(|(block, _)| *block);
        let old = self.index.set_all(numbers.zip(places)).map_err(Error::of_sync)?;
        self.delete(&old)?;
        Ok(count)
    }

    /// Appends a group of the first of these blocks, and adds their keys to `keys`.
    fn append_nodes(
        &self,
        blocks: &[(u32, PlainBlock)],
        lifetimes: &[Lifetime],
        keys: &mut Vec<KeyPosition>,
    ) -> Result<Unit> {
        // Renew keys before the group is begun, since renewing writes to the log.
        let most = crate::log::group::max_nodes(self.layout.unit) as usize;
        let room = self.log.room_for_nodes()?.min(most);
        keys.reserve(room);
        for same in lifetimes[..room.min(blocks.len())].chunk_by(|a, b| a == b) {
            let wanted = keys.len() + same.len();
            loop {
                self.keys.assign(same[0], wanted, keys);
                if keys.len() == wanted {
                    break;
                }
                self.renew_blocks(&[self.keys.block_to_renew(same[0])?])?;
            }
        }
        let room = self.log.room_for_nodes()?;
        // The renewals took some of the room. These keys encrypt nothing.
        self.keys.return_keys(keys.drain(room.min(keys.len())..));
        let blocks = &blocks[..keys.len()];
        let replaced = self.index.places(blocks.iter().map(|(block, _)| *block))?;
        self.index.pin_pages(blocks.iter().map(|(block, _)| *block))?;
        let mut fetched = self.keys.fetch(keys)?;
        let (mut bytes, header) = self.log.group_buffer(blocks.len());
        let nodes = bytes[header..].chunks_exact_mut(BLOCK_SIZE);
        let mut entries = Vec::with_capacity(blocks.len());
        let sequences = self.first_sequence()..;
        for (at, (((block, plain), out), sequence)) in blocks.iter().zip(nodes).zip(sequences).enumerate() {
            let entry = fetched.key(at).seal(*block, keys[at], sequence, plain.bytes(), out);
            entries.push(NodeEntry { replaced: replaced[at], ..entry });
        }
        self.log.append(GroupContent::Nodes(entries), bytes)
    }

    /// Copies live nodes unchanged to the end of the log, up to one group, and returns their
    /// number.
    pub(crate) fn copy_nodes(&self, live: &[LiveNode]) -> Result<usize> {
        let live = &live[..live.len().min(self.log.room_for_nodes()?)];
        let (mut bytes, header) = self.log.group_buffer(live.len());
        let mut nodes = &mut bytes[header..];
        let follow = |a: &LiveNode, b: &LiveNode| {
            (a.place.group, a.place.ordinal + 1) == (b.place.group, b.place.ordinal)
        };
        for run in live.chunk_by(follow) {
            let out = nodes.split_off_mut(..run.len() * BLOCK_SIZE).expect("memory for all");
            self.log.read_nodes(run[0].place.group, run[0].place.ordinal, out)?;
        }
        let entries =
            live.iter().map(|node| NodeEntry { replaced: Some(node.place), ..node.entry }).collect();
        self.index.pin_pages(live.iter().filter_map(|node| node.entry.target.block()))?;
        let group = self.log.append(GroupContent::Nodes(entries), bytes)?;
        let to = |(ordinal, node): (u8, &LiveNode)| {
            Some((node.entry.target.block()?, NodePlace { group, ordinal, key: node.place.key }))
        };
        self.index.set_all((0..).zip(live).filter_map(to)).map_err(Error::of_sync)?;
        self.log.release_nodes(live.iter().map(|node| node.place));
        Ok(live.len())
    }

    /// Writes the first of these dirty pages of the index, up to one group, and returns their
    /// number.
    pub(crate) fn write_index_pages(&self, pages: &[u32]) -> Result<usize> {
        let pages = &pages[..pages.len().min(self.log.room_for_nodes()?)];
        let sequence = self.first_sequence();
        let (mut bytes, header) = self.log.group_buffer(pages.len());
        let mut entries = Vec::with_capacity(pages.len());
        for ((at, page), out) in (0..).zip(pages).zip(bytes[header..].chunks_exact_mut(BLOCK_SIZE)) {
            let entry = self.log.seal_index(*page, sequence + at, &self.index.page_bytes(*page), out);
            entries.push(NodeEntry { replaced: self.index.place_of(*page), ..entry });
        }
        let group = self.log.append(GroupContent::Nodes(entries), bytes)?;
        for (ordinal, page) in (0..).zip(pages) {
            let place = NodePlace { group, ordinal, key: KeyPosition(0) };
            if let Some(old) = self.index.note_written(*page, place) {
                self.log.release_node(old);
            }
        }
        Ok(pages.len())
    }

    /// Writes all dirty pages of the index.
    pub(crate) fn write_dirty_index(&self) -> Result<()> {
        loop {
            let pages = self.index.some_dirty(crate::log::group::MAX_ORDINALS as usize);
            if pages.is_empty() {
                return Ok(());
            }
            self.write_index_pages(&pages)?;
        }
    }

    /// Makes blocks holes, durably.
    pub(crate) fn discard(&self, discarded: &[DiscardedBlock]) -> Result<()> {
        for part in discarded.chunks(max_records(self.layout.unit)) {
            self.index.pin_pages(part.iter().map(|entry| entry.block))?;
            self.append_record(GroupContent::Discard(part.to_vec()))?;
            let old = part.iter().map(|entry| self.index.set(entry.block, None));
            self.delete(&old.collect::<Result<Vec<_>>>().map_err(Error::of_sync)?)?;
        }
        Ok(())
    }

    /// Replaces all keys of these blocks that are not used, and records that in the log.
    pub(crate) fn renew_blocks(&self, blocks: &[KeyBlock]) -> Result<()> {
        for part in blocks.chunks(max_records(self.layout.unit)) {
            part.iter().try_for_each(|block| self.keys.replace_unused(*block))?;
            self.append_record(GroupContent::Renewed(part.iter().map(|block| block.0).collect()))?;
            self.keys.note_renewals(part);
        }
        Ok(())
    }

    /// Appends a record.
    pub(crate) fn append_record(&self, content: GroupContent) -> Result<Unit> {
        self.log.append(content, self.log.group_buffer(0).0)
    }

    fn delete(&self, old: &[Option<NodePlace>]) -> Result<()> {
        self.log.release_nodes(old.iter().copied().flatten());
        self.keys.delete(old.iter().flatten().map(|place| place.key))
    }

    /// The sequence number of the first node of the next group.
    fn first_sequence(&self) -> u64 {
        self.log.position().map_or(0, |at| at.sequence) << 6
    }
}
