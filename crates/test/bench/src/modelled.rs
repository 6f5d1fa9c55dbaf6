//! The disks that are compared on modelled media: `sealed`, `deniable` and `oblivious` on media of
//! the same length, and the amounts that are written and read.

use crate::in_process;
use crate::subject::SPARE_PERMILLE;
use crate::workspace::Workspace;
use lacuna_contracts::{Budget, Disk, Result};
use lacuna_crypto::Cipher;
use lacuna_deniable::Geometry;
use lacuna_medium::Medium;
use lacuna_oblivious::Plan;
use std::sync::Arc;

/// A disk on a modelled medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Case {
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

impl Case {
    /// All cases, the baseline first.
    pub const ALL: [Case; 5] = [Case::Xts, Case::Half, Case::Full, Case::Paper, Case::Oblivious];

    /// The name for display.
    pub fn name(self) -> &'static str {
        match self {
            Case::Xts => "lacuna xts",
            Case::Half => "levels half",
            Case::Full => "levels full",
            Case::Paper => "levels 1+1",
            Case::Oblivious => "oblivious",
        }
    }

    /// The layout of `deniable` on a medium of `medium` bytes: the paper's or the default.
    pub fn params(self, medium: u64) -> Result<lacuna_deniable::Params> {
        let geometry = if self == Case::Paper { Geometry::PAPER } else { Geometry::DEFAULT };
        lacuna_deniable::Params::plan(medium, geometry, SPARE_PERMILLE, 0)
    }

    /// Blocks of each level that are written and read.
    pub fn span(self, sizes: Sizes) -> Result<u64> {
        Ok(match self {
            Case::Full => sizes.whole,
            Case::Xts | Case::Half | Case::Paper => sizes.whole / 2,
            Case::Oblivious => {
                lacuna_oblivious::Params::plan(sizes.medium, Plan::DEFAULT)?.most_blocks(1) * 5 / 6
            }
        })
    }

    /// A new disk on a medium: its levels 0 and 1, or its only level.
    pub fn open(self, medium: &Arc<dyn Medium>, budget: Budget) -> Result<Vec<Arc<dyn Disk>>> {
        match self {
            Case::Xts => {
                let params = lacuna_sealed::Params::largest(Cipher::Xts, medium.len())?;
                Ok(vec![in_process::sealed(medium, &params, budget)?])
            }
            Case::Half | Case::Full | Case::Paper => {
                in_process::levels(medium, &self.params(medium.len())?, 2, budget)
            }
            Case::Oblivious => {
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
    pub whole: u64,
}

impl Sizes {
    /// Smaller sizes, for comparing all formats on all media.
    pub fn smaller(work: &Workspace) -> Result<Sizes> {
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
        let params = Case::Full.params(medium)?;
        Ok(Sizes { medium, budget, whole: params.blocks.min(params.most_blocks(1) * 15 / 16) })
    }
}
