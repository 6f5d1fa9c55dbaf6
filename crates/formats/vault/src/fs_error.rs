//! Errors of a vault: a POSIX error number, or a detailed failure of the storage below.

use lacuna_contracts::Error;
use std::fmt;

/// The result of an operation on a vault's files.
pub type FsResult<T> = std::result::Result<T, FsError>;

/// The error of an operation on a vault's files.
#[derive(Clone, Debug)]
pub enum FsError {
    /// The request cannot be met; a POSIX error number.
    Errno(i32),
    /// The storage below failed, or its content does not verify.
    Storage(Error),
}

impl FsError {
    /// The system's error number.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::Errno(number) => *number,
            // A missing backing file must not look like a missing file.
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

/// The error with this POSIX number.
pub(crate) fn errno<T>(number: i32) -> FsResult<T> {
    Err(FsError::Errno(number))
}
