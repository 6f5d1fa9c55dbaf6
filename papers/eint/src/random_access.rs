//! The random-access model of section 2, as a trait of all schemes.

use lacuna_contracts::Result;
use lacuna_integrity::{CheckResult, Session, Untrusted};
use std::sync::Arc;

/// An integrity scheme in the random-access model (section 2): blocks lie in untrusted storage
/// (US), and the state of the value itself is either trusted or verified before use.
pub trait Integrity: Send + Sync {
    /// The keys of one file.
    type Keys;

    /// Init: a file without blocks.
    fn init(keys: Arc<Self::Keys>, block_size: usize, session: Session) -> Self
    where
        Self: Sized;

    /// Number of blocks of the file.
    fn blocks(&self) -> u64;

    /// Update: overwrites existing blocks, starting at `first`, with whole blocks.
    /// Errors: [`lacuna_contracts::Kind::Usage`] beyond the end,
    /// [`lacuna_contracts::Kind::Corrupt`] if US does not verify.
    fn update(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()>;

    /// Check: reads whole blocks, starting at `first`, into `plain` and verifies that they are the
    /// latest ones written.
    fn check(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> CheckResult;

    /// Append: adds whole blocks after the last one.
    fn append(&mut self, us: &dyn Untrusted, plain: &[u8]) -> Result<()>;

    /// Delete: removes the last block. Errors: [`lacuna_contracts::Kind::Usage`] if there is none.
    fn delete(&mut self, us: &dyn Untrusted) -> Result<()>;
}
