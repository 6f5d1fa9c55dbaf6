//! The keys of the open levels, and a key that is thrown away when the disk is closed.
//!
//! Deniability contract: a cell that no open level has anything in costs as much ciphering as any
//! other, under the throwaway key.

use crate::cell::CellKey;
use lacuna_contracts::Secret;
use lacuna_crypto::{HedgedNonce, RandomSource, derive};
use lacuna_levels::Masters;

/// The keys of one level of one disk.
pub(crate) struct LevelKey {
    /// From which the keys of the level for each batch are derived.
    pub(crate) level: Secret<32>,
    /// Of its cells.
    pub(crate) cells: CellKey,
}

impl LevelKey {
    pub(crate) fn new(master: &Secret<32>, uuid: &[u8; 16]) -> LevelKey {
        let level = derive(master, "oblivious level", uuid);
        LevelKey { cells: CellKey::new(&level), level }
    }
}

/// The keys of an open disk.
pub(crate) struct Keys {
    /// Of the open levels, from 0 up.
    levels: Vec<LevelKey>,
    /// Hedges salts: under level 0's key, which is always there.
    salts: HedgedNonce,
    /// Seals filler, and is tried on cells of which no open level has anything.
    throwaway: CellKey,
}

impl Keys {
    pub(crate) fn new(masters: Masters<'_>, filler: &dyn RandomSource) -> Keys {
        let levels: Vec<LevelKey> =
            masters.keys.iter().map(|master| LevelKey::new(master, masters.uuid)).collect();
        let salts = HedgedNonce::derive(&levels[0].level, "oblivious salt", &[]);
        Keys { levels, salts, throwaway: CellKey::throwaway(filler) }
    }

    /// What makes salts of random bytes.
    pub(crate) fn salts(&self) -> &HedgedNonce {
        &self.salts
    }

    /// Of all open levels, from 0 up.
    pub(crate) fn levels(&self) -> &[LevelKey] {
        &self.levels
    }

    /// Of an open level.
    pub(crate) fn level(&self, level: u8) -> &LevelKey {
        &self.levels[usize::from(level)]
    }

    /// Of the cells in the region of a level; the throwaway key if the level is not open, or the
    /// region is of no level.
    pub(crate) fn of_region(&self, level: Option<u8>) -> &CellKey {
        let open = level.and_then(|level| self.levels.get(usize::from(level)));
        open.map_or(&self.throwaway, |key| &key.cells)
    }

    /// The key that is kept nowhere.
    pub(crate) fn throwaway(&self) -> &CellKey {
        &self.throwaway
    }
}
