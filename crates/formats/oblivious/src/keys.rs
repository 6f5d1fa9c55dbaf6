//! The keys of the open levels, and a throwaway key that is dropped when the disk is closed.
//!
//! Deniability contract: a cell without data of an open level costs the same encryption as any
//! other, under the throwaway key.

use crate::cells::cell::CellKey;
use lacuna_contracts::Secret;
use lacuna_crypto::{HedgedNonce, RandomSource, derive};
use lacuna_levels::DiskKeys;

/// The keys of one level of one disk.
pub(crate) struct LevelKey {
    /// The level's key; its keys for each batch are derived from this one.
    pub(crate) level: Secret<32>,
    /// The keys of its cells.
    pub(crate) cells: CellKey,
}

impl LevelKey {
    pub(crate) fn new(master: &Secret<32>, uuid: &[u8; 16]) -> LevelKey {
        let level = derive(master, "oblivious level", uuid);
        LevelKey { cells: CellKey::new(&level), level }
    }
}

/// The keys of an open disk.
pub(crate) struct OpenLevelKeys {
    /// The keys of the open levels, starting at level 0.
    levels: Vec<LevelKey>,
    /// Hedges salts, under a key derived from level 0's, which is always open.
    salts: HedgedNonce,
    /// Seals filler, and is tried on cells without data of an open level.
    throwaway: CellKey,
}

impl OpenLevelKeys {
    pub(crate) fn new(masters: DiskKeys<'_>, filler: &dyn RandomSource) -> OpenLevelKeys {
        let levels: Vec<LevelKey> =
            masters.keys.iter().map(|master| LevelKey::new(master, masters.uuid)).collect();
        let salts = HedgedNonce::derive(&levels[0].level, "oblivious salt", &[]);
        OpenLevelKeys { levels, salts, throwaway: CellKey::throwaway(filler) }
    }

    /// The hedge that makes salts of random bytes.
    pub(crate) fn salts(&self) -> &HedgedNonce {
        &self.salts
    }

    /// The keys of all open levels, starting at level 0.
    pub(crate) fn levels(&self) -> &[LevelKey] {
        &self.levels
    }

    /// The keys of an open level.
    pub(crate) fn level(&self, level: u8) -> &LevelKey {
        &self.levels[usize::from(level)]
    }

    /// The key of the cells in the region of a level; the throwaway key if the level is not open,
    /// or the region belongs to no level.
    pub(crate) fn region_key(&self, level: Option<u8>) -> &CellKey {
        let open = level.and_then(|level| self.levels.get(usize::from(level)));
        open.map_or(&self.throwaway, |key| &key.cells)
    }

    /// The throwaway key.
    pub(crate) fn throwaway(&self) -> &CellKey {
        &self.throwaway
    }
}
