//! The random-access model of section 2, as one trait over all schemes.

use crate::counter::Session;
use crate::keys::FileKeys;
use crate::untrusted::Untrusted;
use lacuna_core::{Error, Result};
use std::fmt;
use std::sync::Arc;

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

/// An integrity scheme in the random-access model (section 2): blocks lie in untrusted storage, and what the value itself holds
/// is either trusted or verified before use.
pub trait Integrity: Send + Sync {
    /// Init: a file without blocks.
    fn init(keys: Arc<FileKeys>, block_size: usize, session: Session) -> Self
    where
        Self: Sized;

    /// How many blocks the file has.
    fn blocks(&self) -> u64;

    /// Update: overwrites existing blocks, from `first` on, with whole blocks.
    /// Errors: [`lacuna_core::Kind::Usage`] beyond the end, [`lacuna_core::Kind::Corrupt`] where US does not verify.
    fn update(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()>;

    /// Check: reads whole blocks from `first` on into `plain` and verifies that they are what was written last.
    fn check(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> Checked;

    /// Append: whole blocks after the last one.
    fn append(&mut self, us: &dyn Untrusted, plain: &[u8]) -> Result<()>;

    /// Delete: takes the last block away. Errors: [`lacuna_core::Kind::Usage`] if there is none.
    fn delete(&mut self, us: &dyn Untrusted) -> Result<()>;
}
