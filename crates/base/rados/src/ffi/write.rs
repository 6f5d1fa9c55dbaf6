//! A write operation: an atomic sequence of steps on one object.

use super::handle::Handle;
use super::symbols::{Api, api};
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

/// `LIBRADOS_CREATE_EXCLUSIVE`.
const CREATE_EXCLUSIVE: c_int = 1;
/// `LIBRADOS_CREATE_IDEMPOTENT`.
const CREATE_IDEMPOTENT: c_int = 0;
/// `LIBRADOS_OP_FLAG_FAILOK`: the operation succeeds even if this step fails.
const MAY_FAIL: c_int = 0x2;
/// `LIBRADOS_CMPXATTR_OP_GTE`: the given value is not less than the stored one.
const NOT_LESS: u8 = 4;

/// A write operation under construction. librados copies all arguments.
pub(in super::super) struct WriteOp {
    api: &'static Api,
    pub(super) raw: Handle,
    pub(super) is_empty: bool,
}

impl Drop for WriteOp {
    fn drop(&mut self) {
        // SAFETY: the operation is ours; librados has copied the data of one that was started.
        unsafe { (self.api.rados_release_write_op)(self.raw) }
    }
}

/// The pointers and lengths of these byte strings.
fn parts<'a>(strings: impl Iterator<Item = &'a [u8]>) -> (Vec<*const c_char>, Vec<usize>) {
    strings.map(|s| (s.as_ptr().cast(), s.len())).unzip()
}

impl WriteOp {
    /// An operation without steps.
    pub(in super::super) fn new() -> lacuna_contracts::Result<WriteOp> {
        let api = api()?;
        // SAFETY: no arguments; librados aborts instead of returning null.
        Ok(WriteOp { api, raw: unsafe { (api.rados_create_write_op)() }, is_empty: true })
    }

    /// Creates the object; if `exclusive`, fails if it exists.
    pub(in super::super) fn create(&mut self, exclusive: bool) {
        let how = if exclusive { CREATE_EXCLUSIVE } else { CREATE_IDEMPOTENT };
        self.is_empty = false;
        // SAFETY: the operation is live and exclusively ours; the category may be null.
        unsafe { (self.api.rados_write_op_create)(self.raw, how, ptr::null()) }
    }

    /// Fails unless the object has this version, which is not 0.
    pub(in super::super) fn assert_version(&mut self, version: u64) {
        self.is_empty = false;
        // SAFETY: the operation is live and exclusively ours.
        unsafe { (self.api.rados_write_op_assert_version)(self.raw, version) }
    }

    /// Fails if the object, which must exist, has an attribute of this name greater than `value`.
    pub(in super::super) fn assert_attribute_at_most(&mut self, name: &CStr, value: &str) {
        self.is_empty = false;
        // SAFETY: as above; name and value are copied.
        unsafe {
            (self.api.rados_write_op_cmpxattr)(
                self.raw,
                name.as_ptr(),
                NOT_LESS,
                value.as_ptr().cast(),
                value.len(),
            );
        }
    }

    /// Sets an attribute.
    pub(in super::super) fn set_attribute(&mut self, name: &CStr, value: &str) {
        self.is_empty = false;
        // SAFETY: as above; name and value are copied.
        unsafe {
            (self.api.rados_write_op_setxattr)(self.raw, name.as_ptr(), value.as_ptr().cast(), value.len());
        }
    }

    /// Fails unless the object has these bytes; bytes past its end count as zeros.
    pub(in super::super) fn compare(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let (at, len) = (data.as_ptr().cast(), data.len());
        self.is_empty = false;
        // SAFETY: as above; the bytes are copied; the output of the step's own result may be null.
        unsafe { (self.api.rados_write_op_cmpext)(self.raw, at, len, offset, ptr::null_mut()) }
    }

    /// Writes bytes.
    pub(in super::super) fn write(&mut self, offset: u64, data: &[u8]) {
        self.is_empty = false;
        // SAFETY: as above; the bytes are copied.
        unsafe { (self.api.rados_write_op_write)(self.raw, data.as_ptr().cast(), data.len(), offset) }
    }

    /// Makes a range read as zeros.
    pub(in super::super) fn zero(&mut self, offset: u64, len: u64) {
        if len == 0 {
            // A storage daemon refuses a length of 0.
            return;
        }
        self.is_empty = false;
        // SAFETY: as above.
        unsafe { (self.api.rados_write_op_zero)(self.raw, offset, len) }
    }

    /// Cuts or lengthens the object.
    pub(in super::super) fn truncate(&mut self, len: u64) {
        self.is_empty = false;
        // SAFETY: as above.
        unsafe { (self.api.rados_write_op_truncate)(self.raw, len) }
    }

    /// Removes the object, if it exists.
    pub(in super::super) fn remove(&mut self) {
        self.is_empty = false;
        // SAFETY: as above; the flag applies to the step just added.
        unsafe {
            (self.api.rados_write_op_remove)(self.raw);
            (self.api.rados_write_op_set_flags)(self.raw, MAY_FAIL);
        }
    }

    /// Sets keys.
    pub(in super::super) fn set_keys(&mut self, pairs: &[(Vec<u8>, &[u8])]) {
        let (keys, key_lens) = parts(pairs.iter().map(|(key, _)| key.as_slice()));
        let (values, value_lens) = parts(pairs.iter().map(|(_, value)| *value));
        self.is_empty = false;
        // SAFETY: as above; each array has one element per pair, and librados copies the data.
        unsafe {
            (self.api.rados_write_op_omap_set2)(
                self.raw,
                keys.as_ptr(),
                values.as_ptr(),
                key_lens.as_ptr(),
                value_lens.as_ptr(),
                pairs.len(),
            );
        }
    }

    /// Removes keys. Does nothing if the object is absent.
    pub(in super::super) fn remove_keys(&mut self, keys: &[Vec<u8>]) {
        let (keys, lens) = parts(keys.iter().map(Vec::as_slice));
        self.is_empty = false;
        // SAFETY: as for setting keys; the flag applies to the step just added.
        unsafe {
            (self.api.rados_write_op_omap_rm_keys2)(self.raw, keys.as_ptr(), lens.as_ptr(), keys.len());
            (self.api.rados_write_op_set_flags)(self.raw, MAY_FAIL);
        }
    }

    /// Removes the keys from `first` (included) to `end` (excluded). Does nothing if the object is
    /// absent.
    pub(in super::super) fn remove_key_range(&mut self, first: &[u8], end: &[u8]) {
        self.is_empty = false;
        // SAFETY: as for removing keys.
        unsafe {
            (self.api.rados_write_op_omap_rm_range2)(
                self.raw,
                first.as_ptr().cast(),
                first.len(),
                end.as_ptr().cast(),
                end.len(),
            );
            (self.api.rados_write_op_set_flags)(self.raw, MAY_FAIL);
        }
    }
}
