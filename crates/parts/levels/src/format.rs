//! What a format with levels lets others do: lay disks on media, and open them.

use crate::disk::{Levels, OpenOptions};
use crate::randomness::Randomness;
use lacuna_contracts::{Result, Secret};
use lacuna_medium::Medium;
use std::sync::Arc;

/// The keys of a disk with levels, and the disk they are of.
#[derive(Clone, Copy)]
pub struct Masters<'a> {
    /// The keys of the levels from 0 up to the deepest that is made or opened.
    pub keys: &'a [Secret<32>],
    /// The identity of the disk, from its header.
    pub uuid: &'a [u8; 16],
}

/// A format with levels: the parameters of a disk, which say how it lies on its medium.
pub trait LevelFormat: Send + Sync + 'static {
    /// An open disk of the format.
    type Disk: Levels + 'static;

    /// Where the disk ends on its medium: the offset of the first byte behind all that belongs to
    /// it.
    fn end(&self) -> u64;

    /// Lays a new disk on a medium. Most of the medium is left as it is: what was written since is
    /// public.
    ///
    /// Errors: [`lacuna_contracts::Kind::NoSpace`] if the medium is too short,
    /// [`lacuna_contracts::Kind::Usage`] if there are more keys than the disk can have levels or no
    /// disk of this version is made any more, and what the medium reports.
    fn create(&self, medium: &Arc<dyn Medium>, masters: Masters<'_>, random: Randomness) -> Result<()>;

    /// Opens a disk at the level of the last of the keys.
    ///
    /// Errors: [`lacuna_contracts::Kind::Corrupt`] if the medium is too short or what recovery
    /// needs does not verify, [`lacuna_contracts::Kind::Usage`] if there are more keys than the
    /// disk can have levels, and what the medium reports.
    fn open(&self, medium: Arc<dyn Medium>, masters: Masters<'_>, options: OpenOptions)
    -> Result<Self::Disk>;
}
