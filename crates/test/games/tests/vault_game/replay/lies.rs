//! The replay game with a folder that answers two reads of one place differently: with any earlier
//! version of the place, including altered ones, with the content of another, or with a splice of
//! both; and likewise two lookups of a name.

use super::{Game, Won};
use lacuna_contracts::Kind;
use lacuna_sim::{Lies, Rng};

/// The number of lies in a thousand reads.
const OFTEN: [u64; 5] = [20, 60, 150, 300, 500];

impl Game {
    /// Performs `act` while the folder lies; with `about_names` also about names.
    fn over_lies<R>(&mut self, about_names: bool, act: impl FnOnce(&mut Game) -> R) -> R {
        let of_a_thousand = *self.liar.pick(&OFTEN);
        let (rng, forges) = (Rng::new(self.liar.next_u64()), self.liar.chance(1, 2));
        let lies = Lies { of_a_thousand, rng, forges };
        self.world.folder.lie(Some(&lies), |_| true);
        self.world.folder.lie_about_names(about_names.then_some(lies));
        self.lies = true;
        let done = act(self);
        self.lies = false;
        self.world.folder.lie(None, |_| true);
        self.world.folder.lie_about_names(None);
        done
    }

    /// With the vault open, reads or makes a change while the folder lies. False if it failed
    /// permanently.
    pub(super) fn go_on_over_lies(&mut self) -> Result<bool, Won> {
        match self.liar.below(12) {
            // After the sync nothing is left to be written, so lies cannot change the folder.
            0 | 1 if self.sync() => self.over_lies(false, Game::look).map(|()| true),
            0 | 1 => Ok(false),
            2 => {
                // Data that was written under lies may be refused later.
                self.altered = true;
                let about_names = self.liar.chance(1, 4);
                self.over_lies(about_names, Game::operate)
            }
            _ => Ok(true),
        }
    }

    /// With the vault closed, opens it read-only while the folder lies. Sometimes the whole folder
    /// is an earlier state as well.
    pub(super) fn look_in_over_lies(&mut self) -> Result<(), Won> {
        if self.liar.chance(1, 2) {
            return Ok(());
        }
        let newest = self.world.folder.snapshot();
        if !self.seen.is_empty() && self.liar.chance(1, 3) {
            let image = self.liar.pick(&self.seen).image.clone();
            self.world.folder.restore(&image);
        }
        let about_names = self.liar.chance(1, 3);
        let looked = self.over_lies(about_names, |game| {
            match game.world.open_with(|options| options.read_only = true) {
                Ok(vault) => game.vault = Some(vault),
                Err(e) => {
                    game.noticed += 1;
                    game.named += u64::from(e.kind() == Kind::RolledBack);
                }
            }
            let looked = game.look();
            game.vault = None;
            looked
        });
        self.world.folder.restore(&newest);
        looked
    }
}
