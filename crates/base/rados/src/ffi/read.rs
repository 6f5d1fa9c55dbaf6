//! A read operation: bytes and keys of one version of one object.

use super::super::error::RadosCode;
use super::handle::{Handle, KeyValues, check};
use super::symbols::{Api, api};
use std::ffi::{CStr, c_char, c_int, c_uchar};
use std::marker::PhantomData;
use std::ptr;

/// The outputs of librados for a read of bytes.
struct ReadOutputs {
    len: usize,
    result: c_int,
}

/// The outputs of librados for a read of keys.
struct KeyOutputs {
    iterator: Handle,
    more: c_uchar,
    result: c_int,
}

impl KeyOutputs {
    /// An empty cell; the operation frees it.
    fn new() -> *mut KeyOutputs {
        Box::into_raw(Box::new(KeyOutputs { iterator: ptr::null_mut(), more: 0, result: 0 }))
    }
}

/// A buffer to fill, and its outputs.
struct ReadBuffer {
    buf: *mut u8,
    len: usize,
    outputs: *mut ReadOutputs,
}

/// Keys with their values: those of the range, whether the store held back more of them, and the
/// single keys.
#[derive(Default)]
pub(super) struct FoundKeys {
    pub(super) pairs: KeyValues,
    pub(super) more: bool,
    pub(super) named: KeyValues,
}

/// A read operation under construction. It borrows the buffers that it will fill.
pub(in super::super) struct ReadOp<'a> {
    api: &'static Api,
    pub(super) raw: Handle,
    extents: Vec<ReadBuffer>,
    /// The outputs of the step for a range of keys; null if there is none.
    range: *mut KeyOutputs,
    /// The outputs of the step for single keys; null if there is none.
    named: *mut KeyOutputs,
    buffers: PhantomData<&'a mut [u8]>,
}

impl Drop for ReadOp<'_> {
    fn drop(&mut self) {
        // SAFETY: the operation, its cells and its iterator are exclusively ours: it was never
        // started, or has completed (the batch that starts it waits for that).
        unsafe {
            (self.api.rados_release_read_op)(self.raw);
            for extent in &self.extents {
                drop(Box::from_raw(extent.outputs));
            }
            for cell in [self.range, self.named].into_iter().filter(|cell| !cell.is_null()) {
                let keys = Box::from_raw(cell);
                if !keys.iterator.is_null() {
                    (self.api.rados_omap_get_end)(keys.iterator);
                }
            }
        }
    }
}

impl<'a> ReadOp<'a> {
    /// An operation without steps.
    pub(in super::super) fn new() -> lacuna_contracts::Result<ReadOp<'a>> {
        let api = api()?;
        // SAFETY: no arguments; librados aborts instead of returning null.
        let raw = unsafe { (api.rados_create_read_op)() };
        Ok(ReadOp {
            api,
            raw,
            extents: Vec::new(),
            range: ptr::null_mut(),
            named: ptr::null_mut(),
            buffers: PhantomData,
        })
    }

    /// Fails if the object is absent. Reads of bytes or keys do so anyway.
    pub(super) fn assert_exists(&mut self) {
        // SAFETY: the operation is live and exclusively ours.
        unsafe { (self.api.rados_read_op_assert_exists)(self.raw) }
    }

    /// Fails unless the object has this version, which is not 0.
    pub(in super::super) fn assert_version(&mut self, version: u64) {
        // SAFETY: the operation is live and exclusively ours.
        unsafe { (self.api.rados_read_op_assert_version)(self.raw, version) }
    }

    /// Fills a buffer, with zeros past the end of the object.
    pub(in super::super) fn read(&mut self, offset: u64, buf: &'a mut [u8]) {
        if buf.is_empty() {
            // librados takes a length of 0 as the whole object.
            return;
        }
        let cell = Box::into_raw(Box::new(ReadOutputs { len: 0, result: 0 }));
        let extent = ReadBuffer { buf: buf.as_mut_ptr(), len: buf.len(), outputs: cell };
        // SAFETY: as above; buffer and cell live, and are not accessed by other code, until the
        // operation has completed.
        unsafe {
            (self.api.rados_read_op_read)(
                self.raw,
                offset,
                extent.len,
                extent.buf.cast(),
                &raw mut (*cell).len,
                &raw mut (*cell).result,
            );
        }
        self.extents.push(extent);
    }

    /// Fetches these keys.
    pub(in super::super) fn keys_named(&mut self, keys: &[Vec<u8>]) {
        assert!(self.named.is_null(), "one step about named keys in an operation");
        let cell = KeyOutputs::new();
        self.named = cell;
        let (at, lens): (Vec<*const c_char>, Vec<usize>) =
            keys.iter().map(|key| (key.as_ptr().cast(), key.len())).unzip();
        // SAFETY: as for reading bytes; the keys are copied.
        unsafe {
            (self.api.rados_read_op_omap_get_vals_by_keys2)(
                self.raw,
                at.as_ptr(),
                at.len(),
                lens.as_ptr(),
                &raw mut (*cell).iterator,
                &raw mut (*cell).result,
            );
        }
    }

    /// Fetches, in order, up to `most` keys that follow `after` and begin with `prefix`.
    pub(in super::super) fn keys_after(&mut self, after: &CStr, prefix: &CStr, most: u64) {
        assert!(self.range.is_null(), "one step about a range of keys in an operation");
        let cell = KeyOutputs::new();
        self.range = cell;
        // SAFETY: as for reading bytes; the strings are copied.
        unsafe {
            (self.api.rados_read_op_omap_get_vals2)(
                self.raw,
                after.as_ptr(),
                prefix.as_ptr(),
                most,
                &raw mut (*cell).iterator,
                &raw mut (*cell).more,
                &raw mut (*cell).result,
            );
        }
    }

    /// Whether the operation reads neither bytes nor keys.
    pub(super) fn reads_nothing(&self) -> bool {
        self.extents.is_empty() && self.range.is_null() && self.named.is_null()
    }

    /// Fills the unread parts of the buffers with zeros, and returns the keys.
    ///
    /// # Safety
    /// The operation must have completed with `result`.
    pub(super) unsafe fn collect(&mut self, result: Result<(), RadosCode>) -> Result<FoundKeys, RadosCode> {
        for extent in &self.extents {
            // SAFETY: no other code accesses cell and buffer any more, and the buffer, borrowed for
            // 'a, has `len` bytes.
            unsafe {
                let read = if result.is_ok() { (*extent.outputs).len.min(extent.len) } else { 0 };
                ptr::write_bytes(extent.buf.add(read), 0, extent.len - read);
            }
        }
        result?;
        for extent in &self.extents {
            // SAFETY: as above.
            check(unsafe { (*extent.outputs).result })?;
        }
        let mut found = FoundKeys::default();
        // SAFETY: as above.
        if let Some(cell) = unsafe { self.range.as_ref() } {
            check(cell.result)?;
            // SAFETY: the operation succeeded, so librados has made the iterator ready.
            found.pairs = unsafe { pairs(self.api, cell.iterator)? };
            found.more = cell.more != 0;
        }
        // SAFETY: as above.
        if let Some(cell) = unsafe { self.named.as_ref() } {
            check(cell.result)?;
            // SAFETY: likewise.
            found.named = unsafe { pairs(self.api, cell.iterator)? };
        }
        Ok(found)
    }
}

/// All pairs of an iterator.
///
/// # Safety
/// The iterator must be live, and belong to an operation that succeeded.
unsafe fn pairs(api: &Api, iterator: Handle) -> Result<KeyValues, RadosCode> {
    let mut pairs = Vec::new();
    loop {
        let (mut key, mut value) = (ptr::null_mut::<c_char>(), ptr::null_mut::<c_char>());
        let (mut key_len, mut value_len) = (0, 0);
        // SAFETY: the iterator is live; the four outputs outlive the call.
        check(unsafe {
            (api.rados_omap_get_next2)(
                iterator,
                &raw mut key,
                &raw mut value,
                &raw mut key_len,
                &raw mut value_len,
            )
        })?;
        if key.is_null() {
            return Ok(pairs);
        }
        // SAFETY: until the iterator is closed there are `key_len` bytes at `key`.
        let key = unsafe { std::slice::from_raw_parts(key.cast::<u8>(), key_len) };
        let value = if value.is_null() || value_len == 0 {
            &[]
        } else {
            // SAFETY: likewise.
            unsafe { std::slice::from_raw_parts(value.cast::<u8>(), value_len) }
        };
        pairs.push((key.to_vec(), value.to_vec()));
    }
}
