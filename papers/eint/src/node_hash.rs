//! The hash of a node of a Merkle tree.

use sha2::{Digest, Sha256};

/// The SHA-256 hash of a node.
pub type NodeHash = [u8; 32];

/// h: SHA-256 of the concatenated parts.
pub(crate) fn hash(parts: &[&[u8]]) -> NodeHash {
    let mut state = Sha256::new();
    parts.iter().for_each(|part| state.update(part));
    state.finalize().into()
}
