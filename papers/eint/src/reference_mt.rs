//! `ReferenceMt`: MT-EINT exactly as Figure 7 of EINT, with SHA-256 and AES-256-XTS. It is the
//! baseline of the comparison; files of vaults use the scheme with keyed tags and a wide tree.

use crate::binary_tree::BinaryTree;
use crate::node_cache::NodeCache;
use crate::random_access::Integrity;
use crate::reference_blocks::{ReferenceBlocks, leaf};
use crate::reference_counters::CounterIntervals;
use crate::reference_keys::ReferenceKeys;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_integrity::{FailedBlock, Part, Session, Untrusted};
use std::sync::Arc;

/// MT-EINT: a hash of every block in a binary Merkle tree. The write counters need no
/// authentication: with a wrong counter a block does not decrypt to the content of its hash. They
/// are held in memory.
pub struct ReferenceMt {
    file: ReferenceBlocks,
    counters: CounterIntervals,
    tree: BinaryTree,
}

impl ReferenceMt {
    /// Init, with a cache of tree nodes.
    pub fn with_cache(
        keys: Arc<ReferenceKeys>,
        block_size: usize,
        cache: Option<Box<dyn NodeCache>>,
    ) -> Self {
        let file = ReferenceBlocks { keys, size: block_size };
        ReferenceMt {
            file,
            counters: CounterIntervals::default(),
            tree: BinaryTree::new(Part::Tree(0), cache),
        }
    }

    /// Bytes of TS.
    pub fn trusted_bytes(&self) -> usize {
        size_of_val(&self.tree.root()) + 8
    }

    fn write(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8], new: bool) -> Result<()> {
        let mut sealed = vec![0; plain.len()];
        let size = self.file.size;
        let mut cipher = self.file.cipher();
        let blocks = plain.chunks_exact(size).zip(sealed.chunks_exact_mut(size));
        for (block, (plain, sealed)) in (first..).zip(blocks) {
            if new {
                self.tree.append(us, &leaf(block, plain))?;
            } else {
                self.tree.update(us, block, &leaf(block, plain))?;
            }
            self.counters.update(block)?;
            cipher.encrypt(block, self.counters.get(block), plain, sealed);
        }
        us.write_blocks(first, &sealed)
    }
}

impl Integrity for ReferenceMt {
    type Keys = ReferenceKeys;

    fn init(keys: Arc<ReferenceKeys>, block_size: usize, _: Session) -> Self {
        ReferenceMt::with_cache(keys, block_size, None)
    }

    fn blocks(&self) -> u64 {
        self.tree.leaves()
    }

    fn update(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()> {
        self.file.whole(first, plain, self.blocks())?;
        self.write(us, first, plain, false)
    }

    fn check(
        &self,
        us: &dyn Untrusted,
        first: u64,
        plain: &mut [u8],
    ) -> std::result::Result<(), FailedBlock> {
        let failed = |error| FailedBlock { block: first, error };
        self.file.whole(first, plain, self.blocks()).map_err(failed)?;
        us.read_blocks(first, plain).map_err(failed)?;
        let mut cipher = self.file.cipher();
        self.file.open_each(first, plain, |block, bytes| {
            cipher.decrypt_in_place(block, self.counters.get(block), bytes);
            self.tree.check(us, block, &leaf(block, bytes))
        })
    }

    fn append(&mut self, us: &dyn Untrusted, plain: &[u8]) -> Result<()> {
        self.file.whole(0, plain, u64::MAX)?;
        self.write(us, self.blocks(), plain, true)
    }

    fn delete(&mut self, us: &dyn Untrusted) -> Result<()> {
        if self.blocks() == 0 {
            return Err(Error::new(Kind::Usage, "cannot delete a block").found("a file without blocks"));
        }
        self.tree.delete(us)?;
        self.counters.delete_last();
        Ok(())
    }
}
