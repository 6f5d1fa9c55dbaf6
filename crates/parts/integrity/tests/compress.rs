//! Packing of blocks: round trips, the bytes saved, and hostile bytes.

use lacuna_integrity::{PACKED_HEADER, compress, decompress};
use proptest::prelude::*;

/// Bytes to save: a tag of 16 bytes and the header.
const SAVE: usize = 16 + PACKED_HEADER;

fn noise(len: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

fn assert_round_trip(block: &[u8]) {
    let mut out = vec![0xee; block.len() - 16];
    let used = compress(block, &mut out, SAVE).expect("the block compresses");
    assert!(used <= out.len());
    assert!(out[used..].iter().all(|byte| *byte == 0), "the padding is zeros");
    let mut back = vec![0xee; block.len()];
    decompress(&out, &mut back).expect("it unpacks");
    assert_eq!(back, block);
}

#[test]
fn a_short_prefix_is_enough_where_it_compresses() {
    let mut block = noise(4096);
    block[100..200].fill(7);
    assert_round_trip(&block);
}

#[test]
fn the_whole_block_is_tried_last() {
    let mut block = noise(4096);
    block[3000..3100].fill(7);
    assert_round_trip(&block);
}

#[test]
fn every_size_packs() {
    for len in [128, 256, 512, 1024, 2048, 4096] {
        assert_round_trip(&vec![3; len]);
    }
}

#[test]
fn noise_does_not_pack() {
    for len in [128, 512, 4096] {
        assert_eq!(compress(&noise(len), &mut vec![0; len - 16], SAVE), None);
    }
    assert_eq!(compress(&[], &mut [], SAVE), None);
}

#[test]
fn too_little_room_is_refused() {
    let mut block = noise(4096);
    block[..100].fill(7);
    assert_eq!(compress(&block, &mut vec![0; 1000], SAVE), None);
}

proptest! {
    #[test]
    fn hostile_bytes_are_refused_or_unpacked(
        packed in proptest::collection::vec(any::<u8>(), 0..600), len in 0_usize..600,
    ) {
        let _ = decompress(&packed, &mut vec![0; len]);
    }

    #[test]
    fn damage_never_panics(at in 0_usize..496, byte in any::<u8>()) {
        let mut out = vec![0; 496];
        let block: Vec<u8> = b"abcdefgh".iter().copied().cycle().take(512).collect();
        prop_assert!(compress(&block, &mut out, SAVE).is_some());
        out[at] = byte;
        let _ = decompress(&out, &mut [0; 512]);
    }

    #[test]
    fn mixtures_round_trip(seed in any::<u8>(), from in 0_usize..3900, len in 64_usize..196) {
        let mut block = noise(4096);
        block[from..from + len].fill(seed);
        assert_round_trip(&block);
    }
}
