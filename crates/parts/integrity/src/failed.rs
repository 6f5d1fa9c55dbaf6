//! The outcome of checking a run of blocks: the block that failed, and the error.

use lacuna_contracts::Error;
use std::fmt;

/// A block that did not verify or could not be read.
#[derive(Clone, Debug)]
pub struct FailedBlock {
    /// The number of the block. Every block before it in the run was verified and is in the buffer.
    pub block: u64,
    /// The error.
    pub error: Error,
}

/// The outcome of a check.
pub type CheckResult = std::result::Result<(), FailedBlock>;

impl fmt::Display for FailedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for FailedBlock {}
