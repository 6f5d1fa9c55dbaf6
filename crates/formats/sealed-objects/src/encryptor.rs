//! Turns blocks into changes of an object: encrypts them into buffers, with the metadata of each in
//! an entry.

use crate::buffers::Buffers;
use crate::cache::{Content, Slot};
use crate::change::{Change, Fill, Run, extend};
use crate::segment::{Segment, blocks_in};
use lacuna_contracts::BLOCK_SIZE;
use lacuna_crypto::{BlockCipher, RandomSource};
use std::sync::Arc;

/// Encrypts blocks for objects with slots of `slot` bytes.
pub(crate) struct Encryptor {
    cipher: Arc<BlockCipher>,
    random: Arc<dyn RandomSource>,
    buffers: Arc<Buffers>,
    slot: usize,
}

impl Encryptor {
    /// `slot`: bytes between the starts of consecutive blocks in an object.
    pub(crate) fn new(
        cipher: Arc<BlockCipher>,
        random: Arc<dyn RandomSource>,
        buffers: Arc<Buffers>,
        slot: usize,
    ) -> Encryptor {
        Encryptor { cipher, random, buffers, slot }
    }

    /// Bytes of metadata of a block.
    pub(crate) fn meta(&self) -> usize {
        self.cipher.meta_size()
    }

    /// Encrypts blocks from the cache.
    pub(crate) fn gather(&self, segment: Segment, blocks: &[(u64, Slot)], absent: bool) -> Change {
        let (slot, meta) = (self.slot, self.meta());
        let written = blocks.iter().filter(|(_, block)| matches!(block.content, Content::Data(_))).count();
        let mut sealed = self.buffers.take(written * slot);
        let mut entries = vec![0; blocks.len() * meta];
        let mut runs: Vec<Run> = vec![];
        let mut slots = sealed.chunks_exact_mut(slot);
        for (nth, (index, block)) in blocks.iter().enumerate() {
            let entry = &mut entries[nth * meta..(nth + 1) * meta];
            let fill = match &block.content {
                Content::Data(data) => {
                    let out = slots.next().expect("a slot for each block with data");
                    self.seal_block(segment.block(*index).0, &data[..], out, entry);
                    Fill::Data
                }
                Content::Hole => Fill::Hole,
            };
            extend(&mut runs, *index, fill);
        }
        Change { segment, runs, entries, sealed, absent }
    }

    /// Encrypts consecutive blocks from the caller's buffer.
    pub(crate) fn seal_run(&self, segment: Segment, index: u64, data: &[u8], absent: bool) -> Change {
        let (slot, meta) = (self.slot, self.meta());
        let count = blocks_in(data);
        let mut sealed = self.buffers.take(count as usize * slot);
        let mut entries = vec![0; count as usize * meta];
        let first = segment.block(index).0;
        if slot == BLOCK_SIZE {
            self.cipher.seal(first, data, &mut sealed, &mut entries, &*self.random);
        } else {
            let blocks = data.chunks_exact(BLOCK_SIZE).zip(sealed.chunks_exact_mut(slot));
            for (block, ((plain, out), entry)) in (first..).zip(blocks.zip(entries.chunks_exact_mut(meta))) {
                self.seal_block(block, plain, out, entry);
            }
        }
        Change { segment, runs: vec![Run { index, count, fill: Fill::Data }], entries, sealed, absent }
    }

    /// Encrypts a block into its slot, followed by its entry if the slot has space for it.
    fn seal_block(&self, block: u64, plain: &[u8], slot: &mut [u8], entry: &mut [u8]) {
        let (out, behind) = slot.split_at_mut(BLOCK_SIZE);
        self.cipher.seal(block, plain, out, entry, &*self.random);
        if !behind.is_empty() {
            behind.copy_from_slice(entry);
        }
    }

    /// Reuses the buffer of a finished change.
    pub(crate) fn reclaim(&self, change: Change) {
        self.buffers.give(change.sealed);
    }
}
