//! Turns blocks into changes of an object: encrypts them into buffers, with the metadata of each in
//! an entry.

use crate::segment::{Segment, blocks_in};
use crate::writing::buffers::CiphertextBuffers;
use crate::writing::object_change::{BlockRun, Fill, ObjectChange, append_block};
use crate::writing::pending_segment::{BlockContent, CachedBlock};
use lacuna_contracts::BLOCK_SIZE;
use lacuna_crypto::{BlockCipher, RandomSource};
use std::sync::Arc;

/// Encrypts blocks for objects with slots of `slot` bytes.
pub(crate) struct Encryptor {
    cipher: Arc<BlockCipher>,
    random: Arc<dyn RandomSource>,
    buffers: Arc<CiphertextBuffers>,
    slot: usize,
}

impl Encryptor {
    /// `slot`: bytes between the starts of consecutive blocks in an object.
    pub(crate) fn new(
        cipher: Arc<BlockCipher>,
        random: Arc<dyn RandomSource>,
        buffers: Arc<CiphertextBuffers>,
        slot: usize,
    ) -> Encryptor {
        Encryptor { cipher, random, buffers, slot }
    }

    /// Bytes of metadata of a block.
    pub(crate) fn meta_size(&self) -> usize {
        self.cipher.meta_size()
    }

    /// Encrypts blocks from the cache.
    pub(crate) fn encrypt_cached(
        &self,
        segment: Segment,
        blocks: &[(u64, CachedBlock)],
        absent: bool,
    ) -> ObjectChange {
        let (slot, meta) = (self.slot, self.meta_size());
        let written =
            blocks.iter().filter(|(_, block)| matches!(block.content, BlockContent::Data(_))).count();
        let mut ciphertext = self.buffers.take(written * slot);
        let mut entries = vec![0; blocks.len() * meta];
        let mut runs: Vec<BlockRun> = vec![];
        let mut slots = ciphertext.chunks_exact_mut(slot);
        for (nth, (index, block)) in blocks.iter().enumerate() {
            let entry = &mut entries[nth * meta..(nth + 1) * meta];
            let fill = match &block.content {
                BlockContent::Data(data) => {
                    let out = slots.next().expect("a slot for each block with data");
                    self.encrypt_block(segment.block(*index).0, data.bytes(), out, entry);
                    Fill::Data
                }
                BlockContent::Hole(_) => Fill::Hole,
            };
            append_block(&mut runs, *index, fill);
        }
        ObjectChange { segment, runs, entries, ciphertext, absent }
    }

    /// Encrypts consecutive blocks from the caller's buffer.
    pub(crate) fn encrypt_run(
        &self,
        segment: Segment,
        index: u64,
        data: &[u8],
        absent: bool,
    ) -> ObjectChange {
        let (slot, meta) = (self.slot, self.meta_size());
        let count = blocks_in(data);
        let mut ciphertext = self.buffers.take(count as usize * slot);
        let mut entries = vec![0; count as usize * meta];
        let first = segment.block(index).0;
        if slot == BLOCK_SIZE {
            self.cipher.seal(first, data, &mut ciphertext, &mut entries, &*self.random);
        } else {
            let blocks = data.chunks_exact(BLOCK_SIZE).zip(ciphertext.chunks_exact_mut(slot));
            for (block, ((plain, out), entry)) in (first..).zip(blocks.zip(entries.chunks_exact_mut(meta))) {
                self.encrypt_block(block, plain, out, entry);
            }
        }
        ObjectChange {
            segment,
            runs: vec![BlockRun { index, count, fill: Fill::Data }],
            entries,
            ciphertext,
            absent,
        }
    }

    /// Encrypts a block into its slot, followed by its entry if the slot has space for it.
    fn encrypt_block(&self, block: u64, plain: &[u8], slot: &mut [u8], entry: &mut [u8]) {
        let (out, behind) = slot.split_at_mut(BLOCK_SIZE);
        self.cipher.seal(block, plain, out, entry, &*self.random);
        if !behind.is_empty() {
            behind.copy_from_slice(entry);
        }
    }

    /// Reuses the buffer of a finished change.
    pub(crate) fn reclaim(&self, change: ObjectChange) {
        self.buffers.put_back(change.ciphertext);
    }
}
