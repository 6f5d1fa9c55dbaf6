//! Tokens: secrets from a FIDO2 security key, a TPM 2.0 or a keyring of the kernel, to be used as passphrases.
//!
//! A token gives the same bytes each time for the same disk and name. A key slot that opens with them is like any other.
//!
//! Invariants kept here:
//! - Deniability contract: nothing is written to a medium or to the file systems of the machine, whatever token is enrolled for
//!   whatever level. All that is needed to ask a token again is the UUID of the disk and what the user types. A TPM keeps nothing.
//!   A FIDO2 token keeps one credential, the same for all disks and levels.
//! - The secrets of two disks or two names tell nothing of each other.
//! - A credential on a FIDO2 token is never overwritten.
//! - libfido2 and libtss2 are loaded when they are first needed; `ffi` alone has unsafe code.
#![warn(missing_docs)]

mod ffi;
mod fido2;
mod keyring;
mod pin;
mod request;
mod spec;
mod tpm2;

pub use request::{Person, Request};
pub use spec::TokenSpec;

use lacuna_core::{Result, SecretVec};

/// Something that keeps a secret for each disk and name.
pub trait Token {
    /// The secret. With `create`, a token that has nothing yet to make it of is prepared first.
    ///
    /// Errors: [`Kind::NotFound`](lacuna_core::Kind::NotFound) if the token is not there or was never enrolled,
    /// [`Kind::Passphrase`](lacuna_core::Kind::Passphrase) for a wrong PIN,
    /// [`Kind::Permission`](lacuna_core::Kind::Permission) if the system or the token refuses, and
    /// [`Kind::Other`](lacuna_core::Kind::Other) if a library or the device fails.
    fn secret(&self, request: &Request<'_>, create: bool) -> Result<SecretVec>;
}
