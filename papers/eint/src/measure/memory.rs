//! Untrusted storage in memory that counts accessed bytes of US: the integrity bandwidth of EINT,
//! section 2.

use lacuna_contracts::Result;
use lacuna_integrity::{Part, Untrusted};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The blocks and the US pages of one file.
pub struct CountingMemory {
    block_size: usize,
    blocks: Mutex<Vec<u8>>,
    parts: Mutex<Vec<(Part, PartPages)>>,
    accessed: AtomicU64,
}

/// The pages of one part, by number. The nodes of a tree, which are most of the pages, are dense.
#[derive(Default)]
struct PartPages {
    pages: Vec<Option<Vec<u8>>>,
    bytes: u64,
}

impl CountingMemory {
    /// Room for `blocks` blocks; it grows with writes.
    pub fn new(block_size: usize, blocks: u64) -> CountingMemory {
        // Nonzero bytes touch the memory now, so that no page fault is measured later.
        let room = vec![1; blocks as usize * block_size];
        CountingMemory {
            block_size,
            blocks: Mutex::new(room),
            parts: Mutex::default(),
            accessed: AtomicU64::new(0),
        }
    }

    /// Bytes of US that were read or written since the previous call.
    pub fn take_accessed(&self) -> u64 {
        self.accessed.swap(0, Ordering::Relaxed)
    }

    /// Bytes that US holds.
    pub fn stored(&self) -> u64 {
        self.parts.lock().iter().map(|(_, pages)| pages.bytes).sum()
    }

    fn with<R>(&self, part: Part, what: impl FnOnce(&mut PartPages) -> R) -> R {
        let mut parts = self.parts.lock();
        let known = parts.iter().position(|(held, _)| *held == part);
        let at = known.unwrap_or(parts.len());
        if known.is_none() {
            parts.push((part, PartPages::default()));
        }
        what(&mut parts[at].1)
    }
}

impl Untrusted for CountingMemory {
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let blocks = self.blocks.lock();
        let start = (first as usize * self.block_size).min(blocks.len());
        let held = &blocks[start..(start + out.len()).min(blocks.len())];
        let (there, beyond) = out.split_at_mut(held.len());
        there.copy_from_slice(held);
        beyond.fill(0);
        Ok(())
    }

    fn write_blocks(&self, first: u64, sealed: &[u8]) -> Result<()> {
        let mut blocks = self.blocks.lock();
        let start = first as usize * self.block_size;
        let end = start + sealed.len();
        if blocks.len() < end {
            blocks.resize(end, 0);
        }
        blocks[start..end].copy_from_slice(sealed);
        Ok(())
    }

    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>> {
        let bytes = self.with(part, |pages| pages.pages.get(page as usize).cloned().flatten());
        self.accessed.fetch_add(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64), Ordering::Relaxed);
        Ok(bytes)
    }

    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()> {
        self.accessed.fetch_add(bytes.map_or(0, |bytes| bytes.len() as u64), Ordering::Relaxed);
        self.with(part, |pages| {
            let at = page as usize;
            if pages.pages.len() <= at {
                if bytes.is_none() {
                    return;
                }
                pages.pages.resize(at + 1, None);
            }
            let held = &mut pages.pages[at];
            pages.bytes -= held.as_ref().map_or(0, |old| old.len() as u64);
            pages.bytes += bytes.map_or(0, |new| new.len() as u64);
            match (held, bytes) {
                (Some(old), Some(new)) if old.len() == new.len() => old.copy_from_slice(new),
                (held, bytes) => *held = bytes.map(<[u8]>::to_vec),
            }
        });
        Ok(())
    }
}
