//! The cipher of a disk with its randomness. Every ciphertext is made once, under fresh randomness
//! that is hedged with the content, and bound to the address of its block.

use lacuna_contracts::{BlockAddr, Result};
use lacuna_crypto::{BlockCipher, RandomSource};
use std::sync::Arc;

/// Encrypts and decrypts runs of blocks.
pub(crate) struct Sealer {
    cipher: BlockCipher,
    random: Arc<dyn RandomSource>,
}

impl Sealer {
    /// A sealer with this cipher and this source of randomness.
    pub(crate) fn new(cipher: BlockCipher, random: Arc<dyn RandomSource>) -> Self {
        Sealer { cipher, random }
    }

    /// Bytes of metadata for `blocks` blocks.
    pub(crate) fn meta_len(&self, blocks: u64) -> usize {
        blocks as usize * self.cipher.meta_size()
    }

    /// Encrypts a run of blocks and writes their metadata.
    pub(crate) fn seal(&self, first: BlockAddr, plain: &[u8], sealed: &mut [u8], meta: &mut [u8]) {
        self.cipher.seal(first.0, plain, sealed, meta, &*self.random);
    }

    /// Decrypts a run of blocks from a shared buffer. `out` is wiped on failure.
    pub(crate) fn open(&self, first: BlockAddr, sealed: &[u8], meta: &[u8], out: &mut [u8]) -> Result<()> {
        self.cipher.open(first.0, sealed, meta, out).inspect_err(|_| out.fill(0))
    }

    /// Decrypts a run of blocks in place. The run is wiped if it does not verify.
    pub(crate) fn open_in_place(&self, first: BlockAddr, blocks: &mut [u8], meta: &[u8]) -> Result<()> {
        self.cipher.open_in_place(first.0, blocks, meta).inspect_err(|_| blocks.fill(0))
    }
}
