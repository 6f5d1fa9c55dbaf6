//! Batches of operations: all are started, then all are awaited.

use super::super::error::RadosCode;
use super::context::IoContext;
use super::handle::{Handle, KeyValues, check};
use super::read::ReadOp;
use super::symbols::Api;
use super::write::WriteOp;
use std::ffi::{CString, c_int};
use std::ptr;

/// `LIBRADOS_OPERATION_FULL_TRY`: writes to a full pool fail instead of waiting.
const FULL_TRY: c_int = 64;

/// A handle on the completion of an operation.
struct Completion {
    api: &'static Api,
    raw: Handle,
}

impl Drop for Completion {
    fn drop(&mut self) {
        // SAFETY: the completion is ours; librados holds a reference while it needs one.
        unsafe { (self.api.rados_aio_release)(self.raw) }
    }
}

impl Completion {
    fn new(api: &'static Api) -> Result<Completion, RadosCode> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call; no callback, so its argument may be null.
        check(unsafe { (api.rados_aio_create_completion2)(ptr::null_mut(), None, &raw mut raw) })?;
        Ok(Completion { api, raw })
    }

    /// Waits until the operation is complete, and returns the object's version.
    fn wait(&self) -> Result<u64, RadosCode> {
        // SAFETY: the completion is live and its operation was started; the result is read after
        // the completion.
        unsafe {
            (self.api.rados_aio_wait_for_complete)(self.raw);
            check((self.api.rados_aio_get_return_value)(self.raw))?;
            Ok((self.api.rados_aio_get_version)(self.raw))
        }
    }
}

/// The result of a read operation besides the bytes.
pub(in super::super) struct ReadAnswer {
    /// The version of the object.
    pub(in super::super) version: u64,
    /// Keys of the requested range, with their values, sorted.
    pub(in super::super) pairs: KeyValues,
    /// The requested single keys, likewise.
    pub(in super::super) named: KeyValues,
    /// Whether the store held back requested keys.
    pub(in super::super) more: bool,
}

/// A read operation, in flight or complete. Drop waits for it, so that librados never fills a
/// buffer after its borrow.
struct ReadInFlight<'a> {
    completion: Completion,
    op: ReadOp<'a>,
    done: bool,
}

impl ReadInFlight<'_> {
    fn answer(&mut self) -> Result<ReadAnswer, RadosCode> {
        let result = self.completion.wait();
        self.done = true;
        // SAFETY: the operation has completed with this result.
        let found = unsafe { self.op.collect(result.map(drop)) }?;
        Ok(ReadAnswer { version: result?, pairs: found.pairs, named: found.named, more: found.more })
    }
}

impl Drop for ReadInFlight<'_> {
    fn drop(&mut self) {
        if !self.done {
            let _whatever_it_was = self.completion.wait();
        }
    }
}

impl IoContext {
    /// Performs operations concurrently, each started as the iterator yields it. Returns the
    /// versions afterwards.
    pub(in super::super) fn write_all(
        &self,
        ops: impl Iterator<Item = lacuna_contracts::Result<(CString, WriteOp)>>,
    ) -> Vec<lacuna_contracts::Result<Result<u64, RadosCode>>> {
        let started: Vec<_> = ops.map(|op| op.map(|(object, op)| self.start_write(&object, op))).collect();
        started.into_iter().map(|s| s.map(|s| s.and_then(|completion| completion.wait()))).collect()
    }

    fn start_write(&self, object: &CString, mut op: WriteOp) -> Result<Completion, RadosCode> {
        if op.is_empty {
            // librados refuses an operation without steps; this step does nothing.
            op.remove_keys(&[]);
        }
        let completion = Completion::new(self.api())?;
        // SAFETY: operation, context and completion are live; the name ends in NUL; a null time
        // means now. librados copies the data that it needs before it returns.
        check(unsafe {
            (self.api().rados_aio_write_op_operate)(
                op.raw,
                self.raw(),
                completion.raw,
                object.as_ptr(),
                ptr::null_mut(),
                FULL_TRY,
            )
        })?;
        Ok(completion)
    }

    /// Performs operations concurrently, each started as the iterator yields it. The bytes of an
    /// absent object ([`RadosCode::NO_ENTRY`]) are zeros; after another error they are undefined.
    pub(in super::super) fn read_all<'a>(
        &self,
        ops: impl Iterator<Item = lacuna_contracts::Result<(CString, ReadOp<'a>)>>,
    ) -> Vec<lacuna_contracts::Result<Result<ReadAnswer, RadosCode>>> {
        let started: Vec<_> = ops.map(|op| op.map(|(object, op)| self.start_read(&object, op))).collect();
        started.into_iter().map(|s| s.map(|s| s.and_then(|mut reading| reading.answer()))).collect()
    }

    fn start_read<'a>(&self, object: &CString, mut op: ReadOp<'a>) -> Result<ReadInFlight<'a>, RadosCode> {
        if op.reads_nothing() {
            op.assert_exists();
        }
        let completion = Completion::new(self.api())?;
        // SAFETY: as for a write; the buffers stay borrowed until the `ReadInFlight` has waited.
        let started = check(unsafe {
            (self.api().rados_aio_read_op_operate)(op.raw, self.raw(), completion.raw, object.as_ptr(), 0)
        });
        match started {
            Ok(_) => Ok(ReadInFlight { completion, op, done: false }),
            Err(code) => {
                // SAFETY: the operation was not started, and so counts as complete.
                let _same_code = unsafe { op.collect(Err(code)) };
                Err(code)
            }
        }
    }
}
