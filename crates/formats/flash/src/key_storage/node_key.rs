//! Keys of nodes, and encryption with them.
//!
//! Tag and nonce of a node are synthetic ([`SivKey`], [`SivHash`]): if a running machine is copied,
//! each copy may use the same key once, for different blocks. The tag depends on the node's key, so
//! that no guess at the content can be checked against the tag once the key is deleted.

use crate::ids::{KeyPosition, NodeTarget};
use crate::log::group::NodeEntry;
use lacuna_contracts::{Secret, WipeOnDrop};
use lacuna_crypto::{AesBlock, HEDGED, SivHash, SivKey, derive};

/// Bytes of a key, completed.
pub(crate) const KEY_LEN: usize = 32;

/// The ciphers of a key that encrypts many nodes: encryption and tags.
pub(crate) struct Ciphers {
    stream: AesBlock,
    tags: SivKey,
}

impl Ciphers {
    /// Derives them: `label` names the key, and `label_of_tags` names the key of the tags.
    pub(crate) fn derive(master: &Secret<32>, label: &str, label_of_tags: &str) -> Ciphers {
        let stream = AesBlock::new(&derive(master, label, b""));
        Ciphers { stream, tags: SivKey::derive(master, label_of_tags, b"") }
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

/// Keys that were fetched for immediate use. Zeroed on drop.
pub(crate) struct FetchedKeys<'k> {
    keys: WipeOnDrop<Vec<u8>>,
    /// The schedule of the key in use. The next key takes its memory.
    schedule: Option<AesBlock>,
    hash: &'k SivHash,
    shared_key: Option<&'k Ciphers>,
}

impl<'k> FetchedKeys<'k> {
    /// Memory for this number of keys. It never grows, so no copy of a key stays behind. `hash` is
    /// that of all keys; a shared key takes the place of each.
    pub(crate) fn with_room(
        count: usize,
        hash: &'k SivHash,
        shared_key: Option<&'k Ciphers>,
    ) -> FetchedKeys<'k> {
        let keys = WipeOnDrop::new(vec![0u8; count * KEY_LEN]);
        FetchedKeys { keys, schedule: None, hash, shared_key }
    }

    /// The keys, to be filled in.
    pub(crate) fn keys_mut(&mut self) -> &mut [[u8; KEY_LEN]] {
        self.keys.as_chunks_mut::<KEY_LEN>().0
    }

    /// The key at an index, ready for use.
    pub(crate) fn key(&mut self, at: usize) -> NodeKey<'_> {
        if let Some(key) = self.shared_key {
            return NodeKey::Shared(key);
        }
        let key = &self.keys.as_chunks::<KEY_LEN>().0[at];
        if let Some(schedule) = &mut self.schedule {
            schedule.set_key(key);
        } else {
            self.schedule = Some(AesBlock::from_bytes(key));
        }
        NodeKey::Own(self.hash, self.schedule.as_ref().expect("it was just set up"))
    }
}

/// A key, ready for use.
pub(crate) enum NodeKey<'k> {
    /// A key that encrypts nothing else, and the hash of all such keys.
    Own(&'k SivHash, &'k AesBlock),
    /// The key of a disk without keys, which encrypts every block.
    Shared(&'k Ciphers),
}

impl NodeKey<'_> {
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
        let tag = match self {
            NodeKey::Own(hash, key) => hash.seal(key, &counter(0), &associated(target, sequence), plain, out),
            NodeKey::Shared(ciphers) => ciphers.seal(0, target, sequence, plain, out),
        };
        NodeEntry { target, key: position.0, sequence, tag, replaced: None }
    }

    /// Decrypts a block in place. Returns false if it does not match the entry; it is zeroed then.
    pub(crate) fn open(&self, entry: &NodeEntry, block: &mut [u8]) -> bool {
        match self {
            NodeKey::Own(hash, key) => {
                let data = associated(entry.target, entry.sequence);
                hash.open_in_place(key, &counter(0), &data, block, &entry.tag).is_ok()
            }
            NodeKey::Shared(ciphers) => ciphers.open(0, entry, block),
        }
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
