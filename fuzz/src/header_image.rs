//! A valid header at the lowest passphrase cost, and ways to damage it that its unkeyed digest does not notice.

use crate::bytes::Bytes;
use crate::sparse::SparseMedium;
use lacuna_contracts::SecretVec;
use lacuna_crypto::{Argon2Cost, SeededRandom};
use lacuna_header::{
    COPY_A, COPY_B, CreateHeader, FormatId, HEADER_AREA, HEADER_LEN, NewHeader, copy_c, medium_len,
};
use lacuna_medium::Medium;
use sha2::{Digest, Sha256};
use std::sync::OnceLock;

/// Where the cost lies.
const KDF: usize = 80;
/// Where the digest lies.
const DIGEST: usize = 16320;
/// More work than this for a guess is not fuzzed: it only takes time.
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
        let new = CreateHeader {
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

/// Damages a header as `input` says: up to 16 changes to the copies, each a copy, a field-sized offset and bytes.
/// Then the digests are put right if the input wants it, and costs that would only take time are made low.
pub fn damage(medium: &SparseMedium, input: &mut Bytes<'_>) {
    let flags = input.byte();
    let copies = [COPY_A, COPY_B, copy_c(medium.len()).expect("the medium has room for all copies")];
    for _ in 0..16 {
        if input.is_empty() {
            break;
        }
        let place = input.u16();
        let base = copies[usize::from(place >> 14) % 3];
        // Most of what is interesting lies in the first 160 bytes.
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
    // Costs beyond the limits must be refused, so they stay; those within cost time.
    if memory * passes > MAX_FUZZED_KIB && Argon2Cost::new(memory as u32, passes as u32, 1).is_ok() {
        header[KDF..KDF + 12].copy_from_slice(&Argon2Cost { memory_kib: 8, passes: 1, lanes: 1 }.to_bytes());
    }
}
