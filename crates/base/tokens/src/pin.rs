//! A PIN for a library that takes a string of C, which is zeroed when it is dropped.

use lacuna_contracts::{Error, Kind, Result, SecretVec};
use std::ffi::CStr;

/// Bytes that end in NUL.
pub(crate) struct Pin(SecretVec);

impl Pin {
    /// A PIN that was typed. Errors: [`Kind::Usage`] for a NUL in it.
    pub(crate) fn new(typed: &SecretVec) -> Result<Pin> {
        let mut bytes = SecretVec::zeroed(typed.expose().len() + 1);
        bytes.expose_mut()[..typed.expose().len()].copy_from_slice(typed.expose());
        if typed.expose().contains(&0) {
            return Err(Error::new(Kind::Usage, "cannot use the PIN").found("a NUL byte in it"));
        }
        Ok(Pin(bytes))
    }

    /// As C has it.
    pub(crate) fn as_c(&self) -> &CStr {
        CStr::from_bytes_with_nul(self.0.expose()).unwrap_or_default()
    }
}
