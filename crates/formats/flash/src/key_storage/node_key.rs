//! The key of one node, and encryption with it.
//!
//! Tag and nonce of a node are synthetic ([`SivKey`]): if a running machine is copied, each copy
//! may use the same key once, for different blocks. The tag depends on the node's key, so that no
//! guess at the content can be checked against the tag once the key is deleted.

use crate::ids::{KeyPosition, NodeTarget};
use crate::log::group::NodeEntry;
use lacuna_contracts::{Result, Secret};
use lacuna_crypto::{GcmKey, HEDGED, SivHash, SivKey, derive};

/// The ciphers of a key: encryption and tags.
pub(crate) struct Ciphers {
    stream: GcmKey,
    tags: SivKey,
}

impl Ciphers {
    /// Makes the ciphers of `key`. The caller wipes `key`.
    pub(crate) fn new(hash: &SivHash, key: &[u8; 32]) -> Result<Ciphers> {
        Ok(Ciphers { stream: GcmKey::from_bytes(key)?, tags: SivKey::under(hash, key) })
    }

    /// Derives a key that encrypts many nodes: `label` names it, and `label_of_tags` names the key
    /// of their tags.
    pub(crate) fn derive(master: &Secret<32>, label: &str, label_of_tags: &str) -> Result<Ciphers> {
        let stream = GcmKey::new(&derive(master, label, b""))?;
        Ok(Ciphers { stream, tags: SivKey::derive(master, label_of_tags, b"") })
    }

    /// Encrypts a node, and returns its tag, which binds target and sequence number too. `random`
    /// holds the random bits of its entry, if any.
    pub(crate) fn seal(
        &self,
        random: u32,
        target: NodeTarget,
        sequence: u64,
        plain: &[u8],
        out: &mut [u8],
    ) -> [u8; 16] {
        self.tags.seal(&self.stream, &counter(random), &associated(target, sequence), plain, out)
    }

    /// Decrypts a node in place. Returns false if it does not match the entry; it is zeroed then.
    pub(crate) fn open(&self, random: u32, entry: &NodeEntry, node: &mut [u8]) -> bool {
        let data = associated(entry.target, entry.sequence);
        self.tags.open_in_place(&self.stream, &counter(random), &data, node, &entry.tag).is_ok()
    }
}

/// A key, ready for use.
pub(crate) enum NodeKey<'k> {
    /// A key that encrypts nothing else.
    Own(Ciphers),
    /// The key of a disk without keys, which encrypts every block.
    Shared(&'k Ciphers),
}

impl NodeKey<'_> {
    fn ciphers(&self) -> &Ciphers {
        match self {
            NodeKey::Own(ciphers) => ciphers,
            NodeKey::Shared(ciphers) => ciphers,
        }
    }

    /// Encrypts a block, and returns its entry.
    pub(crate) fn seal(
        &self,
        block: u32,
        position: KeyPosition,
        sequence: u64,
        plain: &[u8],
        out: &mut [u8],
    ) -> NodeEntry {
        let target = NodeTarget::Block(block);
        let tag = self.ciphers().seal(0, target, sequence, plain, out);
        NodeEntry { target, key: position.0, sequence, tag, replaced: None }
    }

    /// Decrypts a block in place. Returns false if it does not match the entry; it is zeroed then.
    pub(crate) fn open(&self, entry: &NodeEntry, block: &mut [u8]) -> bool {
        self.ciphers().open(0, entry, block)
    }
}

/// The associated data of a node.
fn associated(target: NodeTarget, sequence: u64) -> [u8; 13] {
    let mut data = [0; 13];
    let (kind, number) = match target {
        NodeTarget::Block(block) => (0, block),
        NodeTarget::Index(page) => (1, page),
    };
    data[0] = kind;
    data[1..5].copy_from_slice(&number.to_le_bytes());
    data[5..].copy_from_slice(&sequence.to_le_bytes());
    data
}

fn counter(random: u32) -> [u8; HEDGED] {
    let mut counter = [0; HEDGED];
    counter[..4].copy_from_slice(&random.to_le_bytes());
    counter
}
