//! The encoding of keys in the store.
//!
//! librados lists keys only after a given C string, but keys may hold any bytes. So in the store a
//! byte 0, 1 or 2 is encoded as a 2 followed by 1, 2 or 3, and a key ends in a 1. The encoding
//! keeps the order and has no NUL. An encoded key without its end sorts directly before the key: no
//! other key lies between.

/// The end of every key; less than any byte that continues a longer key.
const END: u8 = 1;
/// Precedes an encoded byte.
const ESCAPE: u8 = 2;

/// An encoded key, without its end.
fn encode_without_end(key: &[u8]) -> Vec<u8> {
    let mut written = Vec::with_capacity(key.len() + 4);
    for &byte in key {
        match byte {
            0..=ESCAPE => written.extend([ESCAPE, byte + 1]),
            _ => written.push(byte),
        }
    }
    written
}

/// An encoded key.
pub(super) fn encode(key: &[u8]) -> Vec<u8> {
    let mut written = encode_without_end(key);
    written.push(END);
    written
}

/// The string directly before an encoded key.
pub(super) fn encode_start(key: &[u8]) -> Vec<u8> {
    encode_without_end(key)
}

/// The common prefix of all encoded keys from `first` (included) to `end` (excluded).
pub(super) fn common_prefix(first: &[u8], end: &[u8]) -> Vec<u8> {
    let (mut first, end) = (encode(first), encode(end));
    let same = first.iter().zip(&end).take_while(|(a, b)| a == b).count();
    first.truncate(same);
    first
}

/// Decodes a key; `None` if it is not one of ours.
pub(super) fn decode(written: &[u8]) -> Option<Vec<u8>> {
    let (&END, body) = written.split_last()? else { return None };
    let mut key = Vec::with_capacity(body.len());
    let mut bytes = body.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            ESCAPE => match *bytes.next()? {
                code @ 1..=3 => key.push(code - 1),
                _ => return None,
            },
            0 | END => return None,
            _ => key.push(byte),
        }
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All keys of up to three of the relevant bytes.
    fn keys() -> Vec<Vec<u8>> {
        let mut keys = vec![vec![]];
        for at in 0.. {
            if keys.get(at).is_none_or(|key: &Vec<u8>| key.len() == 3) {
                break;
            }
            for byte in [0, 1, 2, 3, b'p', 254, 255] {
                let longer = [keys[at].as_slice(), &[byte]].concat();
                keys.push(longer);
            }
        }
        keys.sort();
        keys
    }

    #[test]
    fn the_encoding_keeps_the_order_and_decodes() {
        let keys = keys();
        for pair in keys.windows(2) {
            assert!(encode(&pair[0]) < encode(&pair[1]));
        }
        for key in &keys {
            assert!(!encode(key).contains(&0));
            assert_eq!(decode(&encode(key)).as_ref(), Some(key));
        }
    }

    #[test]
    fn encoded_ranges_cover_the_same_keys() {
        let keys = keys();
        for first in &keys {
            let from_here = keys.iter().filter(|key| encode(key) > encode_start(first)).min();
            assert_eq!(from_here, Some(first));
        }
        for (at, first) in keys.iter().enumerate().step_by(7) {
            for end in &keys[at + 1..] {
                let shared = common_prefix(first, end);
                assert!(!encode_start(first).is_empty() || first.is_empty());
                assert!(
                    keys.iter()
                        .filter(|key| *key >= first && *key < end)
                        .all(|key| encode(key).starts_with(&shared))
                );
            }
        }
    }

    #[test]
    fn foreign_keys_do_not_decode() {
        for foreign in [&b""[..], b"name", &[0, 1], &[1, 1], &[2, 1], &[2, 9, 1]] {
            assert_eq!(decode(foreign), None);
        }
    }
}
