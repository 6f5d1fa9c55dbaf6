//! What the calls of librados take and give: handles, keys with values, results.

use super::super::error::Code;
use std::ffi::{c_int, c_void};

/// Whatever librados hands out: it looks into it, we do not.
pub(super) type Handle = *mut c_void;

/// Keys with their values, sorted.
pub(super) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A result of librados as one of ours.
pub(super) fn check(result: c_int) -> Result<c_int, Code> {
    if result < 0 { Err(Code(result)) } else { Ok(result) }
}
