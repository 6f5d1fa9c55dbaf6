//! The replay game with a folder that answers two reads of one place differently: with any earlier
//! version of the place, including altered ones, with the content of another, or with a splice of
//! both; and likewise two lookups of a name.

use super::{AdversaryWin, VaultGame};
use lacuna_contracts::Kind;
use lacuna_sim::{Lies, Rng};

/// The number of lies in a thousand reads.
const LIE_RATES: [u64; 5] = [20, 60, 150, 300, 500];

impl VaultGame {
    /// Performs `act` while the folder lies; with `about_names` also about names.
    fn with_lies<R>(&mut self, about_names: bool, act: impl FnOnce(&mut VaultGame) -> R) -> R {
        let of_a_thousand = *self.lie_rng.pick(&LIE_RATES);
        let (rng, forges) = (Rng::new(self.lie_rng.next_u64()), self.lie_rng.chance(1, 2));
        let lies = Lies { per_mille: of_a_thousand, rng, may_forge: forges };
        self.world.folder.set_lies(Some(&lies), |_| true);
        self.world.folder.set_name_lies(about_names.then_some(lies));
        self.is_lying = true;
        let done = act(self);
        self.is_lying = false;
        self.world.folder.set_lies(None, |_| true);
        self.world.folder.set_name_lies(None);
        done
    }

    /// With the vault open, reads or makes a change while the folder lies. False if it failed
    /// permanently.
    pub(super) fn operate_under_lies(&mut self) -> Result<bool, AdversaryWin> {
        match self.lie_rng.below(12) {
            // After the sync nothing is left to be written, so lies cannot change the folder.
            0 | 1 if self.sync() => self.with_lies(false, VaultGame::check_state).map(|()| true),
            0 | 1 => Ok(false),
            2 => {
                // Data that was written under lies may be refused later.
                self.altered = true;
                let about_names = self.lie_rng.chance(1, 4);
                self.with_lies(about_names, VaultGame::operate)
            }
            _ => Ok(true),
        }
    }

    /// With the vault closed, opens it read-only while the folder lies. Sometimes the whole folder
    /// is an earlier state as well.
    pub(super) fn open_under_lies(&mut self) -> Result<(), AdversaryWin> {
        if self.lie_rng.chance(1, 2) {
            return Ok(());
        }
        let newest = self.world.folder.snapshot();
        if !self.snapshots.is_empty() && self.lie_rng.chance(1, 3) {
            let image = self.lie_rng.pick(&self.snapshots).image.clone();
            self.world.folder.restore(&image);
        }
        let about_names = self.lie_rng.chance(1, 3);
        let looked = self.with_lies(about_names, |game| {
            match game.world.open_with(|options| options.read_only = true) {
                Ok(vault) => game.vault = Some(vault),
                Err(e) => {
                    game.detected += 1;
                    game.reported_rollbacks += u64::from(e.kind() == Kind::RolledBack);
                }
            }
            let looked = game.check_state();
            game.vault = None;
            looked
        });
        self.world.folder.restore(&newest);
        looked
    }
}
