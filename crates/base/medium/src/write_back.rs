//! The request to write cached pages back, for which no crate has a function.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

/// Starts to write back the dirty pages of a range of a file or block device. It does not wait
/// until they are written, but may wait for room in the queue of the device.
pub(crate) fn start_write_back(file: &File, offset: u64, len: u64) {
    let (offset, len) = (offset as i64, len as i64);
    // The next sync reports pages that cannot be written, with or without this call.
    // SAFETY: the call touches no memory of this process.
    let _started =
        unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}
