//! What somebody who compares ciphertexts of one place looks at.

/// A block of AES.
pub const UNIT: usize = 16;

/// Units that are the same in both.
pub fn equal_units(a: &[u8], b: &[u8]) -> usize {
    a.chunks(UNIT).zip(b.chunks(UNIT)).filter(|(a, b)| a == b).count()
}

/// Bytes that are the same in both.
pub fn equal_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a == b).count()
}

/// Asserts that two blocks have nothing in common but by chance, which makes 16 of 4096 bytes
/// equal, with a deviation of 4.
///
/// # Panics
///
/// If they have.
pub fn assert_unrelated(a: &[u8], b: &[u8]) {
    let bytes = equal_bytes(a, b);
    assert!((1..48).contains(&bytes), "{bytes} equal bytes");
    assert_eq!(equal_units(a, b), 0);
}

/// A block that differs in one bit.
pub fn with_one_bit_changed(plain: &[u8]) -> Vec<u8> {
    let mut changed = plain.to_vec();
    changed[1234] ^= 0x10;
    changed
}

/// A block with every second unit of an older one.
pub fn spliced(new: &[u8], old: &[u8]) -> Vec<u8> {
    let mut mixed = new.to_vec();
    for at in (0..mixed.len()).step_by(2 * UNIT) {
        mixed[at..at + UNIT].copy_from_slice(&old[at..at + UNIT]);
    }
    mixed
}
