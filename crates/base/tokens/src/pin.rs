//! A PIN as a C string for a library, zeroed on drop.

use lacuna_contracts::{Error, Kind, Result, SecretVec};
use std::ffi::CStr;

/// Bytes that end in NUL.
pub(crate) struct Pin(SecretVec);

impl Pin {
    /// Converts a PIN as typed. Errors: [`Kind::Usage`] if it has a NUL.
    pub(crate) fn new(typed: &SecretVec) -> Result<Pin> {
        let mut bytes = SecretVec::zeroed(typed.expose().len() + 1);
        bytes.expose_mut()[..typed.expose().len()].copy_from_slice(typed.expose());
        if typed.expose().contains(&0) {
            return Err(Error::new(Kind::Usage, "cannot use the PIN").found("a NUL byte in it"));
        }
        Ok(Pin(bytes))
    }

    /// The PIN as a C string.
    pub(crate) fn as_c(&self) -> &CStr {
        CStr::from_bytes_with_nul(self.0.expose()).unwrap_or_default()
    }
}
