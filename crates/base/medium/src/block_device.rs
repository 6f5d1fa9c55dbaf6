//! Requests to block devices for which no crate has a function.
#![allow(unsafe_code)]

use rustix::fs::{fstat, major};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, ioctl};
use std::fs::File;
use std::io;

/// From `linux/fs.h`: writes back and drops the cache of a device.
const BLKFLSBUF: Opcode = 0x1261;
/// From `linux/fs.h`: reads whether a device is write-protected.
const BLKROGET: Opcode = 0x125e;
/// The major number of RAM disks. The cache of a RAM disk is its content: older kernels empty it on
/// this request.
const RAM_DISKS: u32 = 1;

/// Writes back and drops the cache of a block device. Does nothing, without an error, if this
/// process lacks the permission.
pub(crate) fn drop_cache(device: &File) -> io::Result<()> {
    if major(fstat(device)?.st_rdev) == RAM_DISKS {
        return Ok(());
    }
    // SAFETY: the request takes no argument and touches no memory of this process.
    match unsafe { ioctl(device, NoArg::<BLKFLSBUF>::new()) } {
        Ok(()) | Err(Errno::ACCESS | Errno::PERM | Errno::NOTTY | Errno::INVAL) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Whether a block device is write-protected: by a switch on the card, or by `blockdev --setro`.
/// Such a device can still be opened for writing.
pub(crate) fn is_read_only(device: &File) -> io::Result<bool> {
    // SAFETY: the request writes one int, as the getter declares.
    let answer = unsafe { ioctl(device, Getter::<BLKROGET, std::ffi::c_int>::new()) };
    match answer {
        Ok(read_only) => Ok(read_only != 0),
        // A device without this request reports write protection on a write.
        Err(Errno::NOTTY | Errno::INVAL) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
