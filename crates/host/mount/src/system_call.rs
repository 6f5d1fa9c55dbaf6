//! System calls that have no safe wrapper in a crate: the only `unsafe` of this crate.
#![allow(unsafe_code)]

use rustix::io::Result;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, Opcode, Setter, Updater, ioctl, opcode};
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::process::Command;
use std::thread;

// From `linux/loop.h`.
const LOOP_SET_FD: Opcode = 0x4c00;
const LOOP_CLR_FD: Opcode = 0x4c01;
const LOOP_SET_CAPACITY: Opcode = 0x4c07;
const LOOP_SET_DIRECT_IO: Opcode = 0x4c08;
const LOOP_CTL_GET_FREE: Opcode = 0x4c82;
// From `linux/fs.h`.
const BLKROSET: Opcode = opcode::none(0x12, 93);
const BLKRASET: Opcode = opcode::none(0x12, 98);
const BLKRAGET: Opcode = opcode::none(0x12, 99);
const FITRIM: Opcode = opcode::read_write::<TrimRange>(b'X', 121);
/// The first descriptor after standard input, output and error.
const FIRST_DESCRIPTOR: c_uint = 3;

/// A request to the loop driver or a block device: takes a number, and returns a number.
struct NumberRequest {
    code: Opcode,
    value: usize,
}

// SAFETY: the requests of this file from `linux/loop.h`, and BLKRASET, take a number or nothing.
// They neither read nor write memory of this process.
unsafe impl Ioctl for NumberRequest {
    type Output = c_int;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        self.code
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.value)
    }

    unsafe fn output_from_ptr(answer: IoctlOutput, _: *mut c_void) -> Result<c_int> {
        Ok(answer)
    }
}

fn number_ioctl(file: &File, code: Opcode, value: usize) -> Result<c_int> {
    // SAFETY: see `NumberRequest`; a file of another kind refuses an unknown request.
    unsafe { ioctl(file, NumberRequest { code, value }) }
}

/// The number of a loop device without a file; the kernel creates one if there is none. `control`
/// is `/dev/loop-control`.
pub(crate) fn free_loop_device(control: &File) -> Result<c_int> {
    number_ioctl(control, LOOP_CTL_GET_FREE, 0)
}

/// Attaches a loop device to `file`. It is read-only if either was opened read-only. Errors:
/// [`BUSY`](rustix::io::Errno::BUSY) if it already has a file.
pub(crate) fn set_backing_file(device: &File, file: &File) -> Result<()> {
    number_ioctl(device, LOOP_SET_FD, file.as_raw_fd() as usize).map(|_| ())
}

/// Detaches a loop device from its file; a device in use is detached when its last user closes it.
pub(crate) fn clear_backing_file(device: &File) -> Result<()> {
    number_ioctl(device, LOOP_CLR_FD, 0).map(|_| ())
}

/// Enables direct I/O on a loop device. Errors: [`INVAL`](rustix::io::Errno::INVAL) if its file
/// does not support it.
pub(crate) fn set_direct_io(device: &File) -> Result<()> {
    number_ioctl(device, LOOP_SET_DIRECT_IO, 1).map(|_| ())
}

/// Sets whether a block device refuses writes. This outlives the attachment of a loop device.
pub(crate) fn set_read_only(device: &File, read_only: bool) -> Result<()> {
    // SAFETY: the request reads one number of the type `int`, during the call only.
    unsafe { ioctl(device, Setter::<BLKROSET, c_int>::new(c_int::from(read_only))) }
}

/// How far the kernel reads ahead on a block device, in units of 512 bytes.
pub(crate) fn read_ahead(device: &File) -> Result<c_long> {
    // SAFETY: the request writes one number of the type `long`, as the getter declares.
    unsafe { ioctl(device, Getter::<BLKRAGET, c_long>::new()) }
}

/// Sets how far the kernel reads ahead on a block device, in units of 512 bytes. This outlives the
/// attachment of a loop device.
pub(crate) fn set_read_ahead(device: &File, sectors: c_long) -> Result<()> {
    number_ioctl(device, BLKRASET, sectors as usize).map(|_| ())
}

/// Sets the length of a loop device to that of its file now.
pub(crate) fn set_capacity(device: &File) -> Result<()> {
    number_ioctl(device, LOOP_SET_CAPACITY, 0).map(|_| ())
}

/// From `linux/fs.h`: the byte range of a file system to trim, and the shortest free run to
/// discard. The kernel returns the number of discarded bytes in `len`.
#[repr(C)]
struct TrimRange {
    start: u64,
    len: u64,
    min_len: u64,
}

/// Makes the file system that contains `file` discard all its free blocks.
pub(crate) fn trim(file: &File) -> Result<()> {
    let mut whole = TrimRange { start: 0, len: u64::MAX, min_len: 0 };
    // SAFETY: the request reads and writes one structure of this layout, during the call only.
    unsafe { ioctl(file, Updater::<FITRIM, _>::new(&mut whole)) }
}

/// Runs `call` on a thread that has only the standard streams of the process's descriptors, and
/// waits for it. `call` must open every descriptor that it uses.
///
/// A server thread that waits for the server's own FUSE file system must not have `/dev/fuse` open:
/// the kernel aborts the request only when that is closed, so a server that is killed meanwhile
/// would never end. A kernel before Linux 5.9 cannot unshare the descriptor table; `call` then runs
/// with the shared table.
pub(crate) fn run_without_descriptors<T: Send>(call: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let run = move || {
        // SAFETY: the waiting thread shares the table, so this thread gets a copy, and nothing is
        // closed in the shared one. `call` opens every descriptor that it uses.
        unsafe {
            libc::syscall(libc::SYS_close_range, FIRST_DESCRIPTOR, c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)
        };
        call()
    };
    thread::scope(|scope| {
        let running = thread::Builder::new().name("lacuna-loop".to_owned()).spawn_scoped(scope, run)?;
        running.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Lets the program of a command have the standard streams alone. Before Linux 5.11 it also
/// inherits the descriptors that this process inherited.
pub(crate) fn withhold_descriptors(command: &mut Command) {
    let mark = || {
        // SAFETY: the call touches no memory of the process.
        unsafe {
            libc::syscall(libc::SYS_close_range, FIRST_DESCRIPTOR, c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
        };
        Ok(())
    };
    // SAFETY: between fork and exec, `mark` makes one system call, and allocates nothing.
    unsafe { command.pre_exec(mark) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::io::Read;
    use std::os::fd::BorrowedFd;

    #[test]
    fn the_thread_has_no_descriptor_of_the_process() {
        let mut held = tempfile::tempfile().unwrap();
        let number = held.as_raw_fd();
        let apart_from_it = run_without_descriptors(|| {
            // SAFETY: the number is only queried.
            let open = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) });
            File::open("/dev/null")?.read_to_end(&mut Vec::new())?;
            Ok(open)
        });
        assert!(matches!(apart_from_it, Ok(Err(Errno::BADF))), "{apart_from_it:?}");
        held.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(
            run_without_descriptors(|| Err::<(), _>(Errno::BUSY.into())).unwrap_err().raw_os_error(),
            Some(libc::EBUSY)
        );
    }

    #[test]
    fn loop_requests_fail_on_a_file() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(set_backing_file(&file, &file), Err(Errno::NOTTY));
        assert_eq!(clear_backing_file(&file), Err(Errno::NOTTY));
    }
}
