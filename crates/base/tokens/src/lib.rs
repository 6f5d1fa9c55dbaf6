//! Tokens: secrets from a FIDO2 security key, a TPM 2.0 or a keyring of the kernel, to be used as
//! passphrases.
//!
//! A token gives the same bytes each time for the same disk and name; a keyring does so for every
//! disk. A key slot that opens with them is like any other.
//!
//! Invariants kept here:
//! - Deniability contract: nothing is written to a medium or to the file systems of the machine,
//!   whatever token is enrolled for whatever level. All that is needed to ask a token again is the
//!   UUID of the disk and what the user types. A TPM keeps nothing. A FIDO2 token keeps one
//!   credential, the same for all disks and levels.
//! - The secrets of two disks or two names tell nothing of each other, but for a keyring, whose
//!   secret is what somebody put there.
//! - A credential on a FIDO2 token is never overwritten.
//! - libfido2 and libtss2 are loaded when they are first needed; `ffi` alone has unsafe code.
#![warn(missing_docs)]

mod ffi;
mod fido2;
mod keyring;
mod pin;
mod request;
mod spec;
mod token;
mod tpm2;

pub use request::Person;
pub use spec::TokenSpec;
