//! Reads media of golden images from files.

use lacuna_contracts::BLOCK_SIZE;
use std::path::Path;

/// A medium from a file that contains the nonzero blocks, each after its offset (8 bytes,
/// little-endian).
///
/// # Panics
///
/// If there is no such file.
pub fn golden_medium(file: &Path, len: u64) -> Vec<u8> {
    let kept = std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut bytes = vec![0; (len as usize).next_multiple_of(BLOCK_SIZE)];
    for piece in kept.chunks_exact(8 + BLOCK_SIZE) {
        let at = u64::from_le_bytes(piece[..8].try_into().expect("8 bytes")) as usize;
        bytes[at..at + BLOCK_SIZE].copy_from_slice(&piece[8..]);
    }
    bytes.truncate(len as usize);
    bytes
}
