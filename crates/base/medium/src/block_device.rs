//! The requests to block devices that no function of a crate makes.
#![allow(unsafe_code)]

use rustix::fs::{fstat, major};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, ioctl};
use std::fs::File;
use std::io;

/// From `linux/fs.h`: write the cache of a device back and drop it.
const BLKFLSBUF: Opcode = 0x1261;
/// From `linux/fs.h`: whether a device takes no writes.
const BLKROGET: Opcode = 0x125e;
/// Devices whose content is their cache: older kernels took the same request as one to empty them.
const RAM_DISKS: u32 = 1;

/// Writes the cache of a block device back and drops it, if this process may. Who may not is told
/// nothing.
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

/// Whether a block device takes no writes: a card with its switch set, or a device that was set so.
/// Such a device can be opened for writing all the same.
pub(crate) fn is_read_only(device: &File) -> io::Result<bool> {
    // SAFETY: the request writes one int, as the getter has it.
    let answer = unsafe { ioctl(device, Getter::<BLKROGET, std::ffi::c_int>::new()) };
    match answer {
        Ok(read_only) => Ok(read_only != 0),
        // What does not know the request says so when it is written to.
        Err(Errno::NOTTY | Errno::INVAL) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
