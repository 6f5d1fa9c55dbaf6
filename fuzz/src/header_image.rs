//! A valid header at the lowest passphrase cost, with earlier versions; damage that its unkeyed
//! digest does not detect; and a medium that answers some reads with the earlier versions.

use crate::bytes::InputCursor;
use crate::lying::{LyingMedium, ReadLies};
use crate::sparse::SparseMedium;
use lacuna_contracts::SecretVec;
use lacuna_crypto::{Argon2Cost, SeededRandom};
use lacuna_header::{
    COPY_A, COPY_B, FormatId, HEADER_AREA, HEADER_LEN, Keyring, NewHeader, NewHeaderSpec, PublicHeader,
    change_keys, copy_c, medium_len, open, repair, update_params,
};
use lacuna_medium::Medium;
use sha2::{Digest, Sha256};
use std::sync::{Arc, LazyLock, OnceLock};

/// Offset of the cost.
const KDF: usize = 80;
/// Offset of the digest.
const DIGEST: usize = 16320;
/// Maximum cost of a guess, in KiB times passes: a higher valid cost would only take time.
const MAX_FUZZED_KIB: u64 = 256;

/// The passphrase of the header.
pub fn passphrase() -> SecretVec {
    SecretVec::new(b"fuzz".to_vec())
}

/// A medium with a header that [`passphrase`] opens.
pub fn medium() -> SparseMedium {
    static MEDIUM: OnceLock<SparseMedium> = OnceLock::new();
    let made = MEDIUM.get_or_init(|| {
        let medium = SparseMedium::new(medium_len(HEADER_AREA + 4096));
        let new = NewHeaderSpec {
            format: FormatId::SEALED,
            params: vec![7; 40],
            end: HEADER_AREA + 4096,
            cost: Argon2Cost::new(8, 1, 1).expect("the lowest cost is within the limits"),
            levels: &[vec![passphrase()]],
            uuid: None,
        };
        let header = NewHeader::build(new, &SeededRandom::new(1)).expect("a header of one passphrase");
        header.write(&medium, |_| Ok(())).expect("a medium without faults");
        medium
    });
    made.snapshot()
}

/// A header at three moments: created, with other keys, with other parameters. [`passphrase`] opens
/// it at each of them.
struct HeaderHistory {
    moments: Vec<SparseMedium>,
    /// The header at each moment.
    headers: Vec<PublicHeader>,
}

static HISTORY: LazyLock<HeaderHistory> = LazyLock::new(|| {
    let medium = medium();
    let mut unlocked = open(&medium, &[passphrase()]).expect("a valid header");
    let mut life = HeaderHistory { moments: vec![medium.snapshot()], headers: vec![unlocked.header.clone()] };
    let keyring = Keyring::from_opened(&unlocked, vec![passphrase()]).expect("the passphrase that opened it");
    let (cost, end) = (unlocked.header.cost, unlocked.header.end);
    change_keys(&medium, &mut unlocked, &keyring, cost, &SeededRandom::new(3))
        .expect("a medium without faults");
    life.moments.push(medium.snapshot());
    life.headers.push(unlocked.header.clone());
    update_params(&mut unlocked, &medium, vec![8; 30], end).expect("a medium without faults");
    life.moments.push(medium.snapshot());
    life.headers.push(unlocked.header.clone());
    life
});

/// Damages the latest header, opens it on a medium that also returns earlier ones, and repairs it
/// there. Checks that a header that opens was once written, and that the medium holds such a header
/// after the repair.
///
/// # Panics
///
/// If a check fails.
pub fn open_under_lies(lies: ReadLies, input: &mut InputCursor<'_>) {
    let HeaderHistory { moments, headers: said } = &*HISTORY;
    let medium = Arc::new(moments[moments.len() - 1].snapshot());
    damage(&medium, input);
    let lying = LyingMedium::new(medium.clone(), moments, lies);
    let Ok(mut unlocked) = open(&lying, &[passphrase()]) else { return };
    assert!(said.contains(&unlocked.header), "a header opens that was never written: {:?}", unlocked.header);
    if repair(&lying, &mut unlocked).is_ok() {
        let again = open(&*medium, &[passphrase()]).expect("a header that was repaired opens");
        assert!(said.contains(&again.header), "a repaired header was never written: {:?}", again.header);
    }
}

/// Damages a header by `input`: up to 16 changes to the copies, each at an offset of a copy. Then,
/// unless flags forbid it, the digests are corrected; costs that would only take time are lowered.
pub fn damage(medium: &SparseMedium, input: &mut InputCursor<'_>) {
    let flags = input.byte();
    let copies = [COPY_A, COPY_B, copy_c(medium.len()).expect("the medium has room for all copies")];
    for _ in 0..16 {
        if input.is_empty() {
            break;
        }
        let place = input.u16();
        let base = copies[usize::from(place >> 14) % 3];
        // Most fields lie in the first 160 bytes.
        let offset = if place & 0x2000 == 0 { place % 160 } else { place % HEADER_LEN as u16 };
        let len = usize::from(input.byte() % 64) + 1;
        let bytes = input.take(len);
        medium.alter(base + u64::from(offset), bytes.len(), |at, out| {
            let from = (at - base - u64::from(offset)) as usize;
            out.copy_from_slice(&bytes[from..from + out.len()]);
        });
    }
    for (bit, base) in (0..).zip(copies) {
        let mut header = vec![0; HEADER_LEN];
        medium.read_at(base, &mut header).expect("all copies lie on the medium");
        lower_cost(&mut header);
        if flags >> bit & 1 == 0 {
            let digest = Sha256::digest(&header[..DIGEST]);
            header[DIGEST..DIGEST + 32].copy_from_slice(&digest);
        }
        medium.write_at(base, &header).expect("all copies lie on the medium");
    }
    if flags & 8 != 0 {
        let len = u64::from(input.u32()) % (medium.len() + 1);
        medium.set_len(len).expect("a medium in memory has any length");
    }
}

fn lower_cost(header: &mut [u8]) {
    let number = |at: usize| u64::from(u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes")));
    let (memory, passes) = (number(KDF), number(KDF + 4));
    // Invalid costs stay, because they must be refused; high valid costs would take time.
    if memory * passes > MAX_FUZZED_KIB && Argon2Cost::new(memory as u32, passes as u32, 1).is_ok() {
        header[KDF..KDF + 12].copy_from_slice(&Argon2Cost { memory_kib: 8, passes: 1, lanes: 1 }.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lying::decode_lies;
    use lacuna_sim::Rng;

    #[test]
    fn a_header_that_opens_under_lies_was_written() {
        let mut random = Rng::new(1);
        for round in 0..300 {
            // Some of the first reads lie; the damage follows.
            let mut input = vec![4];
            for read in 0..4 {
                input.extend([read, 0, random.below(3) as u8]);
            }
            let damage = random.bytes(1 + (round % 40));
            input.extend(damage);
            let mut input = InputCursor::new(&input);
            let lies = decode_lies(&mut input);
            open_under_lies(lies, &mut input);
        }
    }

    /// The header opens at each moment, if all reads return that moment.
    #[test]
    fn each_moment_opens() {
        let HeaderHistory { moments, headers: said } = &*HISTORY;
        for (which, header) in (0..).zip(said) {
            let now = Arc::new(SparseMedium::new(moments[0].len()));
            let lies = (0..8).map(|read| (read, which)).collect();
            let opened = open(&LyingMedium::new(now, moments, lies), &[passphrase()]).unwrap();
            assert_eq!(opened.header, *header);
        }
    }
}
