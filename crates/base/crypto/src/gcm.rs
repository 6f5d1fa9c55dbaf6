//! AES-256-GCM: authenticated encryption, and, with an empty plaintext, a fast keyed hash of the
//! associated data.

use crate::ffi::GcmContext;
use crate::vector_gcm::{self, VectorGcm};
use lacuna_contracts::{Error, Kind, Result, Secret};
use std::fmt;

/// The tag does not verify: another key, nonce or associated data, or altered ciphertext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagMismatch;

impl fmt::Display for TagMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("authentication tag mismatch")
    }
}

impl std::error::Error for TagMismatch {}

/// A GCM key, used by any number of threads at once.
///
/// A nonce must never repeat under one key.
pub struct GcmKey(GcmEngine);

/// The implementation that is faster on this machine.
enum GcmEngine {
    Library(GcmContext),
    Vector(VectorGcm),
}

impl GcmKey {
    /// Sets up `key`. Errors: [`Kind::Memory`] if the cipher could not be set up.
    pub fn new(key: &Secret<32>) -> Result<GcmKey> {
        Self::from_bytes(key.expose())
    }

    /// [`GcmKey::new`] for bytes that the caller wipes.
    pub fn from_bytes(key: &[u8; 32]) -> Result<GcmKey> {
        let vector = if vector_gcm::is_preferred() { VectorGcm::new(key) } else { None };
        let engine = match vector {
            Some(vector) => GcmEngine::Vector(vector),
            None => GcmContext::new(key)
                .map(GcmEngine::Library)
                .ok_or_else(|| Error::new(Kind::Memory, "cannot set up AES-256-GCM"))?,
        };
        Ok(GcmKey(engine))
    }

    /// Encrypts `src` into `dst` (of the same length) and returns the tag over it and `aad`.
    pub fn seal(&self, nonce: &[u8; 12], aad: &[u8], src: &[u8], dst: &mut [u8]) -> [u8; 16] {
        #[cfg(feature = "witness")]
        self.log_use(nonce, aad, src);
        self.run(nonce, aad, src, dst)
    }

    fn run(&self, nonce: &[u8; 12], aad: &[u8], src: &[u8], dst: &mut [u8]) -> [u8; 16] {
        match &self.0 {
            GcmEngine::Library(context) => context.seal(nonce, aad, src, dst),
            GcmEngine::Vector(key) => {
                dst.copy_from_slice(src);
                key.seal(nonce, aad, dst)
            }
        }
    }

    /// Records the use, for tests that look for repeated nonces.
    #[cfg(feature = "witness")]
    fn log_use(&self, nonce: &[u8; 12], aad: &[u8], src: &[u8]) {
        let key = || self.run(&[0xff; 12], b"which key", &[], &mut []);
        crate::nonce_log::record(crate::nonce_log::NonceKind::Given, key, nonce, aad, src);
    }

    /// Decrypts `src` into `dst` (of the same length) if `tag` verifies; otherwise `dst` is zeroed.
    pub fn open(
        &self,
        nonce: &[u8; 12],
        aad: &[u8],
        src: &[u8],
        tag: &[u8; 16],
        dst: &mut [u8],
    ) -> std::result::Result<(), TagMismatch> {
        let good = match &self.0 {
            GcmEngine::Library(context) => context.open(nonce, aad, src, tag, dst),
            GcmEngine::Vector(key) => {
                dst.copy_from_slice(src);
                key.open(nonce, aad, dst, tag)
            }
        };
        good.then_some(()).ok_or(TagMismatch)
    }

    /// Decrypts `buf` in place if `tag` verifies; otherwise `buf` is zeroed.
    pub fn open_in_place(
        &self,
        nonce: &[u8; 12],
        aad: &[u8],
        buf: &mut [u8],
        tag: &[u8; 16],
    ) -> std::result::Result<(), TagMismatch> {
        let good = match &self.0 {
            GcmEngine::Library(context) => context.open_in_place(nonce, aad, buf, tag),
            GcmEngine::Vector(key) => key.open(nonce, aad, buf, tag),
        };
        good.then_some(()).ok_or(TagMismatch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that both engines give the same ciphertexts and refuse the same tags, on any machine.
    #[test]
    fn both_gcm_engines_give_the_same_results() {
        let key = std::array::from_fn(|i| i as u8 * 3);
        let library = GcmKey(GcmEngine::Library(GcmContext::new(&key).unwrap()));
        let vector = GcmKey(GcmEngine::Vector(VectorGcm::new(&key).unwrap()));
        let text: Vec<u8> = (0..5000u32).map(|n| ((n * n) >> 3) as u8).collect();
        for (n, len) in [0, 1, 16, 31, 127, 128, 129, 4096, 5000].into_iter().enumerate() {
            let (nonce, aad) = ([n as u8; 12], &text[..len / 3]);
            let (mut one, mut other) = (vec![0; len], vec![0; len]);
            let tag = library.seal(&nonce, aad, &text[..len], &mut one);
            assert_eq!(tag, vector.seal(&nonce, aad, &text[..len], &mut other));
            assert!(one == other, "{len} bytes");
            for key in [&library, &vector] {
                let mut back = vec![0; len];
                key.open(&nonce, aad, &one, &tag, &mut back).unwrap();
                assert!(back == text[..len]);
                let mut wrong = tag;
                wrong[15] ^= 1;
                assert_eq!(key.open(&nonce, aad, &one, &wrong, &mut back), Err(TagMismatch));
                assert!(back.iter().all(|b| *b == 0));
                let mut buf = one.clone();
                assert_eq!(key.open_in_place(&nonce, b"else", &mut buf, &tag), Err(TagMismatch));
                assert!(buf.iter().all(|b| *b == 0));
                let mut buf = one.clone();
                key.open_in_place(&nonce, aad, &mut buf, &tag).unwrap();
                assert!(buf == text[..len]);
            }
        }
    }
}
