//! The key of one block in the log, and encryption with it.

use crate::group::NodeEntry;
use crate::numbers::{KeyPosition, Target};
use lacuna_crypto::GcmKey;

/// A key, ready for use.
pub(crate) enum NodeKey<'k> {
    /// It encrypts nothing else.
    Own(GcmKey),
    /// It encrypts every block of a disk without keys, under nonces that never repeat.
    OfDisk(&'k GcmKey),
}

impl NodeKey<'_> {
    /// Encrypts a block, and gives its entry.
    pub(crate) fn seal(
        &self,
        block: u32,
        position: KeyPosition,
        sequence: u64,
        plain: &[u8],
        out: &mut [u8],
    ) -> NodeEntry {
        let target = Target::Block(block);
        let data = associated(target, sequence);
        let tag = match self {
            NodeKey::Own(key) => key.seal(&[0; 12], &data, plain, out),
            NodeKey::OfDisk(key) => key.seal(&nonce(0, sequence), &data, plain, out),
        };
        NodeEntry { target, key: position.0, sequence, tag, replaced: None }
    }

    /// Decrypts a block where it was read to. False: it is not what the entry says, and is zeros now.
    pub(crate) fn open(&self, entry: &NodeEntry, block: &mut [u8]) -> bool {
        let data = associated(entry.target, entry.sequence);
        let opened = match self {
            NodeKey::Own(key) => key.open_in_place(&[0; 12], &data, block, &entry.tag),
            NodeKey::OfDisk(key) => key.open_in_place(&nonce(0, entry.sequence), &data, block, &entry.tag),
        };
        opened.is_ok()
    }
}

/// What is authenticated with a node.
pub(crate) fn associated(target: Target, sequence: u64) -> [u8; 13] {
    let mut data = [0; 13];
    let (kind, number) = match target {
        Target::Block(block) => (0, block),
        Target::Index(page) => (1, page),
    };
    data[0] = kind;
    data[1..5].copy_from_slice(&number.to_le_bytes());
    data[5..].copy_from_slice(&sequence.to_le_bytes());
    data
}

/// The nonce of a node that shares its key with others.
pub(crate) fn nonce(random: u32, sequence: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&random.to_le_bytes());
    nonce[4..].copy_from_slice(&sequence.to_le_bytes());
    nonce
}
