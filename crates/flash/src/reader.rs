//! Reading blocks: the buffer, then the index, the header of the group, the key, the node.
//!
//! What the index says may be old by the time it is used: the node may have been copied, its block erased, its key purged. So a node
//! that does not verify counts as damaged only if the index still says the same.

use crate::buffer::Buffer;
use crate::index::Index;
use crate::keys::Keys;
use crate::log::{Log, damaged};
use crate::numbers::Place;
use lacuna_core::{BLOCK_SIZE, Result};
use std::sync::Arc;

/// Times that a block may have moved while it was read.
const TRIES: u32 = 16;

/// See the head of this file.
pub(crate) struct Reader {
    buffer: Arc<Buffer>,
    index: Arc<Index>,
    log: Arc<Log>,
    keys: Arc<Keys>,
}

impl Reader {
    pub(crate) fn new(buffer: Arc<Buffer>, index: Arc<Index>, log: Arc<Log>, keys: Arc<Keys>) -> Reader {
        Reader { buffer, index, log, keys }
    }

    /// Reads blocks from `first` on.
    pub(crate) fn read(&self, first: u32, out: &mut [u8]) -> Result<()> {
        let blocks = out.as_chunks_mut::<BLOCK_SIZE>().0;
        let mut at = 0;
        while at < blocks.len() {
            at += self.read_run(first + at as u32, &mut blocks[at..])?;
        }
        Ok(())
    }

    /// Reads some blocks, those that lie together, and says how many.
    fn read_run(&self, first: u32, out: &mut [[u8; BLOCK_SIZE]]) -> Result<usize> {
        let Some(place) = self.place_or_copy(first, &mut out[0])? else { return Ok(1) };
        let follows = |at: u32| -> Result<bool> {
            let next = Place { ordinal: place.ordinal.wrapping_add(at as u8), ..place };
            let there =
                if self.buffer.get(first + at).is_some() { None } else { self.index.get(first + at)? };
            Ok(at < 64
                && there.is_some_and(|there| (there.group, there.ordinal) == (next.group, next.ordinal)))
        };
        let mut count = 1;
        while count < out.len() && follows(count as u32)? {
            count += 1;
        }
        self.log.read_nodes(place.group, place.ordinal, out[..count].as_flattened_mut())?;
        if let Some(header) = self.log.header(place.group)? {
            for (at, block) in out[..count].iter_mut().enumerate() {
                let entry = header.nodes().get(usize::from(place.ordinal) + at);
                let entry = entry.filter(|entry| entry.target.block() == Some(first + at as u32));
                let key = entry.and_then(super::group::NodeEntry::key_position);
                let opened = match (entry, key) {
                    (Some(entry), Some(key)) => Log::open_block(&self.keys.cipher(key)?, entry, block),
                    _ => false,
                };
                if !opened {
                    self.read_again(first + at as u32, block)?;
                }
            }
            return Ok(count);
        }
        for (at, block) in (first..).zip(&mut out[..count]) {
            self.read_again(at, block)?;
        }
        Ok(count)
    }

    /// Where a block lies, unless it is pending or a hole: then it is copied.
    fn place_or_copy(&self, block: u32, out: &mut [u8; BLOCK_SIZE]) -> Result<Option<Place>> {
        if let Some(plain) = self.buffer.get(block) {
            *out = **plain;
            return Ok(None);
        }
        let place = self.index.get(block)?;
        if place.is_none() {
            out.fill(0);
        }
        Ok(place)
    }

    /// Reads a block that did not verify, from wherever it is by now.
    fn read_again(&self, block: u32, out: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        let mut before = None;
        for _ in 0..TRIES {
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
                && Log::open_block(&self.keys.cipher(place.key)?, entry, out)
            {
                return Ok(());
            }
        }
        Err(damaged(format!("block {block}")))
    }
}
