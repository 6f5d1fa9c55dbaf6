//! Common parts of the reference schemes: walking, refusing and clearing a run of blocks, and the
//! length-preserving stateful encryption of Figure 3, with AES-256-XTS in place of AES in CBC mode.

use crate::node_hash::{NodeHash, hash};
use crate::reference_keys::ReferenceKeys;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_crypto::XtsSession;
use lacuna_integrity::FailedBlock;
use std::sync::Arc;

/// L_ctr of the reference schemes: the paper's 200 bytes.
pub(crate) const COUNTER_ROOM: usize = 200;

/// The keys and the size of a file's blocks.
pub(crate) struct ReferenceBlocks {
    pub(crate) keys: Arc<ReferenceKeys>,
    pub(crate) size: usize,
}

impl ReferenceBlocks {
    /// E^len and D^len for a run of blocks.
    pub(crate) fn cipher(&self) -> StatefulCipher<'_> {
        StatefulCipher { keys: &self.keys, session: self.keys.xts().session() }
    }

    /// The number of blocks in `plain`, which starts at block `first`. Errors: [`Kind::Usage`] if
    /// it is not whole blocks up to `end`.
    pub(crate) fn whole(&self, first: u64, plain: &[u8], end: u64) -> Result<u64> {
        let count = (plain.len() / self.size) as u64;
        let fits = first.checked_add(count).is_some_and(|after| after <= end);
        if fits && plain.len().is_multiple_of(self.size) {
            return Ok(count);
        }
        Err(Error::new(Kind::Usage, "cannot use a run of blocks")
            .found(format!("{} bytes starting at block {first}", plain.len()))
            .expected(format!("whole blocks of {} bytes among {end}", self.size)))
    }

    /// Runs `open` over each block of the run in turn; the first block that fails and those after
    /// it become zeros. `open` returns whether the block, decrypted in place, is authentic.
    pub(crate) fn open_each(
        &self,
        first: u64,
        run: &mut [u8],
        mut open: impl FnMut(u64, &mut [u8]) -> Result<bool>,
    ) -> std::result::Result<(), FailedBlock> {
        let mut done = 0;
        let mut failed = None;
        for (block, bytes) in (first..).zip(run.chunks_exact_mut(self.size)) {
            match open(block, bytes) {
                Ok(true) => done += self.size,
                Ok(false) => failed = Some(FailedBlock { block, error: altered(block) }),
                Err(error) => failed = Some(FailedBlock { block, error }),
            }
            if failed.is_some() {
                break;
            }
        }
        run[done..].fill(0);
        failed.map_or(Ok(()), Err)
    }
}

/// The error for a block that does not verify.
fn altered(block: u64) -> Error {
    Error::new(Kind::Corrupt, format!("block {block} does not verify"))
        .found("data or counters that were altered, moved or are not the latest")
        .expected("the data written there last")
}

/// Clears a run and fails it at its first block, for an error that concerns the whole run.
pub(crate) fn all_failed(first: u64, plain: &mut [u8], error: Error) -> FailedBlock {
    plain.fill(0);
    FailedBlock { block: first, error }
}

/// Figure 3: the initialisation vector of a block is a pseudorandom function of its index and its
/// write counter.
pub(crate) struct StatefulCipher<'k> {
    keys: &'k ReferenceKeys,
    session: XtsSession<'k>,
}

impl StatefulCipher<'_> {
    pub(crate) fn encrypt(&mut self, block: u64, counter: u32, plain: &[u8], sealed: &mut [u8]) {
        let vector = self.vector(block, counter);
        self.session.encrypt(&vector, plain, sealed);
    }

    pub(crate) fn decrypt_in_place(&mut self, block: u64, counter: u32, bytes: &mut [u8]) {
        let vector = self.vector(block, counter);
        self.session.decrypt_in_place(&vector, bytes);
    }

    fn vector(&self, block: u64, counter: u32) -> [u8; 16] {
        self.keys.vector(block, counter)
    }
}

/// h(i || B).
pub(crate) fn leaf(block: u64, plain: &[u8]) -> NodeHash {
    hash(&[&block.to_le_bytes(), plain])
}

/// h(i || counter || B).
pub(crate) fn counted_leaf(block: u64, counter: u32, plain: &[u8]) -> NodeHash {
    hash(&[&block.to_le_bytes(), &counter.to_le_bytes(), plain])
}
