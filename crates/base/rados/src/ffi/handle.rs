//! Types of librados calls: handles, key-value pairs, results.

use super::super::error::RadosCode;
use std::ffi::{c_int, c_void};

/// An opaque pointer from librados.
pub(super) type Handle = *mut c_void;

/// Keys with their values, sorted.
pub(super) type KeyValues = Vec<(Vec<u8>, Vec<u8>)>;

/// Converts a result of librados.
pub(super) fn check(result: c_int) -> Result<c_int, RadosCode> {
    if result < 0 { Err(RadosCode(result)) } else { Ok(result) }
}
