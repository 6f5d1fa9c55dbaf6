//! The keys of one file under the reference schemes.

use lacuna_contracts::Secret;
use lacuna_crypto::{AesBlock, Hctr2Key, XtsKey, derive};
use std::sync::{Arc, OnceLock};

/// The labels of the key derivations.
mod label {
    pub(super) const FILE: &str = "integrity file";
    pub(super) const WIDE: &str = "integrity wide blocks";
    pub(super) const PLAIN: &str = "integrity plain blocks";
    pub(super) const VECTORS: &str = "integrity reference vectors";
}

/// The keys of one file. Each is derived at its first use, like the keys of vault files.
pub struct ReferenceKeys {
    file: Secret<32>,
    wide: OnceLock<Hctr2Key>,
    xts: OnceLock<XtsKey>,
    vectors: OnceLock<AesBlock>,
}

impl ReferenceKeys {
    /// The keys of file number `file`.
    pub fn derive(master: &Secret<32>, file: u64) -> Arc<ReferenceKeys> {
        let file: Secret<32> = derive(master, label::FILE, &file.to_le_bytes());
        let (wide, xts, vectors) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Arc::new(ReferenceKeys { file, wide, xts, vectors })
    }

    /// The HCTR2 key for blocks.
    pub(crate) fn wide(&self) -> &Hctr2Key {
        self.wide.get_or_init(|| {
            let key: Secret<32> = derive(&self.file, label::WIDE, &[]);
            Hctr2Key::new(&key).expect("an AES-256 key has the right length")
        })
    }

    /// The AES-256-XTS key for blocks.
    pub(crate) fn xts(&self) -> &XtsKey {
        self.xts.get_or_init(|| {
            XtsKey::new(&derive(&self.file, label::PLAIN, &[])).expect("two halves of a derived key differ")
        })
    }

    /// Figure 3: a PRF of index and write counter.
    pub(crate) fn vector(&self, block: u64, counter: u32) -> [u8; 16] {
        let prf = self.vectors.get_or_init(|| AesBlock::new(&derive(&self.file, label::VECTORS, &[])));
        prf.encrypt((u128::from(counter) << 64 | u128::from(block)).to_le_bytes())
    }
}
