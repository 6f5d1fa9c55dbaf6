//! `compress` and `decompress` of COMP-EINT (EINT, section 5.3): make room in a block for its tag
//! by compressing only a prefix of the block that saves enough.
//!
//! A packed block is: bytes of the block that were compressed (u16) | length of the compressed
//! bytes (u16) | the compressed bytes | the rest of the block unchanged | zeros up to the end of
//! the room. Numbers are little-endian.

use lacuna_contracts::wipe;
use std::cell::RefCell;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

/// Bytes of a packed block before the compressed ones.
pub const PACKED_HEADER: usize = 4;

/// The prefixes of a block to compress, tried in order until one saves enough; the whole block
/// comes last.
const PREFIXES: [usize; 2] = [512, 2048];

/// The largest block that is packed: its length fits the header.
const LARGEST_PACKED: usize = 32 * 1024;

/// State that is reused between compressions: the compressor's table and an output buffer, which is
/// wiped after each use.
struct Scratch {
    table: CompressTable,
    output: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        RefCell::new(Scratch { table: CompressTable::small(), output: Vec::new() });
}

/// Packs `block` into `out` if compressing it saves at least `save` bytes, including
/// [`PACKED_HEADER`]; the rest of `out` becomes zeros. Returns the bytes used, at most
/// `block.len() + PACKED_HEADER - save`. `None` if the block does not compress enough or `out` is
/// shorter than the bytes used; the content of `out` is then arbitrary.
pub fn compress(block: &[u8], out: &mut [u8], save: usize) -> Option<usize> {
    if block.len() > LARGEST_PACKED {
        return None;
    }
    let shorter = PREFIXES.into_iter().filter(|prefix| *prefix < block.len());
    shorter.chain([block.len()]).find_map(|prefix| compress_prefix(block, prefix, out, save))
}

fn compress_prefix(block: &[u8], prefix: usize, out: &mut [u8], save: usize) -> Option<usize> {
    SCRATCH.with_borrow_mut(|Scratch { table, output }| {
        let most = get_maximum_output_size(prefix);
        if output.len() < most {
            output.resize(most, 0);
        }
        let output = &mut output[..most];
        let used = pack(block, prefix, output, table, out, save);
        // Wipe: compressed or not, the output holds plaintext of the block.
        wipe(output);
        used
    })
}

/// Compresses a prefix of the block into `output` and packs it with the rest into `out`.
fn pack(
    block: &[u8],
    prefix: usize,
    output: &mut [u8],
    table: &mut CompressTable,
    out: &mut [u8],
    save: usize,
) -> Option<usize> {
    let (head, rest) = block.split_at(prefix);
    let compressed = compress_into_with_table(head, output, table).ok()?;
    if compressed + save > prefix {
        return None;
    }
    let used = PACKED_HEADER + compressed + rest.len();
    let (packed, padding) = out.split_at_mut_checked(used)?;
    packed[..2].copy_from_slice(&(prefix as u16).to_le_bytes());
    packed[2..PACKED_HEADER].copy_from_slice(&(compressed as u16).to_le_bytes());
    packed[PACKED_HEADER..][..compressed].copy_from_slice(&output[..compressed]);
    packed[PACKED_HEADER + compressed..].copy_from_slice(rest);
    padding.fill(0);
    Some(used)
}

/// Unpacks the output of [`compress`] for a block of `block.len()` bytes. `None` if `packed` is
/// malformed; the content of `block` is then arbitrary. Allocates nothing.
pub fn decompress(packed: &[u8], block: &mut [u8]) -> Option<()> {
    let (header, bytes) = packed.split_first_chunk::<PACKED_HEADER>()?;
    let prefix = usize::from(u16::from_le_bytes([header[0], header[1]]));
    let compressed = usize::from(u16::from_le_bytes([header[2], header[3]]));
    let (head, rest) = block.split_at_mut_checked(prefix)?;
    let (compressed, raw) = bytes.split_at_checked(compressed)?;
    let raw = raw.get(..rest.len())?;
    if decompress_into(compressed, head).ok()? != head.len() {
        return None;
    }
    rest.copy_from_slice(raw);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::Rng;

    #[test]
    fn compression_wipes_its_thread_local_buffer() {
        let mut out = [0; 4096];
        let text: Vec<u8> = b"the same words again ".iter().copied().cycle().take(4096).collect();
        assert!(compress(&text, &mut out, 20).is_some());
        assert!(compress(&Rng::new(1).bytes(4096), &mut out, 20).is_none());
        SCRATCH.with_borrow(|Scratch { output, .. }| {
            assert!(!output.is_empty() && output.iter().all(|byte| *byte == 0));
        });
    }
}
