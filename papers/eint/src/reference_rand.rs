//! `ReferenceRand`: RAND-EINT exactly as Figures 8 and 9 of EINT, with SHA-256, HCTR2 in place of
//! CMC, and numbers of writes as counters. Such counters repeat when a block is deleted and
//! appended again; then an old block that does not look random is accepted (docs/integrity.md):
//! only for measurements beside the paper's figures.

use crate::node_cache::NodeCache;
use crate::random_access::Integrity;
use crate::reference_blocks::{COUNTER_ROOM, ReferenceBlocks, all_failed, leaf};
use crate::reference_counters::{CounterIntervals, ReferenceCounters};
use crate::reference_keys::ReferenceKeys;
use crate::reference_rtree::RTree;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_integrity::{FailedBlock, Session, Untrusted, is_random_looking};
use std::sync::Arc;

/// RAND-EINT: a wide-block cipher with the authentic write counter in its tweak; hashes of only the
/// random-looking blocks.
pub struct ReferenceRand {
    file: ReferenceBlocks,
    counters: ReferenceCounters,
    blocks: u64,
    tree: RTree,
}

impl ReferenceRand {
    /// Init, with a cache of tree nodes.
    pub fn with_cache(
        keys: Arc<ReferenceKeys>,
        block_size: usize,
        cache: Option<Box<dyn NodeCache>>,
    ) -> Self {
        let file = ReferenceBlocks { keys, size: block_size };
        ReferenceRand {
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
    pub fn random_looking(&self) -> u64 {
        self.tree.items()
    }

    fn write(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()> {
        let size = self.file.size;
        let counters = counted(&self.counters, us, first, plain.len() / size)?;
        let mut sealed = vec![0; plain.len()];
        let blocks = plain.chunks_exact(size).zip(sealed.chunks_exact_mut(size));
        for (block, (plain, sealed)) in (first..).zip(blocks) {
            let new = block >= self.blocks;
            match (is_random_looking(plain), new) {
                (true, true) => self.tree.append(us, block, &leaf(block, plain))?,
                (true, false) => self.tree.set(us, block, &leaf(block, plain))?,
                (false, true) => {}
                (false, false) => self.tree.remove(us, block)?,
            }
            let tweak = tweak(block, counters.get(block));
            self.file.keys.wide().encrypt(&tweak, plain, sealed);
        }
        self.blocks = self.blocks.max(counters.blocks());
        self.counters.authenticate(us, counters)?;
        us.write_blocks(first, &sealed)
    }
}

/// The counters after one more write of each block of a run. Errors: [`Kind::Corrupt`].
pub(crate) fn counted(
    counters: &ReferenceCounters,
    us: &dyn Untrusted,
    first: u64,
    count: usize,
) -> Result<CounterIntervals> {
    let mut counters = counters.check(us)?.into_owned();
    (first..first + count as u64).try_for_each(|block| counters.update(block))?;
    Ok(counters)
}

/// The tweak: h(i || counter).
pub(crate) fn tweak(block: u64, counter: u32) -> [u8; 32] {
    leaf(block, &counter.to_le_bytes())
}

impl Integrity for ReferenceRand {
    type Keys = ReferenceKeys;

    fn init(keys: Arc<ReferenceKeys>, block_size: usize, _: Session) -> Self {
        ReferenceRand::with_cache(keys, block_size, None)
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
        self.file.open_each(first, plain, |block, bytes| {
            self.file.keys.wide().decrypt_in_place(&tweak(block, counters.get(block)), bytes);
            if !is_random_looking(bytes) {
                return Ok(true);
            }
            match RTree::search_offset(us, block)? {
                Some(position) => self.tree.check(us, position, &leaf(block, bytes)),
                None => Ok(false),
            }
        })
    }

    fn append(&mut self, us: &dyn Untrusted, plain: &[u8]) -> Result<()> {
        self.file.whole(0, plain, u64::MAX)?;
        self.write(us, self.blocks, plain)
    }

    /// Delete. The paper decrypts the last block to find out whether it has a leaf; RArr gives the
    /// same answer.
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
