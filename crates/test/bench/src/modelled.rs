//! The disks that are compared on modelled media: `sealed`, `deniable` and `oblivious` on media of
//! the same length, and the amounts that are written and read.

pub mod in_process;
pub(crate) mod media;
pub(crate) mod raw_disk;
pub mod simulated_disk;

use crate::serving::subject::SPARE_PERMILLE;
use crate::workspace::Workspace;
use lacuna_contracts::{Budget, Disk, Result};
use lacuna_crypto::Cipher;
use lacuna_deniable::StripeGeometry;
use lacuna_medium::Medium;
use lacuna_oblivious::Plan;
use std::sync::Arc;

/// A disk on a modelled medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelledDisk {
    /// `sealed` with `xts`: the counterpart of the paper's dm-crypt.
    Xts,
    /// `deniable` in its default geometry, half full.
    Half,
    /// `deniable` in its default geometry, full.
    Full,
    /// One public and one hidden block in a stripe, as in the paper; with the data of `Half`.
    Paper,
    /// `oblivious`, opportunistic; the data is five sixths of its hidden level.
    Oblivious,
}

impl ModelledDisk {
    /// All cases, the baseline first.
    pub const ALL: [ModelledDisk; 5] = [
        ModelledDisk::Xts,
        ModelledDisk::Half,
        ModelledDisk::Full,
        ModelledDisk::Paper,
        ModelledDisk::Oblivious,
    ];

    /// The name for display.
    pub fn name(self) -> &'static str {
        match self {
            ModelledDisk::Xts => "lacuna xts",
            ModelledDisk::Half => "levels half",
            ModelledDisk::Full => "levels full",
            ModelledDisk::Paper => "levels 1+1",
            ModelledDisk::Oblivious => "oblivious",
        }
    }

    /// The layout of `deniable` on a medium of `medium` bytes: the paper's or the default.
    pub fn params(self, medium: u64) -> Result<lacuna_deniable::Params> {
        let geometry =
            if self == ModelledDisk::Paper { StripeGeometry::PAPER } else { StripeGeometry::DEFAULT };
        lacuna_deniable::Params::plan(medium, geometry, SPARE_PERMILLE, 0)
    }

    /// Blocks of each level that are written and read.
    pub fn span(self, sizes: Sizes) -> Result<u64> {
        Ok(match self {
            ModelledDisk::Full => sizes.full_level_blocks,
            ModelledDisk::Xts | ModelledDisk::Half | ModelledDisk::Paper => sizes.full_level_blocks / 2,
            ModelledDisk::Oblivious => {
                lacuna_oblivious::Params::plan(sizes.medium, Plan::DEFAULT)?.max_blocks(1) * 5 / 6
            }
        })
    }

    /// A new disk on a medium: its levels 0 and 1, or its only level.
    pub fn open(self, medium: &Arc<dyn Medium>, budget: Budget) -> Result<Vec<Arc<dyn Disk>>> {
        match self {
            ModelledDisk::Xts => {
                let params = lacuna_sealed::Params::largest(Cipher::Xts, medium.len())?;
                Ok(vec![in_process::sealed(medium, &params, budget)?])
            }
            ModelledDisk::Half | ModelledDisk::Full | ModelledDisk::Paper => {
                in_process::levels(medium, &self.params(medium.len())?, 2, budget)
            }
            ModelledDisk::Oblivious => {
                let params = lacuna_oblivious::Params::plan(medium.len(), Plan::DEFAULT)?;
                in_process::levels(medium, &params, 2, budget)
            }
        }
    }
}

/// The sizes of a measurement.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Bytes of the simulated disk.
    pub medium: u64,
    /// Bytes of all caches of a disk.
    pub budget: u64,
    /// Blocks of data of a full level; they fit into level 1 as well.
    pub full_level_blocks: u64,
}

impl Sizes {
    /// Smaller sizes, for comparing all formats on all media.
    pub fn small(work: &Workspace) -> Result<Sizes> {
        let (medium, budget) = if work.scale.quick { (64 << 20, 1 << 20) } else { (256 << 20, 4 << 20) };
        Sizes::on(medium, budget)
    }

    /// The sizes of all other measurements with models. Measurements of caches have budgets of
    /// their own.
    pub fn of(work: &Workspace) -> Result<Sizes> {
        let (medium, budget) = if work.scale.quick { (64 << 20, 1 << 20) } else { (512 << 20, 4 << 20) };
        Sizes::on(medium, budget)
    }

    fn on(medium: u64, budget: u64) -> Result<Sizes> {
        let params = ModelledDisk::Full.params(medium)?;
        Ok(Sizes { medium, budget, full_level_blocks: params.blocks.min(params.max_blocks(1) * 15 / 16) })
    }
}
