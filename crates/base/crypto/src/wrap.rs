//! Wrapped keys and keyed hashes.

use crate::gcm::{GcmKey, TagMismatch};
use hmac::{Hmac, KeyInit, Mac};
use lacuna_contracts::{Secret, SecretVec};
use sha2::Sha256;

const TAG: usize = 16;

/// Encrypts `secret` under AES-256-GCM and returns ciphertext and tag. A nonce must never repeat
/// under one key.
pub fn wrap(key: &Secret<32>, nonce: &[u8; 12], aad: &[u8], secret: &[u8]) -> Vec<u8> {
    let mut wrapped = vec![0; secret.len() + TAG];
    let (text, tag) = wrapped.split_at_mut(secret.len());
    tag.copy_from_slice(&gcm(key).seal(nonce, aad, secret, text));
    wrapped
}

/// Undoes [`wrap`]. Input too short for a tag is a mismatch as well.
pub fn unwrap(
    key: &Secret<32>,
    nonce: &[u8; 12],
    aad: &[u8],
    wrapped: &[u8],
) -> Result<SecretVec, TagMismatch> {
    let (text, tag) = wrapped.split_last_chunk::<TAG>().ok_or(TagMismatch)?;
    let mut secret = vec![0; text.len()];
    gcm(key).open(nonce, aad, text, tag, &mut secret)?;
    Ok(SecretVec::new(secret))
}

fn gcm(key: &Secret<32>) -> GcmKey {
    GcmKey::new(key).expect("memory for a GCM context")
}

/// HMAC-SHA256 over the concatenated `parts`. A caller with parts of varying length must include
/// the lengths.
pub fn keyed_hash(key: &Secret<32>, parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.expose()).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}
