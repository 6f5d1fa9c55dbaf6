//! A whole header as bytes: put together, sealed with its digest and MAC, checked.

use crate::copies::HeaderCopy;
use crate::layout::{self, HEADER_LEN, KEY_LEN};
use crate::public::{PublicHeader, Uuid};
use lacuna_core::{Result, Secret};
use lacuna_crypto::{constant_time_eq, derive, keyed_hash};
use sha2::{Digest, Sha256};

/// A header that is ready for [`crate::store`].
pub struct HeaderImage {
    bytes: Box<[u8; HEADER_LEN]>,
    pub(crate) public: PublicHeader,
    pub(crate) first: HeaderCopy,
}

impl HeaderImage {
    /// Puts a header together; `fill_slots` writes the slot area. `first` is the copy to write first.
    pub(crate) fn build(
        public: PublicHeader,
        level0: &Secret<KEY_LEN>,
        first: HeaderCopy,
        fill_slots: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Self> {
        let mut bytes = Box::new([0u8; HEADER_LEN]);
        public.encode(&mut bytes)?;
        fill_slots(&mut bytes[layout::SLOTS.range()])?;
        let digest = Sha256::digest(&bytes[..layout::DIGEST.offset]);
        bytes[layout::DIGEST.range()].copy_from_slice(&digest);
        let mac = header_mac(&bytes, &public.uuid, level0);
        bytes[layout::MAC.range()].copy_from_slice(&mac);
        Ok(HeaderImage { bytes, public, first })
    }

    /// The bytes of each copy.
    pub fn bytes(&self) -> &[u8; HEADER_LEN] {
        &self.bytes
    }

    /// What the header says without a passphrase.
    pub fn public(&self) -> &PublicHeader {
        &self.public
    }
}

/// Whether the MAC of a header verifies under the master key of level 0.
pub(crate) fn mac_verifies(bytes: &[u8; HEADER_LEN], uuid: &Uuid, level0: &Secret<KEY_LEN>) -> bool {
    constant_time_eq(&header_mac(bytes, uuid, level0), &bytes[layout::MAC.range()])
}

fn header_mac(bytes: &[u8; HEADER_LEN], uuid: &Uuid, level0: &Secret<KEY_LEN>) -> [u8; 32] {
    let key: Secret<32> = derive(level0, "header mac", &uuid.0);
    keyed_hash(&key, &[&bytes[..layout::MAC.offset]])
}
