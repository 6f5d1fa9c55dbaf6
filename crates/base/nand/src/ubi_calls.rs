//! The Linux ioctls for UBI volumes (`include/uapi/mtd/ubi-user.h`) and for the flash below them
//! (`include/uapi/mtd/mtd-abi.h`). The only `unsafe` code of this crate.
#![allow(unsafe_code)]

use rustix::io;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use std::ffi::c_void;
use std::fs::File;
use std::io::Result;

const GROUP: u8 = b'O';
const ERASE: Opcode = opcode::write::<i32>(GROUP, 1);
/// The opcode encodes the size of an `i32`, although the argument is a [`ChangeRequest`].
const CHANGE: Opcode = opcode::write::<i32>(GROUP, 2);
const UNMAP: Opcode = opcode::write::<i32>(GROUP, 4);
const IS_MAPPED: Opcode = opcode::read::<i32>(GROUP, 5);
const SET_PROPERTY: Opcode = opcode::write::<PropertyRequest>(GROUP, 6);

/// `MEMGETBADBLOCK`, of an MTD device
const IS_BAD: Opcode = opcode::write::<i64>(b'M', 11);

/// `UBI_VOL_PROP_DIRECT_WRITE`
const DIRECT_WRITE: u8 = 1;

/// `struct ubi_leb_change_req`
#[repr(C, packed)]
struct ChangeRequest {
    block: i32,
    bytes: i32,
    /// Obsolete: set to the value that the header calls unknown.
    data_type: i8,
    padding: [i8; 7],
}

/// `struct ubi_set_vol_prop_req`
#[repr(C, packed)]
struct PropertyRequest {
    property: u8,
    padding: [u8; 7],
    value: u64,
}

/// A request with an argument that the kernel reads. The answer is the number that the call
/// returns.
struct UbiRequest<const OPCODE: Opcode, T>(T);

// SAFETY: the opcodes above are those of UBI and MTD, and each is used with the argument type of
// the kernel headers. The kernel reads the argument and changes no memory of this process.
unsafe impl<const OPCODE: Opcode, T> Ioctl for UbiRequest<OPCODE, T> {
    type Output = IoctlOutput;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(answer: IoctlOutput, _: *mut c_void) -> io::Result<IoctlOutput> {
        Ok(answer)
    }
}

fn ubi_ioctl<const OPCODE: Opcode, T>(file: &File, argument: T) -> Result<IoctlOutput> {
    // SAFETY: see `UbiRequest`. On a file that is neither a UBI volume nor an MTD device, the
    // request fails.
    Ok(unsafe { ioctl(file, UbiRequest::<OPCODE, T>(argument)) }?)
}

/// Erases a block, and all blocks that are queued for erasure on the device.
pub(crate) fn erase(file: &File, block: u32) -> Result<()> {
    ubi_ioctl::<ERASE, i32>(file, block as i32).map(drop)
}

/// Unmaps a block.
pub(crate) fn unmap(file: &File, block: u32) -> Result<()> {
    ubi_ioctl::<UNMAP, i32>(file, block as i32).map(drop)
}

/// Whether a block is mapped.
pub(crate) fn is_mapped(file: &File, block: u32) -> Result<bool> {
    ubi_ioctl::<IS_MAPPED, i32>(file, block as i32).map(|answer| answer != 0)
}

/// Announces that the next `bytes` bytes written replace the content of a block.
pub(crate) fn change(file: &File, block: u32, bytes: u32) -> Result<()> {
    let request = ChangeRequest { block: block as i32, bytes: bytes as i32, data_type: 3, padding: [0; 7] };
    ubi_ioctl::<CHANGE, ChangeRequest>(file, request).map(drop)
}

/// Allows plain writes to program the volume.
pub(crate) fn allow_direct_writes(file: &File) -> Result<()> {
    let request = PropertyRequest { property: DIRECT_WRITE, padding: [0; 7], value: 1 };
    ubi_ioctl::<SET_PROPERTY, PropertyRequest>(file, request).map(drop)
}

/// Whether the physical block at this byte offset of an MTD device is marked as bad.
pub(crate) fn is_bad(file: &File, offset: u64) -> Result<bool> {
    ubi_ioctl::<IS_BAD, i64>(file, offset as i64).map(|answer| answer != 0)
}
