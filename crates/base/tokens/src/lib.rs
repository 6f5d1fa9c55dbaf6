//! Tokens: secrets from a FIDO2 security key, a TPM 2.0 or a kernel keyring, for use as
//! passphrases.
//!
//! A token returns the same bytes each time for the same disk and name; a keyring returns the same
//! bytes for every disk. A key slot that opens with them is an ordinary one.
//!
//! Invariants kept here:
//! - Deniability contract: nothing is written to a medium or to the file systems of the machine,
//!   for any token and any level. To query a token again, only the UUID of the disk and the user's
//!   input are needed. A TPM stores nothing. A FIDO2 token stores one credential, the same for all
//!   disks and levels.
//! - The secrets of two disks or two names reveal nothing about each other. The exception is a
//!   keyring: its secret is the user's own.
//! - A credential on a FIDO2 token is never overwritten.
//! - libfido2 and libtss2 are loaded on first use; only `ffi` has unsafe code.
#![warn(missing_docs)]

mod ffi;
mod fido2;
mod keyring;
mod pin;
mod request;
mod spec;
mod token;
mod tpm2;

pub use request::TokenUser;
pub use spec::TokenSpec;
