//! Errors of a vault: an error number of POSIX, or a failure of the storage below with all its
//! words.

use lacuna_contracts::Error;
use std::fmt;

/// The result of an operation on a vault's files.
pub type FsResult<T> = std::result::Result<T, FsError>;

/// Why an operation on a vault's files failed.
#[derive(Clone, Debug)]
pub enum FsError {
    /// The request cannot be met, as POSIX names it.
    Errno(i32),
    /// The storage below failed, or something did not verify.
    Storage(Error),
}

impl FsError {
    /// The system's error number.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::Errno(number) => *number,
            // A file system never says that a file is missing because a backing file is.
            FsError::Storage(e) if e.kind() == lacuna_contracts::Kind::NotFound => libc::EIO,
            FsError::Storage(e) => e.errno(),
        }
    }
}

impl From<Error> for FsError {
    fn from(e: Error) -> FsError {
        FsError::Storage(e)
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FsError::Errno(number) => write!(f, "{}", std::io::Error::from_raw_os_error(*number)),
            FsError::Storage(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for FsError {}

/// The failure that POSIX gives this number.
pub(crate) fn errno<T>(number: i32) -> FsResult<T> {
    Err(FsError::Errno(number))
}
