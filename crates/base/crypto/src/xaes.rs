//! XAES-256-GCM (C2SP): AES-256-GCM with nonces of 192 bits, which may be drawn at random for any
//! realistic number of messages. The first half of the nonce derives a key, by the counter mode of
//! NIST SP 800-108r1 over CMAC; the second half is the nonce under that key.

use crate::ffi::AesBlock;
use crate::gcm::{GcmKey, TagMismatch};
use lacuna_contracts::{Result, Secret};
use zeroize::Zeroize;

/// Bytes of a nonce.
pub const XAES_NONCE: usize = 24;

/// A key of XAES-256-GCM, used by any number of threads at once.
///
/// A nonce must never repeat under one key; random nonces satisfy this.
pub struct XaesKey {
    aes: AesBlock,
    /// The first CMAC subkey.
    subkey: u128,
}

impl XaesKey {
    /// Sets up `key`.
    pub fn new(key: &Secret<32>) -> XaesKey {
        let aes = AesBlock::new(key);
        let first = u128::from_be_bytes(aes.encrypt([0; 16]));
        let reduction = if first >> 127 == 1 { 0x87 } else { 0 };
        XaesKey { aes, subkey: first << 1 ^ reduction }
    }

    /// Encrypts `src` into `dst` (of the same length) and returns the tag over it and `aad`.
    ///
    /// Errors: [`lacuna_contracts::Kind::Memory`] if the cipher could not be set up.
    pub fn seal(&self, nonce: &[u8; XAES_NONCE], aad: &[u8], src: &[u8], dst: &mut [u8]) -> Result<[u8; 16]> {
        let (key, nonce) = self.derive(nonce)?;
        Ok(key.seal(&nonce, aad, src, dst))
    }

    /// Decrypts `buf` in place if `tag` verifies; otherwise `buf` is zeroed.
    ///
    /// Errors: [`lacuna_contracts::Kind::Memory`] if the cipher could not be set up.
    pub fn open_in_place(
        &self,
        nonce: &[u8; XAES_NONCE],
        aad: &[u8],
        buf: &mut [u8],
        tag: &[u8; 16],
    ) -> Result<std::result::Result<(), TagMismatch>> {
        let (key, nonce) = self.derive(nonce)?;
        Ok(key.open_in_place(&nonce, aad, buf, tag))
    }

    fn derive(&self, nonce: &[u8; XAES_NONCE]) -> Result<(GcmKey, [u8; 12])> {
        let mut bytes = [0; 32];
        for (counter, half) in (1..).zip(bytes.chunks_exact_mut(16)) {
            let mut message = [0; 16];
            message[1] = counter;
            message[2] = b'X';
            message[4..].copy_from_slice(&nonce[..12]);
            let block = u128::from_be_bytes(message) ^ self.subkey;
            half.copy_from_slice(&self.aes.encrypt(block.to_be_bytes()));
        }
        let key = GcmKey::from_bytes(&bytes);
        bytes.zeroize();
        Ok((key?, nonce[12..].try_into().expect("12 of 24 bytes")))
    }
}

impl Drop for XaesKey {
    fn drop(&mut self) {
        self.subkey.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_encoding::HEXLOWER;

    /// The two vectors in the text of the specification (c2sp.org/XAES-256-GCM) cover both cases of
    /// the subkey.
    #[test]
    fn published_vectors() {
        let cases: [(u8, &[u8], &str); 2] = [
            (1, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
            (3, b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
        ];
        let nonce = b"ABCDEFGHIJKLMNOPQRSTUVWX";
        for (key, aad, expected) in cases {
            let key = XaesKey::new(&Secret::copy_from(&[key; 32]));
            let mut text = [0; 12];
            let tag = key.seal(nonce, aad, b"XAES-256-GCM", &mut text).unwrap();
            assert_eq!(HEXLOWER.encode(&[&text[..], &tag[..]].concat()), expected);
            let mut back = text;
            assert_eq!(key.open_in_place(nonce, aad, &mut back, &tag).unwrap(), Ok(()));
            assert_eq!(&back, b"XAES-256-GCM");
            assert_eq!(key.open_in_place(nonce, b"else", &mut text, &tag).unwrap(), Err(TagMismatch));
            assert_eq!(text, [0; 12]);
        }
    }
}
