//! Reads blocks: from the buffer, or through the index, the header of the group, the key and the
//! node.
//!
//! Reads are optimistic: by the time a place is used, the node may have been copied, its block
//! erased, its key purged. So a node that does not verify counts as damaged only if the index still
//! names the same place.

use crate::ids::{KeyPosition, NodePlace};
use crate::index::{Index, IndexRun};
use crate::key_storage::KeyStorage;
use crate::log::group::NodeEntry;
use crate::log::{Log, damaged};
use crate::write_buffer::WriteBuffer;
use lacuna_contracts::{BLOCK_SIZE, Result};
use std::sync::Arc;

/// How often a block may move while it is read.
const MAX_MOVES: u32 = 16;

/// See the module documentation.
pub(crate) struct BlockReader {
    buffer: Arc<WriteBuffer>,
    index: Arc<Index>,
    log: Arc<Log>,
    keys: Arc<KeyStorage>,
}

impl BlockReader {
    pub(crate) fn new(
        buffer: Arc<WriteBuffer>,
        index: Arc<Index>,
        log: Arc<Log>,
        keys: Arc<KeyStorage>,
    ) -> BlockReader {
        BlockReader { buffer, index, log, keys }
    }

    /// Reads blocks, starting at `first`.
    pub(crate) fn read(&self, first: u32, out: &mut [u8]) -> Result<()> {
        let blocks = out.as_chunks_mut::<BLOCK_SIZE>().0;
        let mut at = 0;
        while at < blocks.len() {
            at += self.read_run(first + at as u32, &mut blocks[at..])?;
        }
        Ok(())
    }

    /// Reads the first blocks that lie together, and returns their number.
    fn read_run(&self, first: u32, out: &mut [[u8; BLOCK_SIZE]]) -> Result<usize> {
        let end = first + out.len() as u32;
        // Look at the buffer before the index: a block that leaves the buffer meanwhile is in the
        // index by then.
        let until = match self.buffer.first_in(first..end) {
            Some(pending) if pending == first => {
                return self.place_or_copy(first, &mut out[0]).and_then(|place| match place {
                    Some(_) => self.read_again(first, &mut out[0]).map(|()| 1),
                    None => Ok(1),
                });
            }
            Some(pending) => pending,
            None => end,
        };
        let (place, keys) = match self.index.run(first, (until - first) as usize)? {
            IndexRun::Nodes(place, keys) => (place, keys),
            IndexRun::Holes(count) => {
                out[..count].as_flattened_mut().fill(0);
                return Ok(count);
            }
        };
        let count = keys.len();
        let out = &mut out[..count];
        self.log.read_nodes(place.group, place.ordinal, out.as_flattened_mut())?;
        let header = self.log.header(place.group)?;
        let entries = header.as_ref().and_then(|header| {
            let entries = header.nodes().get(usize::from(place.ordinal)..)?.get(..count)?;
            // Compare the key too: a stale header names an older version.
            let as_said = |((block, key), entry): ((u32, &KeyPosition), &NodeEntry)| {
                entry.target.block() == Some(block) && entry.key == key.0
            };
            (first..).zip(&keys).zip(entries).all(as_said).then_some(entries)
        });
        let Some(entries) = entries else {
            (first..).zip(out).try_for_each(|(block, out)| self.read_again(block, out))?;
            return Ok(count);
        };
        let mut keys = self.keys.fetch(&keys)?;
        for (at, (entry, block)) in entries.iter().zip(out).enumerate() {
            if !keys.key(at).open(entry, block) {
                self.read_again(first + at as u32, block)?;
            }
        }
        Ok(count)
    }

    /// The place of a block. A pending block or a hole is copied to `out` instead.
    fn place_or_copy(&self, block: u32, out: &mut [u8; BLOCK_SIZE]) -> Result<Option<NodePlace>> {
        if let Some(plain) = self.buffer.get(block) {
            out.copy_from_slice(plain.bytes());
            return Ok(None);
        }
        let place = self.index.get(block)?;
        if place.is_none() {
            out.fill(0);
        }
        Ok(place)
    }

    /// Reads a block that did not verify, from its present place.
    fn read_again(&self, block: u32, out: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        let mut before = None;
        for _ in 0..MAX_MOVES {
            let Some(place) = self.place_or_copy(block, out)? else { return Ok(()) };
            if before == Some(place) {
                return Err(damaged(format!("block {block}")));
            }
            before = Some(place);
            self.log.forget_header(place.group);
            self.log.read_nodes(place.group, place.ordinal, out)?;
            let Some(header) = self.log.header(place.group)? else { continue };
            let entry = header.nodes().get(usize::from(place.ordinal));
            if let Some(entry) =
                entry.filter(|entry| entry.target.block() == Some(block) && entry.key == place.key.0)
                && self.keys.fetch(&[place.key])?.key(0).open(entry, out)
            {
                return Ok(());
            }
        }
        Err(damaged(format!("block {block}")))
    }
}
