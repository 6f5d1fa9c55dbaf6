//! The random-access model of section 2, as one trait over all schemes.

use lacuna_contracts::Result;
use lacuna_integrity::{Checked, Session, Untrusted};
use std::sync::Arc;

/// An integrity scheme in the random-access model (section 2): blocks lie in untrusted storage, and what the value itself holds
/// is either trusted or verified before use.
pub trait Integrity: Send + Sync {
    /// The keys of one file.
    type Keys;

    /// Init: a file without blocks.
    fn init(keys: Arc<Self::Keys>, block_size: usize, session: Session) -> Self
    where
        Self: Sized;

    /// How many blocks the file has.
    fn blocks(&self) -> u64;

    /// Update: overwrites existing blocks, from `first` on, with whole blocks.
    /// Errors: [`lacuna_contracts::Kind::Usage`] beyond the end, [`lacuna_contracts::Kind::Corrupt`] where US does not verify.
    fn update(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()>;

    /// Check: reads whole blocks from `first` on into `plain` and verifies that they are what was written last.
    fn check(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> Checked;

    /// Append: whole blocks after the last one.
    fn append(&mut self, us: &dyn Untrusted, plain: &[u8]) -> Result<()>;

    /// Delete: takes the last block away. Errors: [`lacuna_contracts::Kind::Usage`] if there is none.
    fn delete(&mut self, us: &dyn Untrusted) -> Result<()>;
}
