//! Key streams for messages with synthetic tags ([`crate::SivKey`], [`crate::SivHash`]): that of
//! AES-256-GCM, which is AES-256 in counter mode.
//!
//! A synthetic tag needs no tag of GCM. So a key needs only the key schedule of AES, and not GCM's
//! hash key, and its messages are not hashed twice.

use crate::ffi::AesBlock;
use crate::vector_stream;

/// The counter of the first block of a message in GCM, behind the nonce. GCM's own tag takes 1.
const FIRST_COUNTER: u32 = 2;

impl AesBlock {
    /// XORs the key stream of a nonce into `src` and writes the result to `dst` (of the same
    /// length). A second call undoes the first. A nonce must never repeat under one key.
    pub(crate) fn xor_message(&self, nonce: &[u8; 12], src: &[u8], dst: &mut [u8]) {
        if !vector_stream::xor(self, nonce, FIRST_COUNTER, src, dst) {
            dst.copy_from_slice(src);
            self.xor_stream(&first_block(nonce), dst);
        }
    }

    /// [`AesBlock::xor_message`] in place.
    pub(crate) fn xor_message_in_place(&self, nonce: &[u8; 12], buf: &mut [u8]) {
        if !vector_stream::xor_in_place(self, nonce, FIRST_COUNTER, buf) {
            self.xor_stream(&first_block(nonce), buf);
        }
    }

    /// Records the use, for tests that look for repeated nonces.
    #[cfg(feature = "witness")]
    pub(crate) fn log_use(&self, nonce: &[u8; 12], src: &[u8]) {
        let key = || self.encrypt(*b"which key is it?");
        crate::nonce_log::record(crate::nonce_log::NonceKind::Synthetic, key, nonce, &[], src);
    }
}

/// The counter block of the first block of a message.
fn first_block(nonce: &[u8; 12]) -> [u8; 16] {
    let mut block = [0; 16];
    block[..12].copy_from_slice(nonce);
    block[12..].copy_from_slice(&FIRST_COUNTER.to_be_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GcmKey;

    /// Shows that the key stream is that of GCM, with vectors and without them, and that bytes
    /// behind the message stay.
    #[test]
    fn the_key_stream_of_a_block_cipher_is_that_of_gcm() {
        let key = std::array::from_fn(|i| i as u8 * 5);
        let (schedule, gcm) = (AesBlock::from_bytes(&key), GcmKey::from_bytes(&key).unwrap());
        let text: Vec<u8> = (0..5000u32).map(|n| ((n * n) >> 3) as u8).collect();
        for len in (0..=530).chain([4079, 4080, 4096, 4097, 5000]) {
            let (nonce, text) = ([len as u8; 12], &text[..len]);
            let mut expected = [text, &[0x55; 300]].concat();
            let mut found = expected.clone();
            gcm.seal(&nonce, b"not encrypted", text, &mut expected[..len]);
            schedule.xor_message_in_place(&nonce, &mut found[..len]);
            assert!(found == expected, "{len} bytes in place");
            found[..len].fill(0xaa);
            schedule.xor_message(&nonce, text, &mut found[..len]);
            assert!(found == expected, "{len} bytes");
            found[..len].copy_from_slice(text);
            schedule.xor_stream(&first_block(&nonce), &mut found[..len]);
            assert!(found == expected, "{len} bytes without vectors");
        }
    }
}
