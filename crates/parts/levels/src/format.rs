//! The interface of a format with levels: it creates disks on media, and opens them.

use crate::disk::{Levels, OpenOptions};
use crate::randomness::Randomness;
use lacuna_contracts::{Result, Secret};
use lacuna_medium::Medium;
use std::sync::Arc;

/// The keys of a disk with levels, and the identity of the disk.
#[derive(Clone, Copy)]
pub struct DiskKeys<'a> {
    /// The keys of the levels, starting at level 0, up to the deepest that is created or opened.
    pub keys: &'a [Secret<32>],
    /// The identity of the disk, from its header.
    pub uuid: &'a [u8; 16],
}

/// A format with levels: the parameters of a disk, which define its layout on a medium.
pub trait LevelFormat: Send + Sync + 'static {
    /// An open disk of the format.
    type Disk: Levels + 'static;

    /// The end of the disk on its medium: the offset of the first byte after it.
    fn end(&self) -> u64;

    /// Creates a disk on a medium. Most of the medium is left as it is: the parts written since
    /// then are public.
    ///
    /// Errors: [`lacuna_contracts::Kind::NoSpace`] if the medium is too short,
    /// [`lacuna_contracts::Kind::Usage`] if there are more keys than the disk can have levels or no
    /// disk of this version is made any more, and errors of the medium.
    fn create(&self, medium: &Arc<dyn Medium>, masters: DiskKeys<'_>, random: Randomness) -> Result<()>;

    /// Opens a disk with all levels up to that of the last key.
    ///
    /// Errors: [`lacuna_contracts::Kind::Corrupt`] if the medium is too short or data that recovery
    /// needs does not verify, [`lacuna_contracts::Kind::Usage`] if there are more keys than the
    /// disk can have levels, and errors of the medium.
    fn open(
        &self,
        medium: Arc<dyn Medium>,
        masters: DiskKeys<'_>,
        options: OpenOptions,
    ) -> Result<Self::Disk>;
}
