//! The one request to block devices that no function of a crate makes.
#![allow(unsafe_code)]

use rustix::fs::{fstat, major};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Opcode, ioctl};
use std::fs::File;
use std::io;

/// From `linux/fs.h`: write the cache of a device back and drop it.
const BLKFLSBUF: Opcode = 0x1261;
/// Devices whose content is their cache: older kernels took the same request as one to empty them.
const RAM_DISKS: u32 = 1;

/// Writes the cache of a block device back and drops it, if this process may. Who may not is told nothing.
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
