//! The system calls that have no safe wrapper: the only `unsafe` of this crate.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// From `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Splits the process in two. Gives the child's process number in the parent and `None` in the child.
/// Refused while the process has more than one thread, because locks held by the others would stay locked
/// for ever in the child.
pub(crate) fn fork() -> io::Result<Option<u32>> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("the process has {threads} threads, and may have only one")));
    }
    // SAFETY: the process has a single thread, so the child's memory is consistent and no lock is held.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => Ok(None),
        pid if pid > 0 => Ok(Some(pid.unsigned_abs())),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Puts `file` in the place of standard input, output and error.
pub(crate) fn replace_standard_streams(file: impl AsFd) -> io::Result<()> {
    let from = file.as_fd().as_raw_fd();
    for to in 0..=2 {
        // SAFETY: `from` is open for the length of the call, and nothing in Rust owns the numbers 0 to 2.
        if unsafe { libc::dup2(from, to) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Tells the kernel that the calling thread, and every thread and process it starts from now on, carries the
/// writes of a block device: when it needs memory, the kernel will not try to get some by writing to that very
/// device and so wait for itself. Gives whether the kernel agreed; it needs `CAP_SYS_RESOURCE`.
pub fn become_io_flusher() -> bool {
    // SAFETY: this option takes plain numbers and touches no memory of the process.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0 }
}
