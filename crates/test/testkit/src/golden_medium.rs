//! Reads media of golden images from files, and writes such files.

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

/// Writes the file of a new golden image, for [`golden_medium`].
///
/// # Panics
///
/// If there is such a file already: golden images are never made again.
pub fn write_golden_medium(file: &Path, bytes: &[u8]) {
    let mut kept = vec![];
    let blocks = (0u64..).zip(bytes.chunks(BLOCK_SIZE));
    for (at, data) in blocks.filter(|(_, data)| data.iter().any(|byte| *byte != 0)) {
        kept.extend((at * BLOCK_SIZE as u64).to_le_bytes());
        kept.extend(data);
        kept.resize(kept.len() + BLOCK_SIZE - data.len(), 0);
    }
    assert!(!file.exists(), "it is there already");
    std::fs::write(file, kept).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}
