//! `ReferenceComp`: COMP-EINT exactly as Figure 10 of EINT, with SHA-256, AES-256-XTS, LZ4 in place
//! of zlib, and numbers of writes as counters. The hash in the block has no key, so an adversary
//! that knows a block's content can forge another (docs/integrity.md): only for measurements beside
//! the paper's figures.

use crate::node_cache::NodeCache;
use crate::node_hash::NodeHash;
use crate::random_access::Integrity;
use crate::reference_blocks::{COUNTER_ROOM, ReferenceBlocks, StatefulCipher, all_failed, counted_leaf};
use crate::reference_counters::ReferenceCounters;
use crate::reference_keys::ReferenceKeys;
use crate::reference_rand::counted;
use crate::reference_rtree::RTree;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_integrity::{FailedBlock, PACKED_HEADER, Session, Untrusted, compress, decompress};
use std::sync::Arc;

/// Bytes of the hash at the end of a compressible block.
const HASH: usize = size_of::<NodeHash>();

/// COMP-EINT: a compressible block contains its hash; hashes of incompressible blocks are in a
/// tree.
pub struct ReferenceComp {
    file: ReferenceBlocks,
    counters: ReferenceCounters,
    blocks: u64,
    tree: RTree,
}

impl ReferenceComp {
    /// Init, with a cache of tree nodes.
    pub fn with_cache(
        keys: Arc<ReferenceKeys>,
        block_size: usize,
        cache: Option<Box<dyn NodeCache>>,
    ) -> Self {
        let file = ReferenceBlocks { keys, size: block_size };
        ReferenceComp {
            file,
            counters: ReferenceCounters::new(COUNTER_ROOM),
            blocks: 0,
            tree: RTree::new(cache),
        }
    }

    /// Bytes of TS: the root, its number of leaves and of blocks, and the counters or their hashes.
    pub fn trusted_bytes(&self) -> usize {
        32 + 16 + self.counters.trusted_bytes()
    }

    /// RArr.items: blocks that have a leaf.
    pub fn incompressible(&self) -> u64 {
        self.tree.items()
    }

    fn write(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()> {
        let size = self.file.size;
        let counters = counted(&self.counters, us, first, plain.len() / size)?;
        let mut sealed = vec![0; plain.len()];
        let mut packed = vec![0; size - HASH];
        let mut cipher = self.file.cipher();
        let blocks = plain.chunks_exact(size).zip(sealed.chunks_exact_mut(size));
        for (block, (plain, sealed)) in (first..).zip(blocks) {
            let counter = counters.get(block);
            let value = counted_leaf(block, counter, plain);
            let new = block >= self.blocks;
            if compress(plain, &mut packed, HASH + PACKED_HEADER).is_some() {
                if !new {
                    self.tree.remove(us, block)?;
                }
                let (body, tail) = sealed.split_at_mut(size - HASH);
                cipher.encrypt(block, counter, &packed, body);
                tail.copy_from_slice(&value);
            } else {
                if new {
                    self.tree.append(us, block, &value)?;
                } else {
                    self.tree.set(us, block, &value)?;
                }
                cipher.encrypt(block, counter, plain, sealed);
            }
        }
        self.blocks = self.blocks.max(counters.blocks());
        self.counters.authenticate(us, counters)?;
        us.write_blocks(first, &sealed)
    }
}

/// Opens a block that contains its hash, and replaces `bytes` by its content. Returns whether the
/// hash agrees.
fn open_inner(
    cipher: &mut StatefulCipher<'_>,
    block: u64,
    counter: u32,
    bytes: &mut [u8],
    room: &mut [u8],
) -> bool {
    let (body, tail) = bytes.split_at_mut(bytes.len() - HASH);
    cipher.decrypt_in_place(block, counter, body);
    let unpacked = decompress(body, room).is_some();
    let good = unpacked && counted_leaf(block, counter, room) == *tail;
    bytes.copy_from_slice(room);
    good
}

impl Integrity for ReferenceComp {
    type Keys = ReferenceKeys;

    fn init(keys: Arc<ReferenceKeys>, block_size: usize, _: Session) -> Self {
        ReferenceComp::with_cache(keys, block_size, None)
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn update(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()> {
        self.file.whole(first, plain, self.blocks)?;
        self.write(us, first, plain)
    }

    fn check(
        &self,
        us: &dyn Untrusted,
        first: u64,
        plain: &mut [u8],
    ) -> std::result::Result<(), FailedBlock> {
        self.file.whole(first, plain, self.blocks).map_err(|error| FailedBlock { block: first, error })?;
        let counters = match self.counters.check(us) {
            Ok(counters) => counters,
            Err(error) => return Err(all_failed(first, plain, error)),
        };
        us.read_blocks(first, plain).map_err(|error| FailedBlock { block: first, error })?;
        let mut cipher = self.file.cipher();
        let mut room = vec![0; self.file.size];
        self.file.open_each(first, plain, |block, bytes| {
            let counter = counters.get(block);
            match RTree::search_offset(us, block)? {
                Some(position) => {
                    cipher.decrypt_in_place(block, counter, bytes);
                    self.tree.check(us, position, &counted_leaf(block, counter, bytes))
                }
                None => Ok(open_inner(&mut cipher, block, counter, bytes, &mut room)),
            }
        })
    }

    fn append(&mut self, us: &dyn Untrusted, plain: &[u8]) -> Result<()> {
        self.file.whole(0, plain, u64::MAX)?;
        self.write(us, self.blocks, plain)
    }

    fn delete(&mut self, us: &dyn Untrusted) -> Result<()> {
        let Some(last) = self.blocks.checked_sub(1) else {
            return Err(Error::new(Kind::Usage, "cannot delete a block").found("a file without blocks"));
        };
        let mut counters = self.counters.check(us)?.into_owned();
        counters.delete_last();
        self.tree.remove(us, last)?;
        self.blocks = last;
        self.counters.authenticate(us, counters)
    }
}
