//! Every cipher, hash, key derivation and random byte of lacuna: AES-256-XTS, AES-256-GCM,
//! XAES-256-GCM, HCTR2-256, HKDF-SHA256, Argon2id, HMAC-SHA256, and the one source of randomness.
//!
//! Invariants kept here:
//! - Randomness comes through [`RandomSource`] alone; the same seed gives the same bytes.
//! - Keys, key schedules and buffered key stream are wiped when their owner is dropped.
//! - Data that fails to verify is never returned: the output is zeroed first.
//! - A cost taken from a header is bounded before any memory or time is spent on it.
//! - Drawn nonces are hedged: if the source repeats, nonces repeat only for equal content
//!   ([`HedgedNonce`]).
//! - Tags and keys are compared in time that does not depend on their bytes.
//! - `unsafe` is confined to the wrappers over aws-lc and ring and to vector instructions.
#![deny(unsafe_code)]

mod available_memory;
mod block_cipher;
#[allow(unsafe_code)]
mod ffi;
mod gcm;
mod hctr2;
mod hedged_nonce;
mod kdf;
mod key_stream;
#[cfg(feature = "witness")]
pub mod nonce_log;
mod random;
mod resumption;
mod speed;
#[allow(unsafe_code)]
mod vector_gcm;
#[allow(unsafe_code)]
mod vector_stream;
mod wrap;
mod xaes;
mod xts;

pub use available_memory::total_memory;
pub use block_cipher::{BlockCipher, Cipher, is_zero};
pub use ffi::{AesBlock, constant_time_eq};
pub use gcm::{GcmKey, TagMismatch};
pub use hctr2::Hctr2Key;
pub use hedged_nonce::{HEDGED, HedgedNonce, SivHash, SivKey};
pub use kdf::{Argon2Cost, derive, derive_aes, derive_ciphers, derive_gcm, measure_cost, stretch};
pub use random::{RandomSource, SeededRandom, SystemRandom, random_secret};
pub use speed::cipher_speeds;
pub use wrap::{keyed_hash, unwrap, wrap};
pub use xaes::{XAES_NONCE, XaesKey};
pub use xts::{XtsKey, XtsSession};
