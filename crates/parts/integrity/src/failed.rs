//! The outcome of checking a run of blocks: which block failed, and why.

use lacuna_contracts::Error;
use std::fmt;

/// A block did not verify, or could not be read.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Its number. Every block before it in the run was verified and is in the buffer.
    pub block: u64,
    /// Why.
    pub error: Error,
}

/// The outcome of a check.
pub type Checked = std::result::Result<(), Failed>;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Failed {}
