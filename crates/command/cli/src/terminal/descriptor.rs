//! Takes over a file descriptor that the program inherited. The only `unsafe` code of terminal
//! input beside the handler of signals.

use lacuna_storage::{Error, Kind, Result};
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

/// Takes the descriptor `number`, at most once.
pub(crate) fn take(number: u32) -> Result<File> {
    let refused = |found: &str| {
        Error::new(Kind::Usage, format!("cannot read a passphrase from file descriptor {number}"))
            .found(found)
            .expected("a descriptor that was open when lacuna started, given once")
    };
    if number == 0 {
        return stdin();
    }
    let raw = i32::try_from(number).map_err(|_| refused("a number that no descriptor has"))?;
    if raw <= 2 {
        return Err(refused("a standard output stream"));
    }
    if !inherited(raw) {
        return Err(refused("nothing open there"));
    }
    // SAFETY: the descriptor is open and not close-on-exec. Every descriptor that this program
    // opens is close-on-exec, so the parent process passed this one, and nothing else here owns it.
    // It is closed after one use.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(raw) }))
}

/// Standard input without the buffer of the standard library, which would keep a copy of the data.
pub(crate) fn stdin() -> Result<File> {
    std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .map_err(|e| Error::io("cannot read standard input", &e))
}

/// Whether `raw` is open and was inherited.
fn inherited(raw: RawFd) -> bool {
    // SAFETY: F_GETFD touches no memory; on a number that is not open it only fails.
    let flags = unsafe { libc::fcntl(raw, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}
