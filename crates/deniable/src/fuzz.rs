//! Opening what somebody with the key of level 0 made up: for fuzzing.

use crate::geometry::{DIGEST_AT, Geometry, TAG_AT};
use crate::keys::{domain, level_key, stripe_key};
use crate::params::Params;
use crate::place::Seq;
use crate::trims;
use lacuna_core::{BLOCK_SIZE, BlockAddr, Budget, Disk, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_levels::{LevelFormat, Levels, Masters, OpenOptions, Randomness, SALT_LEN};
use lacuna_medium::{Medium, MemoryMedium};
use std::sync::Arc;

/// Bytes of input for one stripe.
const PIECE: usize = 128;

/// Parses the input as parameters and as a record of discards; then forges a log of it, a stripe for every 128 bytes, opens
/// it at two levels, and reads, writes and closes what opens.
pub fn fuzz_open(input: &[u8]) {
    let _refused = Params::parse(input);
    let mut record = input.to_vec();
    record.resize(BLOCK_SIZE, 0);
    let _ranges = trims::ranges(&record).count();
    let room = (1 << 20) + (256 << 10) + 64 * 3 * BLOCK_SIZE as u64;
    let Ok(params) = Params::plan(room, Geometry::PAPER, 200, 0) else { return };
    let uuid = [3; 16];
    let masters = [Secret::copy_from(&[1; 32]), Secret::copy_from(&[2; 32])];
    let level0 = level_key(&masters[0], &uuid);
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.medium_len()));
    for (seq, piece) in Seq(1).up_to(Seq(params.stripes)).zip(input.chunks(PIECE)) {
        let mut block = [0; BLOCK_SIZE];
        forge(&params, &level0, seq, piece, &mut block);
        let _written = medium.write_at(params.offset(seq), &block);
    }
    let random = Randomness::of(Arc::new(SeededRandom::new(1)));
    let options = OpenOptions::in_the_foreground(Budget::bytes(1 << 20), random);
    let Ok(disk) = params.open(medium, Masters { keys: &masters, uuid: &uuid }, options) else { return };
    let disk = Arc::new(disk);
    let mut block = vec![7; BLOCK_SIZE];
    for level in disk.levels() {
        for addr in 0..4 {
            let _lost = level.read(BlockAddr(addr), &mut block);
            let _full = level.write(BlockAddr(addr), &block);
        }
        let _discarded = level.discard(BlockAddr(0), level.blocks());
    }
    for _ in 0..70 {
        if disk.refresh().is_err() {
            return;
        }
    }
    let _no_cover = disk.close();
}

/// A summary of stripe `seq` with a public part that an adversary with the key of level 0 made up.
fn forge(params: &Params, level0: &Secret<32>, seq: Seq, made_up: &[u8], out: &mut [u8; BLOCK_SIZE]) {
    let salt = [seq.0 as u8; SALT_LEN];
    let Ok(key) = stripe_key(level0, &salt) else { return };
    let at = params.geometry.public_at();
    let mut plain = vec![0; BLOCK_SIZE - at];
    let part = made_up.len().min(plain.len() - 8);
    plain[..8].copy_from_slice(&seq.0.to_le_bytes());
    plain[8..8 + part].copy_from_slice(&made_up[..part]);
    out[..SALT_LEN].copy_from_slice(&salt);
    let (clear, body) = out.split_at_mut(at);
    let tag = key.seal(domain::SUMMARY, 0, &clear[DIGEST_AT..], &plain, body);
    clear[TAG_AT..DIGEST_AT].copy_from_slice(&tag);
}

#[cfg(test)]
mod tests {
    use super::fuzz_open;

    #[test]
    fn what_is_made_up_is_refused_or_read() {
        fuzz_open(&[]);
        for byte in [0, 1, 2, 3, 0x7f, 0x80, 0xff] {
            fuzz_open(&[byte; 2000]);
        }
        // Stripes that name data, pages, records and lost blocks.
        let mut word = 1u64;
        for round in 0..200u64 {
            let mut input = vec![0; 1200];
            for (at, out) in input.chunks_exact_mut(8).enumerate() {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let kind = ((word >> 33) % 6) << 56;
                let value = if at % 3 == 0 { kind | ((word >> 40) % 64) } else { (word >> 50) % 9 };
                out.copy_from_slice(&value.to_le_bytes());
            }
            input.truncate(600 + round as usize * 3);
            fuzz_open(&input);
        }
    }
}
