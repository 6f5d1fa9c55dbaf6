//! Comparisons of ciphertexts of one place, as an adversary makes them.

/// The length of an AES block in bytes.
pub const UNIT: usize = 16;

/// The number of units that are equal in both.
pub fn equal_units(a: &[u8], b: &[u8]) -> usize {
    a.chunks(UNIT).zip(b.chunks(UNIT)).filter(|(a, b)| a == b).count()
}

/// The number of bytes that are equal in both.
pub fn equal_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a == b).count()
}

/// Asserts that two blocks have only random bytes in common: on average 16 of 4096 bytes are equal,
/// with a standard deviation of 4.
///
/// # Panics
///
/// If more bytes are equal, or none.
pub fn assert_unrelated(a: &[u8], b: &[u8]) {
    let bytes = equal_bytes(a, b);
    assert!((1..48).contains(&bytes), "{bytes} equal bytes");
    assert_eq!(equal_units(a, b), 0);
}

/// A copy of a block with one bit flipped.
pub fn with_one_bit_changed(plain: &[u8]) -> Vec<u8> {
    let mut changed = plain.to_vec();
    changed[1234] ^= 0x10;
    changed
}

/// A copy of `new` with every second unit from `old`.
pub fn spliced(new: &[u8], old: &[u8]) -> Vec<u8> {
    let mut mixed = new.to_vec();
    for at in (0..mixed.len()).step_by(2 * UNIT) {
        mixed[at..at + UNIT].copy_from_slice(&old[at..at + UNIT]);
    }
    mixed
}
