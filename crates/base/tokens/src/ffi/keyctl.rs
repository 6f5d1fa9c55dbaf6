//! Keys in the kernel's keyrings.

use std::ffi::{CStr, c_long};
use std::io;

/// `KEYCTL_READ` of `linux/keyctl.h`.
const READ: c_long = 11;
/// `KEYCTL_SEARCH`.
const SEARCH: c_long = 10;
/// `KEY_SPEC_THREAD_KEYRING`.
const THREAD_KEYRING: c_long = -1;
/// `KEY_SPEC_USER_KEYRING`.
const USER_KEYRING: c_long = -4;

/// The key of type `user` with this name that the process can reach, or that is in the keyring of
/// its user.
pub(crate) fn find(name: &CStr) -> io::Result<c_long> {
    let no_info = std::ptr::null::<libc::c_char>();
    // SAFETY: the strings end in NUL; without callout information the kernel starts no program, and
    // 0 means no keyring to link to.
    let found = check(unsafe {
        libc::syscall(libc::SYS_request_key, c"user".as_ptr(), name.as_ptr(), no_info, 0 as c_long)
    });
    // A session without a link to the user's keyring does not reach it, and may not read a key
    // there, because reading requires possession. Hence the link from this thread's keyring, which
    // ends with the thread.
    found.or_else(|first| {
        // SAFETY: the strings end in NUL; the numbers name the keyrings of this thread and of its
        // user.
        let found = unsafe {
            libc::syscall(
                libc::SYS_keyctl,
                SEARCH,
                USER_KEYRING,
                c"user".as_ptr(),
                name.as_ptr(),
                THREAD_KEYRING,
            )
        };
        check(found).map_err(|_| first)
    })
}

/// Reads a key into `into` if that is large enough. Returns the length of the key in both cases.
pub(crate) fn read(key: c_long, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes no more bytes than the length of the buffer.
    let len = unsafe { libc::syscall(libc::SYS_keyctl, READ, key, into.as_mut_ptr(), into.len()) };
    check(len).map(|len| len as usize)
}

fn check(result: c_long) -> io::Result<c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
