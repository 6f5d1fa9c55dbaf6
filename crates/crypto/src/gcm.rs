//! AES-256-GCM: encryption with a tag, and, with nothing to encrypt, a fast keyed hash of its associated data.

use crate::ffi::GcmContext;
use lacuna_core::{Error, Kind, Result, Secret};
use std::fmt;

/// The tag does not verify: another key, nonce or associated data, or altered bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagMismatch;

impl fmt::Display for TagMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("authentication tag mismatch")
    }
}

impl std::error::Error for TagMismatch {}

impl From<TagMismatch> for Error {
    fn from(_: TagMismatch) -> Self {
        Error::new(Kind::Corrupt, "cannot verify")
            .found("an authentication tag that does not match")
            .expected("bytes as they were written under this key")
    }
}

/// A GCM key, used by any number of threads at once.
///
/// A nonce must never repeat under one key.
pub struct GcmKey(GcmContext);

impl GcmKey {
    /// Sets up `key`. Errors: [`Kind::Memory`] if the cipher could not be set up.
    pub fn new(key: &Secret<32>) -> Result<GcmKey> {
        Self::from_bytes(key.expose())
    }

    /// [`GcmKey::new`] for bytes that the caller wipes.
    pub(crate) fn from_bytes(key: &[u8; 32]) -> Result<GcmKey> {
        let context = GcmContext::new(key);
        context.map(GcmKey).map_err(|_| Error::new(Kind::Memory, "cannot set up AES-256-GCM"))
    }

    /// Encrypts `src` into `dst` (of the same length) and returns the tag over it and `aad`.
    pub fn seal(&self, nonce: &[u8; 12], aad: &[u8], src: &[u8], dst: &mut [u8]) -> [u8; 16] {
        self.0.seal(nonce, aad, src, dst)
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
        self.0.open(nonce, aad, src, tag, dst).then_some(()).ok_or(TagMismatch)
    }

    /// Decrypts `buf` where it lies if `tag` verifies; otherwise `buf` is zeroed.
    pub fn open_in_place(
        &self,
        nonce: &[u8; 12],
        aad: &[u8],
        buf: &mut [u8],
        tag: &[u8; 16],
    ) -> std::result::Result<(), TagMismatch> {
        self.0.open_in_place(nonce, aad, buf, tag).then_some(()).ok_or(TagMismatch)
    }
}
