//! A FIDO2 token behind a Unix socket, for software tokens. The socket carries the 64-byte reports
//! of a USB device.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Length of a report.
const REPORT: usize = 64;

/// `fido_dev_io_t`.
#[repr(C)]
pub(super) struct FidoIoFunctions {
    // SAFETY: only types; libfido2 calls them as documented for `fido_dev_set_io_functions`.
    open: unsafe extern "C" fn(*const c_char) -> *mut c_void,
    close: unsafe extern "C" fn(*mut c_void),
    read: unsafe extern "C" fn(*mut c_void, *mut u8, usize, c_int) -> c_int,
    write: unsafe extern "C" fn(*mut c_void, *const u8, usize) -> c_int,
}

pub(super) static SOCKET: FidoIoFunctions = FidoIoFunctions { open, close, read, write };

// SAFETY: libfido2 passes the path of the device, which ends in NUL.
unsafe extern "C" fn open(path: *const c_char) -> *mut c_void {
    // SAFETY: as above.
    let path = unsafe { CStr::from_ptr(path) };
    match UnixStream::connect(OsStr::from_bytes(path.to_bytes())) {
        Ok(stream) => Box::into_raw(Box::new(stream)).cast(),
        Err(_) => std::ptr::null_mut(),
    }
}

// SAFETY: libfido2 passes the result of `open`, once, and does not use it again.
unsafe extern "C" fn close(handle: *mut c_void) {
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(handle.cast::<UnixStream>()) });
}

// SAFETY: libfido2 passes the result of `open` and a buffer of `len` bytes, and waits for the
// return.
unsafe extern "C" fn read(handle: *mut c_void, into: *mut u8, len: usize, millis: c_int) -> c_int {
    // SAFETY: as above.
    let (stream, into) =
        unsafe { (&mut *handle.cast::<UnixStream>(), std::slice::from_raw_parts_mut(into, len)) };
    // A negative value means no timeout.
    let patience = u64::try_from(millis).ok().map(|millis| Duration::from_millis(millis.max(1)));
    let done = stream.set_read_timeout(patience).and_then(|()| stream.read_exact(into));
    done.map_or(-1, |()| len as c_int)
}

// SAFETY: libfido2 passes the result of `open` and `len` bytes, and waits for the return.
unsafe extern "C" fn write(handle: *mut c_void, from: *const u8, len: usize) -> c_int {
    // SAFETY: as above.
    let (stream, report) =
        unsafe { (&mut *handle.cast::<UnixStream>(), std::slice::from_raw_parts(from, len)) };
    // The report number, always 0, comes first and is not sent.
    match report.split_first() {
        Some((0, report)) if report.len() == REPORT => stream.write_all(report).map_or(-1, |()| len as c_int),
        _ => -1,
    }
}
