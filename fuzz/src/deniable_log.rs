//! Logs of a disk with hidden levels that have summaries forged by an adversary with the key of
//! level 0. They are sealed as in `docs/format/deniable.md`. The medium may answer some reads with
//! other summaries.

use crate::bytes::InputCursor;
use crate::lying::{FilledMedium, requested_sim_lies};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, LeWriter, Result, Secret};
use lacuna_crypto::{SeededRandom, derive};
use lacuna_deniable::{Params, StripeGeometry, fuzzing};
use lacuna_levels::{DiskKeys, LevelFormat, Levels, OpenOptions, Randomness, SALT_LEN, WriteKey};
use lacuna_medium::Medium;
use std::sync::Arc;

/// Bytes of input per stripe.
const PIECE: usize = 128;
/// Offset of the request for lies in the first stripe's input, after the contents of the summary.
const LIES_AT: usize = 123;
/// Offset of the log on the medium.
const LOG: u64 = 1_310_720;
/// Stripes of the log.
const STRIPES: u64 = 64;
/// Blocks of a stripe of [`StripeGeometry::PAPER`].
const STRIPE_BLOCKS: u64 = 3;
/// Offsets of the tag of the public part and of the digest in a summary. The tag binds the bytes
/// between the digest's offset and the public part.
const TAG_AT: usize = 32;
const DIGEST_AT: usize = 48;
/// Offset of the public part in a summary, with one hidden slot per stripe.
const PUBLIC_AT: usize = 448;
/// The domain of the public part.
const SUMMARY: u8 = 2;
const UUID: [u8; 16] = [3; 16];

/// Parses the input as parameters and as a record of discards. Then forges a log with a stripe for
/// every 128 bytes, opens it at two levels, and, if it opens, reads, writes and closes it. If the
/// last bytes of the first stripe ask for lies, the medium first holds the summaries shifted by one
/// stripe, and the log is also used while reads return them.
pub fn use_forged(input: &[u8]) {
    let _refused = Params::parse(input);
    let mut record = input.to_vec();
    record.resize(BLOCK_SIZE, 0);
    let _ranges = fuzzing::discards(&record);
    let Ok(params) = params() else { return };
    let lies = input.get(LIES_AT..).and_then(|rest| requested_sim_lies(&mut InputCursor::new(rest)));
    let filled = FilledMedium::new(params.end(), lies);
    if filled.will_lie() {
        fill(&**filled.medium(), &params, input.get(PIECE..).unwrap_or_default());
    }
    fill(&**filled.medium(), &params, input);
    filled.start_lying();
    use_log(filled.medium(), &params);
    filled.stop_lying();
    if filled.will_lie() {
        use_log(filled.medium(), &params);
    }
}

/// Writes a forged stripe for every 128 bytes.
fn fill(medium: &dyn Medium, params: &Params, input: &[u8]) {
    let level0 = level_0();
    for (seq, piece) in (1..=params.stripes).zip(input.chunks(PIECE)) {
        let Ok(block) = summary(&level0, seq, piece) else { return };
        medium.write_at(offset(params, seq), &block).expect("a medium in memory");
    }
}

fn use_log(medium: &Arc<dyn Medium>, params: &Params) {
    let options = OpenOptions::foreground(Budget::bytes(1 << 20), random());
    let masters = masters();
    let opened = params.open(medium.clone(), DiskKeys { keys: &masters, uuid: &UUID }, options);
    let Ok(disk) = opened else { return };
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

fn params() -> Result<Params> {
    Params::plan(LOG + STRIPES * STRIPE_BLOCKS * BLOCK_SIZE as u64, StripeGeometry::PAPER, 200, 0)
}

fn masters() -> [Secret<32>; 2] {
    [Secret::copy_from(&[1; 32]), Secret::copy_from(&[2; 32])]
}

/// The key of level 0 of this disk.
fn level_0() -> Secret<32> {
    derive(&masters()[0], "deniable level", &UUID)
}

fn random() -> Randomness {
    Randomness::of(Arc::new(SeededRandom::new(1)))
}

/// The offset of a stripe.
fn offset(params: &Params, seq: u64) -> u64 {
    LOG + seq % params.stripes * STRIPE_BLOCKS * BLOCK_SIZE as u64
}

/// The summary of a stripe, with the number of the stripe and `made_up` in its public part.
fn summary(level0: &Secret<32>, seq: u64, made_up: &[u8]) -> Result<Vec<u8>> {
    let salt = [seq as u8; SALT_LEN];
    let key = stripe_key(level0, &salt)?;
    let mut plain = vec![0; BLOCK_SIZE - PUBLIC_AT];
    let len = made_up.len().min(plain.len() - 8);
    LeWriter(&mut plain).u64(0, seq).put(8, &made_up[..len]);
    let mut block = vec![0; BLOCK_SIZE];
    block[..SALT_LEN].copy_from_slice(&salt);
    let (clear, body) = block.split_at_mut(PUBLIC_AT);
    let tag = key.seal(SUMMARY, 0, &clear[DIGEST_AT..], &plain, body);
    clear[TAG_AT..DIGEST_AT].copy_from_slice(&tag);
    Ok(block)
}

fn stripe_key(level0: &Secret<32>, salt: &[u8; SALT_LEN]) -> Result<WriteKey> {
    WriteKey::derive(level0, "deniable stripe", salt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_log_is_refused_or_read() {
        use_forged(&[]);
        for byte in [0, 1, 2, 3, 0x7f, 0x80, 0xff] {
            use_forged(&[byte; 2000]);
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
            use_forged(&input);
            input[LIES_AT..PIECE].copy_from_slice(&[0x80, round as u8, 0, (round % 2) as u8, 0]);
            use_forged(&input);
        }
    }

    /// The forger seals like the disk: the summary of a new disk verifies with the forger's keys
    /// and offsets.
    #[test]
    fn a_summary_of_the_disk_verifies_with_the_keys_of_the_forger() {
        let params = params().unwrap();
        let (masters, filled) = (masters(), FilledMedium::new(params.end(), None));
        let medium = filled.medium();
        params.create(medium, DiskKeys { keys: &masters[..1], uuid: &UUID }, random()).unwrap();
        let mut block = vec![0; BLOCK_SIZE];
        medium.read_at(offset(&params, 1), &mut block).unwrap();
        let (clear, body) = block.split_at_mut(PUBLIC_AT);
        let key = stripe_key(&level_0(), clear.first_chunk().unwrap()).unwrap();
        let tag = clear[TAG_AT..DIGEST_AT].try_into().unwrap();
        assert!(key.open(SUMMARY, 0, &clear[DIGEST_AT..], body, &tag).is_ok());
        assert_eq!(body[..8], 1u64.to_le_bytes());
    }
}
