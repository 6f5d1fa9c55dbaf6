//! Key streams for messages with synthetic tags ([`crate::SivKey`]): that of AES-256-GCM, which is
//! AES-256 in counter mode.
//!
//! A synthetic tag needs no tag of GCM. So a key that encrypts few messages needs only the key
//! schedule of AES, and not GCM's hash key, and its messages are not hashed twice.

use crate::ffi::AesBlock;
use crate::vector_stream;

/// The counter of the first block of a message in GCM, behind the nonce. GCM's own tag takes 1.
const FIRST_COUNTER: u32 = 2;

/// A key for the key stream of AES-256-GCM. A nonce must never repeat under one key.
pub trait KeyStream {
    /// XORs the key stream of a nonce into `src` and writes the result to `dst` (of the same
    /// length). A second call undoes the first.
    fn xor(&self, nonce: &[u8; 12], src: &[u8], dst: &mut [u8]);

    /// [`KeyStream::xor`] in place.
    fn xor_in_place(&self, nonce: &[u8; 12], buf: &mut [u8]);

    /// An identifier of the key, for tests that look for repeated nonces.
    #[cfg(feature = "witness")]
    fn identity(&self) -> [u8; 16];
}

impl KeyStream for AesBlock {
    fn xor(&self, nonce: &[u8; 12], src: &[u8], dst: &mut [u8]) {
        if !vector_stream::xor(self, nonce, FIRST_COUNTER, src, dst) {
            dst.copy_from_slice(src);
            self.xor_stream(&first_block(nonce), dst);
        }
    }

    fn xor_in_place(&self, nonce: &[u8; 12], buf: &mut [u8]) {
        if !vector_stream::xor_in_place(self, nonce, FIRST_COUNTER, buf) {
            self.xor_stream(&first_block(nonce), buf);
        }
    }

    #[cfg(feature = "witness")]
    fn identity(&self) -> [u8; 16] {
        self.encrypt(*b"which key is it?")
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

    /// Both ways, with vectors and without them, give the bytes of GCM.
    #[test]
    fn the_key_stream_of_a_block_cipher_is_that_of_gcm() {
        let key = std::array::from_fn(|i| i as u8 * 5);
        let (schedule, gcm) = (AesBlock::from_bytes(&key), GcmKey::from_bytes(&key).unwrap());
        let text: Vec<u8> = (0..5000u32).map(|n| ((n * n) >> 3) as u8).collect();
        for (n, len) in [0, 1, 15, 16, 17, 112, 255, 256, 257, 511, 4080, 4096, 5000].into_iter().enumerate()
        {
            let (nonce, text) = ([n as u8; 12], &text[..len]);
            let mut expected = vec![0; len];
            gcm.seal(&nonce, b"not encrypted", text, &mut expected);
            let mut found = vec![0; len];
            schedule.xor(&nonce, text, &mut found);
            assert!(found == expected, "{len} bytes");
            let mut found = text.to_vec();
            schedule.xor_in_place(&nonce, &mut found);
            assert!(found == expected, "{len} bytes in place");
            let mut found = text.to_vec();
            schedule.xor_stream(&first_block(&nonce), &mut found);
            assert!(found == expected, "{len} bytes without vectors");
        }
    }
}
