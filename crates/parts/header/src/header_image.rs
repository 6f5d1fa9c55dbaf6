//! A whole header as bytes: assembles it, seals it with digest and MAC, and verifies the MAC.

use crate::copies::HeaderCopy;
use crate::layout::{self, HEADER_LEN, KEY_LEN};
use crate::public::{PublicHeader, Uuid};
use lacuna_contracts::{Result, Secret};
use lacuna_crypto::{constant_time_eq, derive, keyed_hash};
use sha2::{Digest, Sha256};

/// A header that is ready for [`crate::store`].
pub struct HeaderImage {
    bytes: Box<[u8; HEADER_LEN]>,
    pub(crate) public: PublicHeader,
    pub(crate) order: Vec<HeaderCopy>,
}

impl HeaderImage {
    /// Assembles a header. `fill` writes the key slots and, where there is one, the slot map;
    /// `order` is the order of the copies in the rewrite.
    pub(crate) fn build(
        public: PublicHeader,
        level0: &Secret<KEY_LEN>,
        order: Vec<HeaderCopy>,
        fill: impl FnOnce(&mut [u8; HEADER_LEN]) -> Result<()>,
    ) -> Result<Self> {
        let mut bytes = Box::new([0u8; HEADER_LEN]);
        public.encode(&mut bytes)?;
        fill(&mut bytes)?;
        let digest = Sha256::digest(&bytes[..layout::DIGEST.offset]);
        bytes[layout::DIGEST.range()].copy_from_slice(&digest);
        let mac = header_mac(&bytes, &public.uuid, level0);
        bytes[layout::MAC.range()].copy_from_slice(&mac);
        Ok(HeaderImage { bytes, public, order })
    }

    /// Splits it into the bytes and the public fields.
    pub(crate) fn into_parts(self) -> (Box<[u8; HEADER_LEN]>, PublicHeader) {
        (self.bytes, self.public)
    }

    /// The bytes of each copy.
    pub fn bytes(&self) -> &[u8; HEADER_LEN] {
        &self.bytes
    }

    /// The fields that can be read without a passphrase.
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
